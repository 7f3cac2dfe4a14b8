"""What a task does with its split: index entries and data in, columns out.

Memory is some MiB whatever the split's size: entries are read 32,768 at a time and data in
windows of 1 MiB. If no column needs data, no data file is opened.

Nothing here imports Spark. Nothing is mapped: a writer that cuts a torn tail would pull the ground
away, and a page fault each 64 KiB takes longer than the copy into a window that stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tubestore.core.kernels import joined, offsets_of, rows_at
from tubestore.core.vfs import Vfs
from tubestore.disks.roots import disk_of
from tubestore.errors import CorruptRecord, DataLoss
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.reading.sources import EVERYTHING, Filter
from tubestore.record.columns import FROM_DATA, Columns, columns_for
from tubestore.record.decode import decode
from tubestore.record.locate import Data
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.shard_bytes import WINDOW_BYTES, ShardBytes, Window
from tubestore.spark.kit.shapes import Shape, as_type
from tubestore.spark.planning import Portion, Split

Array = np.ndarray[Any, Any]
#: Where at most this part of a window's bytes is wanted, it is joined with others.
_SPARSE = 4


@dataclass(frozen=True)
class Reading:
    """How splits are read; sent to every task, without a split."""

    shape: Shape
    #: The columns that come out, in this order.
    schema: pa.Schema
    #: Where the splits lie.
    root: str
    filter: Filter = EVERYTHING
    verify: bool = False
    fail_on_corrupt: bool = True

    @cached_property
    def _known(self) -> Columns:
        """The columns that come from the index."""
        names = self.shape.sources_of(self.schema.names)
        return columns_for(tuple(name for name in names if name not in FROM_DATA))

    @cached_property
    def _found(self) -> Columns:
        """The columns that come from the data."""
        names = self.shape.sources_of(self.schema.names)
        found = [name for name in names if name in FROM_DATA]
        if self.filter.items is not None and "filter_item" not in found:
            found.append("filter_item")  # to be compared
        return columns_for(tuple(found), verify=self.verify)

    def batches(self, split: Split, vfs: Vfs | None = None) -> Iterator[pa.RecordBatch]:
        """Read a split: batches of some MiB, in the order of its portions and their offsets.

        CorruptRecord at damage if `fail_on_corrupt`; DataLoss if files are no longer what the
        plan saw.
        """
        vfs = vfs or disk_of(self.root)
        for portion in split.portions:
            bytes_ = ShardBytes(vfs, portion.shard)
            try:
                yield from self._portion(portion, bytes_)
            except FileNotFoundError as error:
                raise _gone(portion, f"{error.filename} was removed") from error
            finally:
                bytes_.close()

    def _portion(self, portion: Portion, bytes_: ShardBytes) -> Iterator[pa.RecordBatch]:
        shard, bounds, attributed = portion.shard, _Bounds(portion), False
        for offset, entries in portion_entries(bytes_, portion):
            offsets, entries = bounds.chosen(offset, entries)
            if not self.filter.is_empty:
                rows = np.flatnonzero(self.filter.mask(entries))
                offsets, entries = offsets[rows], rows_at(entries, rows)
            if not len(entries):
                continue
            # The index's columns are made for all at once: window by window they cost as much as
            # the data.
            known, _ = decode(shard.topic, shard.store_id, offsets, entries, None, self._known)
            columns = self._arranged(known)
            if not self._found.needs_data:
                yield pa.RecordBatch.from_arrays(list(columns.values()), schema=self.schema)
                continue
            for part, placed, window, start in gathered(bytes_, entries):
                data = None
                if window is not None:
                    data = Data(window, start)
                    data.attributed = attributed  # as they were before: payloads are no bodies
                found, bad = decode(
                    shard.topic, shard.store_id, offsets[part], placed, data, self._found
                )
                if bad is not None and self.fail_on_corrupt:
                    row, state = bad
                    raise _corrupt(portion, offsets[part][row], entries[part][row], state)
                joined = self._joined(columns, part.start, found)
                if self.filter.items is not None:
                    keep = self.filter.admits(found.column("filter_item"))
                    joined = joined if keep.all() else joined.filter(pa.array(keep))
                yield joined
                attributed = data is not None and data.attributed

    def _arranged(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return those columns that are made from columns of `batch`, or from nothing."""
        found = {}
        for field in self.schema:
            source = self.shape.source_of(field.name)
            if source is None:
                found[field.name] = pa.nulls(batch.num_rows, field.type)
            elif source in batch.schema.names:
                found[field.name] = as_type(batch.column(source), field.type)
        return found

    def _joined(
        self, columns: Mapping[str, pa.Array], first: int, found: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Join the data columns of some rows, from `first` on, with those of the index."""
        count, arrays = found.num_rows, []
        for field in self.schema:
            known = columns.get(field.name)
            if known is not None:
                arrays.append(known.slice(first, count))
            else:
                arrays.append(as_type(found.column(self.shape.source_of(field.name)), field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def gathered(
    bytes_: ShardBytes, entries: Array
) -> Iterator[tuple[slice, Array, memoryview | None, int]]:
    """Read records: (rows, their entries, the bytes that hold them if any do, where those begin).

    Decoding costs by the piece, so where little of a window is wanted, that is joined with the same
    of the windows behind it. The entries then have places in the joined bytes.
    """
    held: list[Array] = []
    first = size = 0
    for window in bytes_.windows(entries):
        part = entries[window.first : window.end]
        wanted = int(part["data_size"].sum(dtype=np.int64))
        sparse = _is_sparse(part, window, wanted)
        if held and (not sparse or size + wanted > WINDOW_BYTES):
            yield _put_together(entries, slice(first, window.first), held)
            held, size = [], 0
        if not sparse:
            yield slice(window.first, window.end), part, window.data, window.data_start
            continue
        first = first if held else window.first
        starts = part["data_offset"].astype(np.int64) - window.data_start
        assert window.data is not None
        # A copy, unless it is all of the window: what lies between is let go.
        held.append(joined(window.data, starts, part["data_size"].astype(np.int64))[0])
        size += wanted
    if held:
        yield _put_together(entries, slice(first, len(entries)), held)


def _is_sparse(part: Array, window: Window, wanted: int) -> bool:
    """True if little of a window is wanted, and all of that is there."""
    if window.data is None or wanted * _SPARSE > WINDOW_BYTES:
        return False
    end = int(part[-1]["data_offset"]) + int(part[-1]["data_size"]) - window.data_start
    return end <= len(window.data)


def _put_together(
    entries: Array, rows: slice, pieces: list[Array]
) -> tuple[slice, Array, memoryview, int]:
    """Return rows, their records one behind the other, and entries that point there."""
    placed = entries[rows].copy()
    placed["data_offset"] = offsets_of(placed["data_size"].astype(np.int64))[:-1]
    data = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return rows, placed, data.data, 0


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


def _corrupt(portion: Portion, offset: int, entry: Any, state: str) -> CorruptRecord:
    where = f"{portion.shard.topic} partition {entry['partition_id']} offset {offset}"
    reason = f"{state} ({where}; failOnCorrupt=false gives a row with this state)"
    return CorruptRecord(portion.shard.directory, int(offset), reason)


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
