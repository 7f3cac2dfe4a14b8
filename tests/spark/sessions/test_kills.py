"""The process that publishes is killed at four points, and the job is submitted again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.cluster import JAVA_OPTIONS, REPOSITORY, Driver
from tests.spark.rocket_loads import SMALL
from tests.spark.sessions.test_rocket_write import verify
from tests.spark.stores import scanned_rows
from tubestore.offline.check import check

pytestmark = [pytest.mark.slow, pytest.mark.crash]
COUNT = 3000

#: Loaded by every Python that Spark starts: kills it when it comes to the point that is in a file.
PATCH = """
import os, signal, sys

def install():
    from rocketcompat.staging import publish as publish_log, roll_forward
    from tubestore.core.local_files import OsVfs
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

if "KILL_FILE" in os.environ:
    install()
"""
POINTS = ["before the offsets are patched", "before the record", "after the record"]
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
    "CAST(CAST(id AS STRING) AS BINARY) AS body")
for package, format_, points, options in cases:
    sys.modules[f"{package}.spark"].register(spark)
    sink = frame.write.format(format_).mode("append").options(jobId="load", **options)
    for number, point in enumerate(points):
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


def test_a_job_whose_commit_was_killed_is_there_once_after_it_was_run_again(stores: Path) -> None:
    for number, point in enumerate(TUBE_POINTS):
        root = stores / f"tubestore-{number}"
        rows = scanned_rows(root)
        assert sorted(int(row["body"]) for row in rows) == list(range(COUNT)), point
        assert len({row["msg_id"] for row in rows}) == COUNT
        assert list(check(root)) == []
        assert not list((root / ".tubestore" / "staging").iterdir())


def test_a_job_into_a_log_whose_commit_was_killed_is_there_once_after_it_was_run_again(
    stores: Path,
) -> None:
    for number in range(len(ROCKET_POINTS)):
        verify(stores / f"rocketcompat-{number}", list(range(COUNT)))
