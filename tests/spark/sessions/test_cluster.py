"""A standalone cluster of two workers: executors, workers, drivers are killed, nothing is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.spark.cluster import HOSTS, JAVA_OPTIONS, Cluster, Driver
from tests.spark.rocket_loads import SMALL
from tests.spark.rocket_stores import dumped
from tests.spark.sessions.test_rocket_write import verify_log
from tests.spark.stores import scanned_rows, write_store
from tubestore.offline.check import check

pytestmark = pytest.mark.slow
COUNT = 8000

#: Writes numbered messages, slowly, and says which task has begun.
WRITE = """
import os, sys, time
from tubestore.spark import session
from PACKAGE.spark import write
master, root, marks, java, count, times = *sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])
settings = {"spark.executor.memory": "600m", "spark.speculation": "true",
            "spark.driver.extraJavaOptions": java, "spark.executor.extraJavaOptions": java,
            "spark.speculation.multiplier": "1.5", "spark.speculation.quantile": "0.5",
            "spark.speculation.interval": "200ms", "spark.ui.enabled": "false"}
spark = session(master, settings)

def slowly(batches):
    from pyspark import TaskContext
    part, attempt = TaskContext.get().partitionId(), TaskContext.get().attemptNumber()
    open(f"{marks}/task-{part}-{attempt}-{os.getpid()}", "w").close()
    open(f"{marks}/begun", "w").close()
    for batch in batches:
        time.sleep(0.3)
        if part == 7 and len([n for n in os.listdir(marks) if n.startswith("task-7-")]) == 1:
            time.sleep(8)  # its speculative copy overtakes it
        yield batch

frame = spark.range(0, count, numPartitions=8).selectExpr(
    "if(id % 2 = 0, 'even', 'odd') AS topic", "CAST(id % 5 AS INT) AS partition",
    "CAST(CAST(id AS STRING) AS BINARY) AS body")
for _ in range(times):
    write(frame.mapInArrow(slowly, frame.schema), root, job_id="load", OPTIONS)
    print("written", flush=True)
"""

DOCTOR = """
import sys
from tubestore.spark import session
from tubestore.spark.jobs.audit import audit
from tubestore.spark.jobs.doctor import doctor
java = {f"spark.{who}.extraJavaOptions": sys.argv[3] for who in ("driver", "executor")}
spark = session(sys.argv[1], {"spark.executor.memory": "600m", **java})
found = doctor(spark, sys.argv[2])
print(len(found.executors), found.problems)
print(audit(spark, sys.argv[2]).bad)
"""


@pytest.fixture(scope="module")
def cluster(needs_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def verify_shards(root: Path) -> None:
    """Every message is there once, in order within its partition; the files are sound."""
    rows = scanned_rows(root)
    assert sorted(int(row["body"]) for row in rows) == list(range(COUNT))
    assert len({row["msg_id"] for row in rows}) == COUNT
    last: dict[tuple[str, int], int] = {}
    for row in rows:
        key = (row["topic"], row["partition"])
        assert int(row["body"]) > last.get(key, -1)
        last[key] = int(row["body"])
    assert list(check(root)) == []


@dataclass(frozen=True)
class Sink:
    """What is written to, with which options; what is there, and whether it is right."""

    package: str
    options: dict[str, str]
    rows: Callable[[Path], list[Any]]
    verify: Callable[[Path], None]


def rows_of_log(root: Path) -> list[Any]:
    return dumped(root) if (root / "commitlog").exists() else []


SINKS = {
    "shards": Sink("tubestore", {}, scanned_rows, verify_shards),
    "log": Sink(
        "rocketcompat", SMALL, rows_of_log, partial(verify_log, expected=list(range(COUNT)))
    ),
}


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest) -> Sink:
    """A kill takes half a minute; where one sink is named, `test_spark_kills` has the other."""
    return SINKS[request.param]


@pytest.fixture
def start_writing(
    cluster: Cluster, sink: Sink, tmp_path: Path
) -> Iterator[Callable[[int], Driver]]:
    """Start drivers that write the store so many times; they are gone when the test ends."""
    (tmp_path / "marks").mkdir()
    started: list[Driver] = []
    code = WRITE.replace("PACKAGE", sink.package).replace("OPTIONS", f"**{sink.options!r}")

    def start(times: int) -> Driver:
        places = (tmp_path / "store", tmp_path / "marks")
        driver = Driver(tmp_path / "said", code, cluster.url, *places, JAVA_OPTIONS, COUNT, times)
        started.append(driver)
        return driver

    yield start
    for driver in started:
        driver.kill()


def test_an_executor_is_killed_and_a_slow_task_is_overtaken(
    cluster: Cluster, sink: Sink, start_writing: Callable[[int], Driver], tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    driver = start_writing(1)
    driver.wait_until((marks / "begun").exists, "the first task")
    os.kill(cluster.executors()[0], signal.SIGKILL)
    assert driver.finished() == "written\n"
    sink.verify(tmp_path / "store")
    attempts = [name for name in os.listdir(marks) if name.startswith("task-")]
    assert len(attempts) > 8  # some were run again, elsewhere


@pytest.mark.parametrize("sink", ["log"], indirect=True)
def test_a_worker_is_killed_and_the_other_one_ends_the_job(
    cluster: Cluster, sink: Sink, start_writing: Callable[[int], Driver], tmp_path: Path
) -> None:
    driver = start_writing(1)
    driver.wait_until((tmp_path / "marks" / "begun").exists, "the first task")
    cluster.kill_worker(HOSTS[1])
    try:
        assert driver.finished() == "written\n"
    finally:
        cluster.add_workers(HOSTS[1])
    sink.verify(tmp_path / "store")


@pytest.mark.parametrize("sink", ["shards"], indirect=True)
def test_a_driver_is_killed_and_its_job_is_submitted_again(
    sink: Sink, start_writing: Callable[[int], Driver], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    driver = start_writing(1)
    driver.wait_until((tmp_path / "marks" / "begun").exists, "the first task")
    driver.kill()
    assert not root.exists() or sink.rows(root) == []
    assert start_writing(2).finished() == "written\nwritten\n"
    sink.verify(root)


def test_the_doctor_sees_both_workers_and_an_audit_runs_on_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    write_store(tmp_path / "store", {"logs": 500})
    driver = Driver(tmp_path / "said", DOCTOR, cluster.url, tmp_path / "store", JAVA_OPTIONS)
    assert driver.finished() == "2 []\n0\n"
    assert not list((tmp_path / "store" / ".tubestore" / "staging").iterdir())
