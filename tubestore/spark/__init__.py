"""Stores in Spark: DataFrames, streams, and jobs over stores of any size.

    from tubestore.spark import read, session

    spark = session()
    df = read(spark, "data", subscribe="logs", columns=["partition", "offset", "body"])

Prune with `subscribe`, `partitions`, `startingOffsets`, `startingTimestamp`, `filterItems` and with
`columns`; without a column of the data, no data is read. A `where` filters what these leave, unless
`read` pushes it down. The number of planned bytes goes to stderr.

| module | content |
| --- | --- |
| `planning` | the bytes of a read, cut into splits |
| `reading` | what a task does with a split |
| `micro_batches` | the next batch of a stream |
| `positions`, `holding` | what a checkpoint keeps of it; its lease against retention |
| `lag` | how far a stream is behind; what it has read, committed to a group |
| `source`, `stream` | the data source and the stream that Spark calls |
| `frames`, `laptop` | DataFrames; a session on this machine |
| `jobs/` | audit, statistics, Parquet, copies |
| `kit/` | parts that `rocketcompat.spark` uses, too |

A function imports PySpark when it needs it. The package has to be installed on every node, in the
same version.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tubestore.errors import InvalidMessage
from tubestore.spark.kit.java import need_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tubestore.spark.kit.publishing import Written

__all__ = [
    "behind",
    "commit",
    "history",
    "read",
    "read_stream",
    "register",
    "session",
    "write",
    "write_stream",
]


def session(
    master: str = "local[*]",
    settings: Mapping[str, Any] | None = None,
    *,
    memory: str | None = None,
    quiet: bool = False,
) -> SparkSession:
    """Return a session with the sources registered, on this machine or on a cluster.

    On this machine its settings are those of a laptop; with another master the cluster's.
    """
    need_spark()
    from tubestore.spark.laptop import session as make

    return make(master, settings, memory=memory, quiet=quiet)


def register(spark: SparkSession) -> None:
    """Make the format `tubestore` known to a session: `spark.read.format("tubestore")`."""
    need_spark()
    from tubestore.spark.source import TubeStoreSource

    TubeStoreSource.register(spark)


def read(
    spark: SparkSession,
    path: str,
    *,
    columns: Sequence[str] | None = None,
    pushdown: bool | None = None,
    **options: Any,
) -> DataFrame:
    """Return a store's messages as a DataFrame.

    `options` by the names of the table in the documentation (`subscribe="logs"`), `columns` a
    part of the schema: without one that needs the data (`body`, `attributes`, `filter_item`,
    `msg_id`, `state`) only the index is read. Raises InvalidOption, NotAStore, UnknownTopic
    before Spark is asked anything, where the store is on this machine.

    A `where` is pushed down in a session with `spark.sql.python.filterPushdown.enabled`, unless
    `pushdown` is False. The DataFrame is for one set of filters then: another use is refused.
    """
    need_spark()
    from tubestore.spark.kit.frames import read_frame
    from tubestore.spark.source import TubeStoreSource

    return read_frame(TubeStoreSource, spark, path, columns, options, pushdown=pushdown)


def read_stream(
    spark: SparkSession, path: str, *, columns: Sequence[str] | None = None, **options: Any
) -> DataFrame:
    """Return a store's messages as a streaming DataFrame; otherwise as `read`."""
    need_spark()
    from tubestore.spark.kit.frames import read_frame
    from tubestore.spark.source import TubeStoreSource

    return read_frame(TubeStoreSource, spark, path, columns, options, stream=True)


def behind(query: Any, path: str) -> dict[str, dict[int, int]]:
    """Return how many messages a streaming query has not read yet, by topic and partition id.

    `query`: a StreamingQuery, or its `lastProgress`. All topics of the store at `path` count.
    """
    from tubestore.spark.lag import lag_behind, position_of

    progress = getattr(query, "lastProgress", query)
    return lag_behind(path, position_of(progress, path))


def commit(query: Any, path: str, group: str, *, partitions: Collection[int] | None = None) -> None:
    """Commit to a group of consumers what a streaming query has read of the store at `path`.

    `query`: a StreamingQuery, or its `lastProgress`: batches that are finished. `partitions`: as
    the query's option of that name, else the group would pass what the query does not read.
    Messages that other options leave out count as read. Call it when the query has ended, or now
    and then. InvalidMessage while the group has living members, or before the first batch ended.
    """
    from tubestore.spark.lag import commit_position, position_of

    progress = getattr(query, "lastProgress", query)
    if progress is None:
        raise InvalidMessage("the query has not finished a batch yet")
    commit_position(path, group, position_of(progress, path), partitions)


def write(
    df: DataFrame,
    path: str,
    *,
    job_id: str | None = None,
    order_by: str | Sequence[str] | None = None,
    **options: Any,
) -> Written | None:
    """Append a DataFrame's rows to a store, all of them or none; durable when this returns.

    Its columns are those of `append_batch`, or Kafka's. A `job_id` that was written before does
    nothing, so a job may be run again; with other rows it is an error (JobTaken). Returns job,
    rows, files, offsets and rejected rows (option
    `rejectedRowsPath`), None to a client of Spark Connect. Rows of a partition keep the order
    that they have inside one split of the DataFrame; `order_by` sorts them by columns, over all
    splits. The store's writer lock is taken at the end, to publish. Raises InvalidMessage,
    InvalidOption, NotAStore before Spark is
    asked anything.
    """
    need_spark()
    from tubestore.spark.kit.frames import write_frame
    from tubestore.spark.source import TubeStoreSource

    return write_frame(TubeStoreSource, df, path, job_id, order_by, options)


def history(path: str) -> pa.Table:
    """Return a row for each of the last jobs that wrote into a store, the oldest first.

    Columns: number, job_id, time, rows, bytes, query (of a micro-batch). The store keeps the
    records of 256 jobs; a job's id is known for ever.
    """
    from tubestore.disks.roots import disk_of
    from tubestore.segments.listing import check_root
    from tubestore.spark.kit.publishing import history_of
    from tubestore.staging.commit_records import CommitRecords

    vfs = disk_of(path)
    check_root(path, vfs)
    return history_of(CommitRecords(vfs, path))


def write_stream(
    df: DataFrame,
    path: str,
    *,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
    **options: Any,
) -> StreamingQuery:
    """Start a query that appends a streaming DataFrame to a store, each micro-batch one time only.

    End to end exactly once needs a source that can be replayed, and the same `checkpoint`.
    `trigger` as of `DataStreamWriter.trigger`: {"availableNow": True}, {"processingTime": "1s"}.
    """
    need_spark()
    from tubestore.spark.kit.frames import write_stream_frame
    from tubestore.spark.source import TubeStoreSource

    return write_stream_frame(TubeStoreSource, df, path, checkpoint, trigger, options)
