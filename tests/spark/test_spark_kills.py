"""The process that publishes is killed at four points, and the job is submitted again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.cluster import JAVA_OPTIONS, REPOSITORY, Driver
from tests.spark.stores import scanned_rows
from tubestore.check import check

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.xdist_group("spark")]
COUNT = 3000

#: Loaded by every Python that Spark starts: kills it when it comes to the point that is in a file.
PATCH = """
import os, signal, sys

def install():
    from tubestore import commit_records, os_vfs, publish

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
    wrap(commit_records.CommitRecords, "commit", "before the record")
    wrap(commit_records.CommitRecords, "commit", "after the record", after=True)
    wrap(os_vfs.OsVfs, "rename", "between the renames", nth=3)

if "KILL_FILE" in os.environ:
    install()
"""
POINTS = [
    "before the offsets are patched",
    "before the record",
    "after the record",
    "between the renames",
]

DRIVER = """
import os, sys
from tubestore.spark import session, write
root, kill, java, count, *points = *sys.argv[1:4], int(sys.argv[4]), *sys.argv[5:]
spark = session("local[2]", {"spark.driver.extraJavaOptions": java})
spark.sparkContext.setLogLevel("OFF")
frame = spark.range(0, count, numPartitions=4).selectExpr(
    "if(id % 2 = 0, 'even', 'odd') AS topic", "CAST(id % 5 AS INT) AS partition",
    "CAST(CAST(id AS STRING) AS BINARY) AS body")
for number, point in enumerate(points):
    with open(kill, "w") as file:
        file.write(point)
    try:
        write(frame, f"{root}/{number}", job_id="load")
        print("was not killed")
    except Exception:
        print("killed" if not os.path.exists(kill) else "failed otherwise")
    write(frame, f"{root}/{number}", job_id="load")
"""


@pytest.mark.usefixtures("needs_spark")
def test_a_job_whose_commit_was_killed_is_there_once_after_it_was_run_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(PATCH)
    kill = tmp_path / "kill"
    driver = Driver(
        tmp_path / "said", DRIVER, tmp_path / "stores", kill, JAVA_OPTIONS, COUNT, *POINTS,
        KILL_FILE=str(kill), PYTHONPATH=f"{tmp_path}:{REPOSITORY}",
    )  # fmt: skip
    said = driver.finished()
    assert said.splitlines() == ["killed"] * len(POINTS)
    for number in range(len(POINTS)):
        root = tmp_path / "stores" / str(number)
        rows = scanned_rows(root)
        assert sorted(int(row["body"]) for row in rows) == list(range(COUNT)), POINTS[number]
        assert len({row["msg_id"] for row in rows}) == COUNT
        assert list(check(root)) == []
        assert not list((root / ".tubestore" / "staging").iterdir())
