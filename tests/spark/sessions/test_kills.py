"""The process that publishes is killed at six points, and the job is submitted again.

Or two drivers publish at the same time: the same job, and two.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rocketcompat.check.whole import check as check_log
from tests.spark.cluster import JAVA_OPTIONS, REPOSITORY, Driver
from tests.spark.rocket_loads import GEOMETRY, SMALL
from tests.spark.rocket_stores import dumped
from tests.spark.sessions.test_rocket_write import verify
from tests.spark.stores import scanned_rows
from tubestore.offline.check import check

pytestmark = [pytest.mark.slow, pytest.mark.crash]
COUNT = 3000
#: A row of a hundred has no body.
TAKEN = [number for number in range(COUNT) if number % 100 != 99]

#: Loaded by every Python that Spark starts: kills it when it comes to the point that is in a file.
PATCH = """
import os, signal, sys

def install():
    from rocketcompat.staging import publish as publish_log, roll_forward
    from tubestore.core.local_files import OsVfs
    from tubestore.staging import rejected
    from tubestore.staging.commit_records import JobRecords
    from tubestore.store import publish

    def wrap(owner, name, point, after=False, nth=1):
        kept, calls = getattr(owner, name), []
        def wrapped(*args, **kwargs):
            if after:
                result = kept(*args, **kwargs)
            calls.append(1)
            path = os.environ["KILL_FILE"]
            if len(calls) >= nth and os.path.exists(path) and open(path).read() == point:
                os.unlink(path)
                os.kill(os.getpid(), signal.SIGKILL)
            return result if after else kept(*args, **kwargs)
        setattr(owner, name, wrapped)

    wrap(publish, "place_file", "before the offsets are patched")
    wrap(publish_log, "write_part", "before the offsets are patched")
    wrap(JobRecords, "commit", "before the record")
    wrap(JobRecords, "commit", "after the record", after=True)
    wrap(roll_forward, "move_file", "between two files", nth=2)
    wrap(OsVfs, "rename", "between the renames", nth=3)
    wrap(rejected, "publish", "before the rejected rows")
    wrap(rejected, "_put", "after the rejected rows", after=True)

if "KILL_FILE" in os.environ:
    install()
"""
POINTS = [
    "before the offsets are patched", "before the record", "after the record",
    "before the rejected rows", "after the rejected rows",
]  # fmt: skip
TUBE_POINTS = [*POINTS, "between the renames"]
ROCKET_POINTS = [*POINTS, "between two files"]

DRIVER = """
import os, sys
from tubestore.spark import session
import rocketcompat.spark, tubestore.spark
root, kill, java, count, cases = *sys.argv[1:4], int(sys.argv[4]), CASES
spark = session("local[2]", {"spark.driver.extraJavaOptions": java})
spark.sparkContext.setLogLevel("OFF")
frame = spark.range(0, count, numPartitions=4).selectExpr(
    "if(id % 2 = 0, 'even', 'odd') AS topic", "CAST(id % 5 AS INT) AS partition",
    "if(id % 100 = 99, null, CAST(CAST(id AS STRING) AS BINARY)) AS body")
for package, format_, points, options in cases:
    sys.modules[f"{package}.spark"].register(spark)
    sink = frame.write.format(format_).mode("append").options(jobId="load", **options)
    for number, point in enumerate(points):
        sink = sink.option("rejectedRowsPath", f"{root}/aside-{package}-{number}")
        with open(kill, "w") as file:
            file.write(point)
        try:
            sink.save(f"{root}/{package}-{number}")  # the sink's process publishes
            print("was not killed")
        except Exception:
            print("killed" if not os.path.exists(kill) else "failed otherwise")
        sink.save(f"{root}/{package}-{number}")
"""
CASES = [
    ("tubestore", "tubestore", TUBE_POINTS, {}),
    ("rocketcompat", "rocketmq", ROCKET_POINTS, SMALL),
]


@pytest.fixture(scope="module")
def stores(needs_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of which the publish was killed, and the job run again: a store a point.

    All in one driver: a start takes as long as three points.
    """
    directory = tmp_path_factory.mktemp("kills")
    (directory / "sitecustomize.py").write_text(PATCH)
    kill = directory / "kill"
    driver = Driver(
        directory / "said", DRIVER.replace("CASES", repr(CASES)), directory / "stores", kill,
        JAVA_OPTIONS, COUNT, KILL_FILE=str(kill), PYTHONPATH=f"{directory}:{REPOSITORY}",
    )  # fmt: skip
    points = [point for _, _, some, _ in CASES for point in some]
    assert driver.finished().splitlines() == ["killed"] * len(points)
    return directory / "stores"


