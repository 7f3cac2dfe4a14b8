"""RocketMQ stores in Spark: `spark.read.format("rocketmq")`, as a batch and as a stream.

    from rocketcompat.spark import read
    from tubestore.spark import session

    df = read(session(), "store", subscribe="orders", tags="paid || sent")

As `tubestore.spark`, whose page says what is promised. **A `where` is not pushed down**: the log
is one sequence, and reading one topic reads all of it, from `startingTimestamp` on if given.

| module | what |
| --- | --- |
| `options` | names and meanings of options |
| `shapes` | the columns: RocketMQ's, Kafka's |
| `planning` | the log cut into splits |
| `reading` | what a task does with a split |
| `log_batches` | what the next batch of a stream has |
| `source`, `stream` | what Spark calls |
| `jobs` | conversion to a tube root |
| `log_parts`, `rebuilding` | queues and index built anew, split by split |
| `frames` | DataFrames, their options checked where the caller is |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tubestore.spark.java import need_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read", "read_stream", "register"]


def register(spark: SparkSession) -> None:
    """Make the format `rocketmq` known to a session."""
    need_spark()
    from rocketcompat.spark.source import register as to

    to(spark)


def read(
    spark: SparkSession, path: str, *, columns: Sequence[str] | None = None, **options: Any
) -> DataFrame:
    """Return a store's messages as a DataFrame; `options` by their names in the documentation."""
    need_spark()
    from rocketcompat.spark.frames import load

    return load(spark, spark.read, path, columns, options, stream=False)


def read_stream(
    spark: SparkSession, path: str, *, columns: Sequence[str] | None = None, **options: Any
) -> DataFrame:
    """Return a store's messages as a streaming DataFrame."""
    need_spark()
    from rocketcompat.spark.frames import load

    return load(spark, spark.readStream, path, columns, options, stream=True)
