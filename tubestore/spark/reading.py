"""What a task does with its split: index entries and data in, columns out.

Memory is some MiB whatever the split's size: entries are read 32,768 at a time and data in
windows of 8 MiB. If no column needs data, no data file is opened.

Nothing here imports Spark; nothing is mapped, so a writer that cuts a torn tail does not pull
the ground away.

Next to read: `source.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore.columns import columns_for
from tubestore.decode import decode
from tubestore.entry_sources import EVERYTHING, Filter
from tubestore.errors import CorruptRecord, DataLoss
from tubestore.formats import PARTITIONS_PER_STORE
from tubestore.found_records import Data
from tubestore.kernels import rows_at
from tubestore.messages import STATE_OK
from tubestore.records import ENTRY_SIZE
from tubestore.shard_bytes import ShardBytes
from tubestore.spark.planning import Portion, Split
from tubestore.spark.shapes import Shape
from tubestore.vfs import OsVfs, Vfs

Array = np.ndarray[Any, Any]
_OK = pa.scalar(STATE_OK)


@dataclass(frozen=True)
class Reading:
    """How splits are read: goes to every task, and knows no split."""

    shape: Shape
    #: The columns that come out, in this order.
    schema: pa.Schema
    filter: Filter = EVERYTHING
    verify: bool = False
    fail_on_corrupt: bool = True

    def batches(self, split: Split, vfs: Vfs | None = None) -> Iterator[pa.RecordBatch]:
        """Read a split: batches of some MiB, in the order of its portions and their offsets.

        CorruptRecord at damage if `fail_on_corrupt`; DataLoss if files are no longer what the
        plan saw.
        """
        vfs = vfs or OsVfs()
        columns = self.shape.sources_of(self.schema.names)
        if self.fail_on_corrupt and columns_for(tuple(columns)).needs_data:
            columns = list(dict.fromkeys([*columns, "state", "partition_id", "offset"]))
        for portion in split.portions:
            for batch in read_portion(vfs, portion, columns, self.filter, verify=self.verify):
                if self.fail_on_corrupt and "state" in columns:
                    check_states(portion, batch)
                yield self.shape.arrange(batch, self.schema)


def read_portion(
    vfs: Vfs,
    portion: Portion,
    columns: Sequence[str],
    wanted: Filter = EVERYTHING,
    *,
    verify: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Read entries of one shard as columns of `MESSAGE_SCHEMA`; DataLoss if some are gone."""
    shard, bytes_ = portion.shard, ShardBytes(vfs, portion.shard)
    bounds = _Bounds(portion)
    wanted_columns = columns_for(tuple(columns), verify=verify)
    attributed = False
    try:
        for offset, entries in portion_entries(bytes_, portion):
            offsets, entries = bounds.chosen(offset, entries)
            if not wanted.is_empty:
                rows = np.flatnonzero(wanted.mask(entries))
                offsets, entries = offsets[rows], rows_at(entries, rows)
            name = (shard.topic, shard.store_id)
            if not wanted_columns.needs_data and len(entries):
                yield decode(*name, offsets, entries, None, wanted_columns)[0]
            elif len(entries):
                for window in bytes_.windows(entries):
                    part = slice(window.first, window.end)
                    data = None
                    if window.data is not None:
                        data = Data(window.data, window.data_start)
                        data.attributed = attributed  # as they were before: payloads are no bodies
                    yield decode(*name, offsets[part], entries[part], data, wanted_columns)[0]
                    attributed = data is not None and data.attributed
    except FileNotFoundError as error:
        raise _gone(portion, f"{error.filename} was removed") from error
    finally:
        bytes_.close()


def portion_entries(bytes_: ShardBytes, portion: Portion) -> Iterator[tuple[int, Array]]:
    """Go through exactly the entries of a portion: (offset of the first, some entries)."""
    at = portion.start
    for offset, entries in bytes_.entries(portion.start):
        entries = entries[: (portion.end - offset) // ENTRY_SIZE]
        if offset != at or not len(entries):
            break
        yield offset, entries
        at += ENTRY_SIZE * len(entries)
        if at == portion.end:
            return
    if at != portion.end:
        raise _gone(portion, f"the index ends at {at}")


def _gone(portion: Portion, what: str) -> DataLoss:
    shard = portion.shard
    return DataLoss(
        f"{shard.topic} store {shard.store_id}, offsets {portion.start} to {portion.end}: "
        f"{what} after the job was planned"
    )


class _Bounds:
    """The offsets of each partition that are wanted, as two tables by the partition's place."""

    def __init__(self, portion: Portion) -> None:
        self._all = not portion.limits and portion.others
        self._base = portion.shard.store_id * PARTITIONS_PER_STORE
        # One place more, for entries with a partition that no shard has.
        low, high = (portion.start, portion.end) if portion.others else (0, 0)
        self._lows = np.full(PARTITIONS_PER_STORE + 1, low, np.int64)
        self._highs = np.full(PARTITIONS_PER_STORE + 1, high, np.int64)
        for partition, start, end in portion.limits:
            self._lows[partition - self._base] = start
            self._highs[partition - self._base] = end

    def chosen(self, offset: int, entries: Array) -> tuple[Array, Array]:
        """Return offsets and entries of those that are wanted."""
        offsets = np.arange(offset, offset + ENTRY_SIZE * len(entries), ENTRY_SIZE, dtype=np.int64)
        if self._all:
            return offsets, entries
        places = entries["partition_id"].astype(np.int64) - self._base
        places[(places < 0) | (places >= PARTITIONS_PER_STORE)] = PARTITIONS_PER_STORE
        keep = (offsets >= self._lows[places]) & (offsets < self._highs[places])
        rows = np.flatnonzero(keep)
        return offsets[rows], rows_at(entries, rows)


def check_states(portion: Portion, batch: pa.RecordBatch) -> None:
    """Raise CorruptRecord for the first row that is not as it should be."""
    states = batch.column("state")
    if not pc.all(pc.equal(states, _OK)).as_py():
        values = states.to_pylist()
        row = next(n for n, state in enumerate(values) if state != STATE_OK)
        offset, partition = batch.column("offset")[row], batch.column("partition_id")[row]
        reason = (
            f"{values[row]} ({portion.shard.topic} partition {partition} offset {offset}; "
            f"failOnCorrupt=false gives a row with this state)"
        )
        raise CorruptRecord(portion.shard.directory, offset.as_py(), reason)
