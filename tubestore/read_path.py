"""Read one shard: files and memory joined, without the caller knowing.

A `ShardView` is what a reader sees at one moment: an immutable snapshot, taken under the
shard's append lock in a microsecond and read without any lock.

Next to read: `message_store.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tubestore.decode import decode
from tubestore.file_store import FileSnapshot, MsgFileStore, locate
from tubestore.kernels import rows_at
from tubestore.mem_store import Placed
from tubestore.messages import MESSAGE_SCHEMA
from tubestore.partition_index import PartitionIndex
from tubestore.records import ENTRY_SIZE

Array = np.ndarray[Any, Any]
ALL_COLUMNS: tuple[str, ...] = tuple(MESSAGE_SCHEMA.names)
SCAN_ROWS = 65_536
#: With portions of 32 MiB the allocator goes back to the system for each (half the rate).
SCAN_BYTES = 12 << 20


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages of a partition or shard are wanted; times in ms, half-open; None: all."""

    key_codes: frozenset[int] | None = None
    start_ms: int | None = None
    end_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything passes."""
        return self.key_codes is None and self.start_ms is None and self.end_ms is None

    def mask(self, entries: Array) -> Array:
        """Return which entries pass."""
        keep = np.ones(len(entries), bool)
        if self.key_codes is not None:
            keep &= np.isin(entries["key_code"], np.array(sorted(self.key_codes), np.int32))
        if self.start_ms is not None:
            keep &= entries["received_time"] >= self.start_ms
        if self.end_ms is not None:
            keep &= entries["received_time"] < self.end_ms
        return keep


EVERYTHING = Filter()


class Source(NamedTuple):
    """A stretch of index entries: a segment's or a memory batch's."""

    index_start: int
    entries: Array
    postings: Callable[[str], PartitionIndex] | None
    placed: Placed | None

    def offsets(self, ordinals: Array) -> Array:
        """Return the index offsets of some of its entries."""
        return self.index_start + ENTRY_SIZE * ordinals.astype(np.int64)


class Selection(NamedTuple):
    """Rows of one source that will be read."""

    source: Source
    offsets: Array
    entries: Array


class Pages(NamedTuple):
    """The columns that a read found, and where it ended."""

    batches: list[pa.RecordBatch]
    next_offset: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard as it was at one moment."""

    topic: str
    store_id: int
    files: MsgFileStore
    ends: FileSnapshot
    memory: tuple[Placed, ...]

    @property
    def index_start(self) -> int:
        """The first offset that is kept."""
        if self.ends.index_end == self.ends.index_start and self.memory:
            return self.memory[0].index_start
        return self.ends.index_start

    @property
    def index_end(self) -> int:
        """The offset after the last message."""
        return self.memory[-1].index_end if self.memory else self.ends.index_end

    def sources(self, start: int, end: int | None = None) -> Iterator[Source]:
        """Go through the stretches that hold offsets of [start, end), in order."""
        stop = self.ends.index_end if end is None else min(end, self.ends.index_end)
        if start < stop:
            for segment in self.ends.index_segments.between(start, stop):
                entries = self.files.entries(segment, stop)
                yield Source(segment.start, entries, self._postings_of(segment), None)
        for placed in self.memory:
            if placed.index_end > start and (end is None or placed.index_start < end):
                count = len(placed.batch)
                if end is not None:
                    count = min(count, -(-(end - placed.index_start) // ENTRY_SIZE))
                yield Source(placed.index_start, placed.batch.entries[:count], None, placed)

    def _postings_of(self, segment: Any) -> Callable[[str], PartitionIndex]:
        return lambda field: self.files.postings(segment, field)

    # -- one partition -----------------------------------------------------------------------

    def read(
        self,
        partition_id: int,
        offset: int,
        *,
        limit: int,
        max_bytes: int | None,
        columns: Sequence[str] = ALL_COLUMNS,
        wanted: Filter = EVERYTHING,
        verify: bool = False,
    ) -> Pages:
        """Read up to `limit` messages of a partition from `offset` on.

        `max_bytes` counts whole records; the first message is returned even if it is larger.
        """
        if limit == 0:
            return Pages([], offset, self._has_more(partition_id, offset, wanted))
        found: list[Selection] = []
        count, size, more = 0, 0, False
        for source in self.sources(offset):
            # One more than is wanted tells whether the page is truncated.
            ordinals = self._ordinals(source, partition_id, offset, limit - count + 1, wanted)
            if not len(ordinals):
                continue
            entries = rows_at(source.entries, ordinals)
            if not wanted.is_empty:
                keep = wanted.mask(entries)
                entries, ordinals = entries[keep], ordinals[keep]
            taken = min(len(entries), limit - count)
            if max_bytes is not None:
                totals = size + np.cumsum(entries["data_size"][:taken], dtype=np.int64)
                fitting = int(np.searchsorted(totals, max_bytes, side="right"))
                if fitting < taken:
                    taken = max(fitting, 0 if count else 1)
                    limit = count + taken  # the budget is spent
                size = int(totals[taken - 1]) if taken else size
            if taken:
                found.append(Selection(source, source.offsets(ordinals[:taken]), entries[:taken]))
                count += taken
            if count >= limit:
                more = taken < len(entries)
                break
        batches = [b for s in found for b in self.columns_of(s, columns, verify=verify)]
        if found and count >= limit:
            next_offset = int(found[-1].offsets[-1]) + ENTRY_SIZE
            more = more or self._has_more(partition_id, next_offset, wanted)
            return Pages(batches, next_offset, more)
        return Pages(batches, max(self.index_end, offset), False)

    def _ordinals(
        self, source: Source, partition_id: int, offset: int, limit: int, wanted: Filter
    ) -> Array:
        first = max(0, -(-(offset - source.index_start) // ENTRY_SIZE))
        if source.postings is None:
            ordinals = np.flatnonzero(source.entries["partition_id"] == partition_id)
            return ordinals[ordinals.searchsorted(first) :]
        lists = source.postings("partition_id")
        return lists.lookup(source.entries, partition_id, first, limit if wanted.is_empty else None)

    def _has_more(self, partition_id: int, offset: int, wanted: Filter) -> bool:
        for source in self.sources(offset):
            ordinals = self._ordinals(source, partition_id, offset, 1, wanted)
            if len(ordinals) and wanted.mask(source.entries[ordinals]).any():
                return True
        return False

    def counts(self) -> dict[int, int]:
        """Return how many messages each partition has."""
        totals: dict[int, int] = {}
        for source in self.sources(self.index_start):
            gone = (self.index_start - source.index_start) // ENTRY_SIZE
            if source.postings is not None and gone <= 0:
                found = source.postings("partition_id").counts(source.entries)
            else:
                ids = source.entries["partition_id"][max(0, gone) :]
                keys, sizes = np.unique(ids, return_counts=True)
                found = dict(zip(keys.tolist(), sizes.tolist(), strict=True))
            for key, size in found.items():
                totals[key] = totals.get(key, 0) + size
        return totals

    # -- the whole shard ---------------------------------------------------------------------

    def scan(
        self,
        columns: Sequence[str],
        wanted: Filter = EVERYTHING,
        *,
        start: int = 0,
        verify: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Go through all messages in the order of their offsets, some thousands at a time."""
        start = max(start, self.index_start)
        for source in self.sources(start):
            first = max(0, -(-(start - source.index_start) // ENTRY_SIZE))
            if wanted.key_codes is not None and source.postings is not None:
                lists = source.postings("key_code")
                found = [
                    lists.lookup(source.entries, code, first, None) for code in wanted.key_codes
                ]
                ordinals = np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
            else:
                ordinals = np.arange(first, len(source.entries))
            for rows in _portions(source.entries, ordinals):
                entries = rows_at(source.entries, rows)
                if not wanted.is_empty:
                    keep = wanted.mask(entries)
                    entries, rows = entries[keep], rows[keep]
                if len(rows):
                    chosen = Selection(source, source.offsets(rows), entries)
                    yield from self.columns_of(chosen, columns, verify=verify)

    # -- data --------------------------------------------------------------------------------

    def columns_of(
        self, chosen: Selection, columns: Sequence[str], *, verify: bool = False
    ) -> list[pa.RecordBatch]:
        """Fetch the records of a selection and return its columns, in the order of its rows."""
        source, offsets, entries = chosen
        name = (self.topic, self.store_id)
        if source.placed is not None:
            data = source.placed.batch.data.data
            start = source.placed.data_start
            return [decode(*name, offsets, entries, data, start, columns, verify=verify)]
        last = self.ends.data_segments.only
        if last is not None:  # what it does not hold is marked by `decode`
            view = self.files.record_bytes(last, self.ends.data_end)
            return [decode(*name, offsets, entries, view, last.start, columns, verify=verify)]
        low = int(entries["data_offset"].min())
        high = int((entries["data_offset"] + entries["data_size"]).max())
        segments = self.ends.data_segments.between(low, min(high, self.ends.data_end))
        groups = locate(entries, segments) if segments else []
        batches = []
        for segment, rows in groups:
            view = self.files.record_bytes(segment, self.ends.data_end)
            some = slice(None) if len(rows) == len(entries) else rows
            batches.append(
                decode(
                    *name, offsets[some], entries[some], view, segment.start, columns, verify=verify
                )
            )
        # A damaged entry can point to an earlier file than the one before it.
        pairs = itertools.pairwise(groups)
        ordered = all(one[1][-1] < other[1][0] for one, other in pairs)
        if not ordered or sum(len(rows) for _, rows in groups) < len(entries):
            return [self._with_missing(chosen, groups, batches, columns)]
        return batches

    def _with_missing(
        self,
        chosen: Selection,
        groups: list[tuple[Any, Array]],
        batches: list[pa.RecordBatch],
        columns: Sequence[str],
    ) -> pa.RecordBatch:
        """Put rows in their order, those whose data no file holds among the others."""
        found = np.concatenate([rows for _, rows in groups]) if groups else np.empty(0, np.int64)
        lost = np.setdiff1d(np.arange(len(chosen.entries)), found)
        missing = decode(
            self.topic,
            self.store_id,
            chosen.offsets[lost],
            chosen.entries[lost],
            None,
            0,
            columns,
        )
        order = np.argsort(np.concatenate([found, lost]), kind="stable")
        table = pa.Table.from_batches([*batches, missing]).take(pa.array(order))
        return table.combine_chunks().to_batches()[0]


def _portions(entries: Array, ordinals: Array) -> Iterator[Array]:
    """Split rows so that a portion has a bounded number of rows and bytes."""
    start = 0
    while start < len(ordinals):
        rows = ordinals[start : start + SCAN_ROWS]
        totals = np.cumsum(entries["data_size"][rows], dtype=np.int64)
        fitting = max(1, int(np.searchsorted(totals, SCAN_BYTES, side="right")))
        yield rows[:fitting]
        start += min(fitting, len(rows))
