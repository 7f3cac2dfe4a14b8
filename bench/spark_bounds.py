"""What Spark and Arrow do with nothing of ours in the way: the bounds of the Spark cases.

Tasks of the bounds are settled as ours are. The workers find this module in the directory that
the command was called from.

Next to read: `spark_cases.py`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from bench.spark_stores import BODY
from tubestore.spark.worker_process import settle

#: Rows of a batch from memory: 1 MiB, which is what a window of ours has, too.
_ROWS = 1024
#: Bodies of a task, as a split has them.
_TASK_BYTES = 128 << 20


def from_memory(spark: Any, count: int) -> Any:
    """Return a DataFrame of `count` rows, of batches that are sent again and again."""
    tasks = max(1, count * BODY // _TASK_BYTES)
    each, rest = divmod(count, tasks)
    batch = pa.RecordBatch.from_pydict(
        {
            "partition_id": pa.array([0] * _ROWS, pa.int32()),
            "offset": pa.array(range(_ROWS), pa.int64()),
            "received_time_ms": pa.array(range(_ROWS), pa.int64()),
            "key_code": pa.array([1] * _ROWS, pa.int32()),
            "body": [bytes(BODY)] * _ROWS,
        }
    )

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for ids in batches:
            for number in ids.column(0).to_pylist():
                left = each + (rest if number == 0 else 0)
                while left:
                    yield batch.slice(0, min(left, _ROWS))
                    left -= min(left, _ROWS)

    schema = "partition_id int, offset bigint, received_time_ms bigint, key_code int, body binary"
    return spark.range(0, tasks, numPartitions=tasks).mapInArrow(send, schema)


def thrown_away(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take rows and give none."""
    settle()
    for batch in batches:
        yield batch.slice(0, 0)


def arrow_writer(spark: Any) -> str:
    """Register a format that writes a task's batches into a file as Arrow has them, synced."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class PlainWriter(DataSourceArrowWriter):
        def __init__(self, path: str) -> None:
            self.path = path

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            settle()
            with open(os.path.join(self.path, uuid.uuid4().hex), "wb") as file:
                writer: Any = None
                for batch in iterator:
                    writer = writer or pa.ipc.new_stream(file, batch.schema)
                    writer.write_batch(batch)
                if writer is not None:
                    writer.close()
                file.flush()
                os.fsync(file.fileno())
            return WriterCommitMessage()

    class PlainFormat(DataSource):
        @classmethod
        def name(cls) -> str:
            return "plain-arrow"

        def schema(self) -> str:
            return "topic string, partition int, body binary"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return PlainWriter(self.options["path"])

    spark.dataSource.register(PlainFormat)
    return PlainFormat.name()