def verify_rejected(aside: Path) -> None:
    """The rows that were not taken are there once, and nothing else."""
    assert [path.name for path in aside.iterdir()] == ["job=load"]
    assert pq.read_table(aside / "job=load").num_rows == COUNT // 100


def test_a_job_whose_commit_was_killed_is_there_once_after_it_was_run_again(stores: Path) -> None:
    for number, point in enumerate(TUBE_POINTS):
        root = stores / f"tubestore-{number}"
        rows = scanned_rows(root)
        assert sorted(int(row["body"]) for row in rows) == TAKEN, point
        assert len({row["msg_id"] for row in rows}) == len(TAKEN)
        verify_rejected(stores / f"aside-tubestore-{number}")
        assert list(check(root)) == []
        assert not list((root / ".tubestore" / "staging").iterdir())


def test_a_job_into_a_log_whose_commit_was_killed_is_there_once_after_it_was_run_again(
    stores: Path,
) -> None:
    for number in range(len(ROCKET_POINTS)):
        verify(stores / f"rocketcompat-{number}", TAKEN)
        verify_rejected(stores / f"aside-rocketcompat-{number}")


TWO = """
import os, sys, time
from tubestore.spark import session
from tubestore.spark.kit import sink
import rocketcompat.spark, tubestore.spark
root, java, count, number, cases = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), CASES
spark = session("local[1]", {"spark.driver.extraJavaOptions": java})
spark.sparkContext.setLogLevel("OFF")
published = sink.publish

def publish(load, job_id, *args, **kwargs):
    meeting = load.path + "-meeting"
    os.makedirs(meeting, exist_ok=True)
    open(os.path.join(meeting, str(number)), "w").close()
    while len(os.listdir(meeting)) < 2:
        time.sleep(0.01)
    return published(load, job_id, *args, **kwargs)

sink.publish = publish
for package, _, _, options in cases:
    for name, job, first in (("same", "load", 0), ("other", f"load-{number}", number * count)):
        frame = spark.range(first, first + count, numPartitions=4).selectExpr(
            "if(id % 2 = 0, 'even', 'odd') AS topic", "CAST(id % 5 AS INT) AS partition",
            "if(id % 100 = 99, null, CAST(CAST(id AS STRING) AS BINARY)) AS body")
        path = f"{root}/{name}-{package}"
        found = sys.modules[f"{package}.spark"].write(
            frame, path, job_id=job, rejectedRowsPath=f"{path}-aside", **options)
        print(package, name, found.rows, found.rejected, found.replayed)
"""


def test_two_drivers_that_publish_at_once_write_the_same_job_once_and_two_jobs_both(
    needs_spark: None, tmp_path: Path
) -> None:
    script, stores = TWO.replace("CASES", repr(CASES)), tmp_path / "stores"
    drivers = [
        Driver(tmp_path / f"said-{number}", script, stores, JAVA_OPTIONS, COUNT, number)
        for number in range(2)
    ]
    first, second = ([line.split() for line in one.finished().splitlines()] for one in drivers)
    rows, rejected = str(len(TAKEN)), str(COUNT // 100)
    for one, other, (package, _, _, _) in zip(first[::2], second[::2], CASES, strict=True):
        assert one[:4] == other[:4] == [package, "same", rows, rejected]
        assert {one[4], other[4]} == {"False", "True"}
    assert [line[4] for line in [*first[1::2], *second[1::2]]] == ["False"] * 4
    both = [*TAKEN, *(number + COUNT for number in TAKEN)]
    for name, expected in (("same", TAKEN), ("other", both)):
        root = stores / f"{name}-rocketcompat"
        assert sorted(int(row["body"]) for row in dumped(root)) == expected
        assert list(check_log(root, GEOMETRY)) == []
        root = stores / f"{name}-tubestore"
        assert sorted(int(row["body"]) for row in scanned_rows(root)) == expected
        assert list(check(root)) == []
        for package in ("tubestore", "rocketcompat"):
            aside = stores / f"{name}-{package}-aside"
            jobs = ["job=load"] if name == "same" else ["job=load-0", "job=load-1"]
            assert sorted(path.name for path in aside.iterdir()) == jobs
            assert pq.read_table(aside).num_rows == len(jobs) * COUNT // 100
