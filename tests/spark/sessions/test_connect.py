"""Through Spark Connect: a server in a process of its own, and a client that knows no JVM."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.spark.cluster import JAVA_OPTIONS, Driver
from tests.spark.stores import scanned_rows, write_store
from tubestore.spark.kit import java

pytestmark = pytest.mark.slow
COUNT = 500
#: What the client needs beside PySpark: `tubestore[spark-local]` brings it.
PACKAGES = ("grpc", "grpc_status", "google.rpc", "zstandard")

CLIENT = """
import sys
from pyspark.sql import SparkSession
from tubestore.spark import read, register, write
from tubestore.spark.jobs.audit import audit
from tubestore.spark.jobs.compact import compact
root, out, java = sys.argv[1:4]
builder = SparkSession.builder.remote("local[2]")
for name, value in {
    "spark.driver.extraJavaOptions": java, "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)
register(spark)
frame = read(spark, root, subscribe="logs")
print(frame.count(), frame.selectExpr("min(offset)").first()[0])
for _ in range(2):
    write(frame.select("topic", "body", "partition", "received_time"), f"{out}/sink", job_id="j",
          numPartitions=7)
print(audit(spark, root).bad)
print(compact(spark, root, f"{out}/copy", job_id="c").rows)
spark.stop()
"""


def missing() -> list[str]:
    """The packages that are not installed."""
    found = []
    for name in PACKAGES:
        try:
            found += [] if find_spec(name) else [name]
        except ModuleNotFoundError:
            found.append(name)
    return found


@pytest.mark.usefixtures("needs_spark")
def test_a_client_reads_writes_and_runs_jobs(tmp_path: Path) -> None:
    if missing():
        pytest.skip(f"Spark Connect needs {', '.join(missing())}: make test-spark installs them")
    root, out = tmp_path / "store", tmp_path / "out"
    write_store(root, {"logs": COUNT})
    driver = Driver(
        tmp_path / "said", CLIENT, root, out, JAVA_OPTIONS,
        PYSPARK_PYTHON=java.worker_python(), SPARK_LOCAL_IP="127.0.0.1",
    )  # fmt: skip
    assert driver.finished() == f"{COUNT} 0\n0\n{COUNT}\n"
    bodies = [row["body"] for row in scanned_rows(root)]
    assert sorted(row["body"] for row in scanned_rows(out / "sink")) == sorted(bodies)
    assert scanned_rows(out / "copy") == scanned_rows(root)
