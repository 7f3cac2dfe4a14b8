"""What Spark and Arrow do without this package's code: the bounds of the Spark cases.

Tasks of the bounds have the same settings as this package's. The workers find this module in the
directory that the command was called from.
"""

from __future__ import annotations

import mmap
import os
import uuid
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.spark.stores import BODY
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE
from tubestore.segments.listing import StoredFile, find_shards
from tubestore.spark.kit.running import settle
from tubestore.spark.kit.shapes import TUBESTORE

#: The columns that are read of a store, by this package and by the bounds.
COLUMNS = ["partition", "offset", "received_time_ms", "key_code", "body"]

_FIVE_COLUMNS = "partition int, offset bigint, received_time_ms bigint, key_code int, body binary"
#: Rows of a batch: 1 MiB, as large as a read window of this package.
_ROWS = 1024
#: Bodies of a task, as a split has them.
_TASK_BYTES = 128 << 20


def from_memory(spark: Any, count: int) -> Any:
    """Return a DataFrame of `count` rows, of batches that are sent again and again."""
    tasks = max(1, count * BODY // _TASK_BYTES)
    each, rest = divmod(count, tasks)
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([0] * _ROWS, pa.int32()),
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

    return spark.range(0, tasks, numPartitions=tasks).mapInArrow(send, _FIVE_COLUMNS)


class PlainPart(NamedTuple):
    """A task of the plain source: a data file, and its entries of an index file."""

    data: StoredFile
    index: StoredFile
    first: int
    end: int


def plain_parts(root: str) -> list[PlainPart]:
    """Return the tasks of the plain source; the files are whole and nothing writes to them."""
    parts = []
    for shard in find_shards(root):
        for index in (file for file in shard.index if file.size):
            entries = np.memmap(index.path, INDEX_ENTRY.dtype, "r")
            for data in shard.data:
                first, end = (
                    bisect_left(
                        range(len(entries)), at, key=lambda n: int(entries[n]["data_offset"])
                    )
                    for at in (data.start, data.end)
                )
                if first < end:
                    parts.append(PlainPart(data, index, first, end))
    return parts


def plain_batches(part: PlainPart) -> Iterator[pa.RecordBatch]:
    """Read a part with the least work that any reader needs: records are not parsed.

    A body is everything behind the header: attributes are not parsed either.
    """
    index = np.memmap(part.index.path, INDEX_ENTRY.dtype, "r")[part.first : part.end]
    with Path(part.data.path).open("rb") as file:
        data = pa.py_buffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    schema = pa.schema([TUBESTORE.schema.field(name) for name in COLUMNS])
    for row in range(0, len(index), _ROWS):
        entries = index[row : row + _ROWS]
        starts = entries["data_offset"].astype(np.int64) - part.data.start
        edges = np.append(starts, starts[-1] + entries["data_size"][-1]).astype(np.int32)
        records = pa.Array.from_buffers(
            pa.binary(), len(entries), [None, pa.py_buffer(edges), data]
        )
        offset = part.index.start + ENTRY_SIZE * (part.first + row)
        arrays = [
            pa.array(entries["partition_id"].astype(np.int32)),
            pa.array(np.arange(offset, offset + ENTRY_SIZE * len(entries), ENTRY_SIZE)),
            pa.array(entries["received_time"].astype(np.int64)),
            pa.array(entries["key_code"].astype(np.int32)),
            pc.binary_slice(records, HEADER_SIZE, len(data)),
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def plain_reader(spark: Any) -> str:
    """Register a format that reads a store by `plain_batches`: a Python source, nothing more."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class PlainReader(DataSourceReader):
        def __init__(self, path: str) -> None:
            self.path = path

        def partitions(self) -> list[InputPartition]:
            settle()
            return [InputPartition(part) for part in plain_parts(self.path)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            settle()
            return plain_batches(partition.value)

    class PlainStore(DataSource):
        @classmethod
        def name(cls) -> str:
            return "plain-records"

        def schema(self) -> str:
            return _FIVE_COLUMNS

        def reader(self, schema: Any) -> Any:
            return PlainReader(self.options["path"])

    spark.dataSource.register(PlainStore)
    return PlainStore.name()


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
