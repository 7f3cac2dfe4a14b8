"""RocketMQ stores in Spark: the format `rocketmq`, batches and streams, read and written.

    from rocketcompat.spark import read, write
    from tubestore.spark import session

    df = read(session(), "store", subscribe="orders", tags="paid || sent")
    write(df, "another", job_id="load-7")

As `tubestore.spark`; its page has what is promised. The log is one sequence, and reading one topic
reads all of it, from `startingTimestamp` on if given.

| module | what |
| --- | --- |
| `options` | names and meanings of options |
| `shapes` | the columns: RocketMQ's, Kafka's |
| `planning` | the log cut into splits |
| `reading` | what a task does with a split |
| `log_batches` | what the next batch of a stream has |
| `write_options`, `intake`, `loads` | what a sink does |
| `source`, `stream` | what Spark calls |
| `jobs`, `tube_jobs`, `id_splits` | a log into a tube root, and back |
| `log_parts`, `log_scanning` | what queues and index need of a split; the log scanned in splits |
| `rebuild_tasks`, `rebuilding` | queues and index built anew, split by split |
| `audit_tasks`, `auditing` | log, queues and index compared, split by split |
| `stats` | a log added up |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tubestore.spark.kit.java import need_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tubestore.spark.kit.publishing import Written

__all__ = ["history", "read", "read_stream", "register", "write", "write_stream"]


def register(spark: SparkSession) -> None:
    """Make the format `rocketmq` known to a session."""
    need_spark()
    from rocketcompat.spark.source import RocketMqSource

    RocketMqSource.register(spark)


def read(
    spark: SparkSession,
    path: str,
    *,
    columns: Sequence[str] | None = None,
    pushdown: bool | None = None,
    **options: Any,
) -> DataFrame:
    """Return a store's messages as a DataFrame; `options` by their names in the documentation.

    `pushdown` as in `tubestore.spark.read`.
    """
    need_spark()
    from rocketcompat.spark.source import RocketMqSource
    from tubestore.spark.kit.frames import read_frame

    return read_frame(RocketMqSource, spark, path, columns, options, pushdown=pushdown)


def read_stream(
    spark: SparkSession, path: str, *, columns: Sequence[str] | None = None, **options: Any
) -> DataFrame:
    """Return a store's messages as a streaming DataFrame."""
    need_spark()
    from rocketcompat.spark.source import RocketMqSource
    from tubestore.spark.kit.frames import read_frame

    return read_frame(RocketMqSource, spark, path, columns, options, stream=True)


def write(
    df: DataFrame,
    path: str,
    *,
    job_id: str | None = None,
    order_by: str | Sequence[str] | None = None,
    **options: Any,
) -> Written | None:
    """Append a DataFrame's rows to a RocketMQ store, all or none; durable when this returns.

    Its columns are those of `put_columns`, or Kafka's. A `job_id` that was written before does
    nothing, so a job may be run again; with other rows it is an error (JobTaken). Returns job,
    rows, files, offsets and rejected rows (option `rejectedRowsPath`), None to a client of Spark
    Connect. Rows of a queue keep the order that they have inside one split of the DataFrame;
    `order_by` sorts each queue by columns, over all splits. The store is made if it is missing;
    its lock is taken at the end, to publish: no broker may have it open then.
    """
    need_spark()
    from rocketcompat.spark.source import RocketMqSource
    from tubestore.spark.kit.frames import write_frame

    return write_frame(RocketMqSource, df, path, job_id, order_by, options)


def history(path: str) -> pa.Table:
    """Return a row for each of the last jobs that wrote into a RocketMQ store, the oldest first.

    Columns: number, job_id, time, rows, bytes, query (of a micro-batch). The store keeps the
    records of 256 jobs; a job's id is known for ever.
    """
    from rocketcompat.inspect.directory import StoreDirectory
    from rocketcompat.staging.pieces import LogRecords
    from tubestore.disks.roots import disk_of
    from tubestore.spark.kit.publishing import history_of

    StoreDirectory(path)  # NotAStore
    return history_of(LogRecords(disk_of(path), path))


def write_stream(
    df: DataFrame,
    path: str,
    *,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
    **options: Any,
) -> StreamingQuery:
    """Start a query that appends to a RocketMQ store, each micro-batch one time only.

    As `tubestore.spark.write_stream`.
    """
    need_spark()
    from rocketcompat.spark.source import RocketMqSource
    from tubestore.spark.kit.frames import write_stream_frame

    return write_stream_frame(RocketMqSource, df, path, checkpoint, trigger, options)
