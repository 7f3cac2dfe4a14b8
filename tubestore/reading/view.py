"""One shard at one moment: files and memory, read as one.

A `ShardView` is an immutable snapshot: it is taken under the shard's append lock in a microsecond
and read without any lock. While nothing is written, the shard returns the same view again, with
everything that it has looked up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tubestore.core import kernels
from tubestore.core.kernels import rows_at
from tubestore.errors import CorruptRecord
from tubestore.reading.selection import Found, FoundMany, find, find_many, portions
from tubestore.reading.sources import EVERYTHING, Filter, Rows, Source
from tubestore.record.attributes import LENGTH_SIZE
from tubestore.record.columns import Columns, columns_for
from tubestore.record.decode import decode
from tubestore.record.layouts import ATTRIBUTE_TYPE, key_code_of
from tubestore.record.locate import Data
from tubestore.record.records import HEADER_SIZE, Placed
from tubestore.segments.file_store import Damage, FileSnapshot, MsgFileStore, locate
from tubestore.segments.segment import FileSegment

Array = np.ndarray[Any, Any]
SCAN_ROWS = 16_384
#: Copied records stay in a processor's cache until their headers and checksums were checked; with
#: 12 MiB a row takes a fifth longer, with 1 MiB the fixed costs show.
SCAN_BYTES = 4 << 20
#: Bytes of scattered records that are fetched together: checked records are then still in the cache
#: when they are copied, and the allocator reuses such pieces; 10 MiB take twice as long a row.
_FETCHED_BYTES = 2 << 20
#: So few rows are fetched without adding up their bytes.
_FEW_ROWS = 1000
#: Where the text of attributes begins in a record.
_ITEM_AT = HEADER_SIZE + LENGTH_SIZE
_ITEM = columns_for(("filter_item",))


class ShardView:
    """A shard as it was at one moment."""

    def __init__(
        self,
        topic: str,
        store_id: int,
        files: MsgFileStore,
        ends: FileSnapshot,
        memory: tuple[Placed, ...],
    ) -> None:
        self.topic, self.store_id = topic, store_id
        self.files, self.ends, self.memory = files, ends, memory
        #: The first offset that is kept, and the offset after the last message.
        self.index_start, self.index_end = ends.index_start, ends.index_end
        if memory:
            self.index_end = memory[-1].index_end
            if ends.index_end == ends.index_start:
                self.index_start = memory[0].index_start
        self._sources: dict[int, Source] = {}
        self._memory = [Source(p.index_start, p.batch.entries, placed=p) for p in memory]
        self._opened: dict[int, Data] = {}

    def sources(self, start: int) -> Iterator[Source]:
        """Yield the stretches that hold offsets from `start` on, in order."""
        if start < self.ends.index_end:
            for segment in self.ends.index_segments.between(start, self.ends.index_end):
                yield self._sources.get(segment.start) or self._source(segment)
        for source in self._memory:
            if source.index_end > start:
                yield source

    def backwards(self) -> Iterator[Source]:
        """Yield all stretches from the last to the first."""
        yield from reversed(self._memory)
        start, end = self.ends.index_start, self.ends.index_end
        if start < end:
            for segment in reversed(self.ends.index_segments.between(start, end)):
                yield self._sources.get(segment.start) or self._source(segment)

    def _source(self, segment: FileSegment) -> Source:
        entries = self.files.entries(segment, self.ends.index_end)
        source = Source(segment.start, entries, segment, self.files.lists)
        self._sources[segment.start] = source
        return source

    # -- which entries -----------------------------------------------------------------------

    def find(
        self,
        partition_id: int,
        offset: int,
        *,
        limit: int,
        max_bytes: int | None,
        wanted: Filter = EVERYTHING,
    ) -> Found:
        """Find up to `limit` messages of a partition from `offset` on.

        `max_bytes` counts whole records; the first message is found even if it is larger.
        """
        return find(
            self.sources(offset),
            partition_id,
            offset,
            limit=limit,
            max_bytes=max_bytes,
            wanted=self._asking(wanted),
            end=self.index_end,
        )

    def find_many(
        self,
        partition_ids: Array,
        offsets: Array,
        *,
        limit: int,
        max_bytes: int | None,
        wanted: Filter = EVERYTHING,
    ) -> FoundMany:
        """As `find` for each of many partitions, but `max_bytes` in all."""
        return find_many(
            self.sources(int(offsets.min())),
            partition_ids,
            offsets,
            limit=limit,
            max_bytes=max_bytes,
            wanted=self._asking(wanted),
            end=self.index_end,
        )

    def _asking(self, wanted: Filter) -> Filter:
        """Return a filter that compares its items with the records, too."""
        if wanted.items is None:
            return wanted
        return replace(wanted, stored=partial(self._have_items, wanted))

    def _have_items(self, wanted: Filter, rows: Rows) -> Array:
        """Return which rows have a wanted item, or none, in their records.

        Usually TubeMQ's text begins with the wanted item: then bytes are compared, and nothing is
        decoded. Only items with equal hashes need the rest.
        """
        assert wanted.items is not None
        keep = np.zeros(len(rows.offsets), bool)
        data = self._data_of_all(rows)
        if data is not None:
            starts = rows.entries["data_offset"].astype(np.int64) - data.start + _ITEM_AT
            for item in wanted.items:
                text = np.frombuffer(f"{ATTRIBUTE_TYPE}={item},".encode(), np.uint8)
                mine = np.flatnonzero(
                    (rows.entries["key_code"] == key_code_of(item))
                    & (starts >= 0)
                    & (starts <= data.size - len(text))
                )
                found = kernels.gather(data.bytes, starts[mine], np.dtype(f"V{len(text)}"))
                keep[mine] = (found.view(np.uint8).reshape(-1, len(text)) == text).all(axis=1)
        others = np.flatnonzero(~keep)
        if len(others):
            part = Rows(rows.offsets[others], rows_at(rows.entries, others), rows.placed)
            stored = [batch.column(0) for batch in self.columns_of(part, _ITEM)]
            keep[others] = wanted.admits(pa.chunked_array(stored).combine_chunks())
        return keep

    def _data_of_all(self, rows: Rows) -> Data | None:
        """Return the data with the records of all rows; None if they are in several files."""
        if rows.placed is not None:
            return Data(rows.placed.batch.data.data, rows.placed.data_start)
        segment = self._segment_of(rows.entries["data_offset"].astype(np.int64))
        return None if segment is None else self._data_of(segment)

    def counts(self, start: int = 0) -> dict[int, int]:
        """Return how many messages each partition has from an offset on."""
        start = max(start, self.index_start)
        totals: dict[int, int] = {}
        for source in self.sources(start):
            first = source.ordinal(start)
            for key, size in source.partitions.counts(source.entries, first).items():
                totals[key] = totals.get(key, 0) + size
        return totals

    def portions(
        self, wanted: Filter = EVERYTHING, *, start: int = 0, rows: int = SCAN_ROWS
    ) -> Iterator[Rows]:
        """Yield the entries of all messages by offset, a portion of at most `rows` at a time."""
        start, wanted = max(start, self.index_start), self._asking(wanted)
        for source in self.sources(start):
            yield from portions(source, wanted, source.ordinal(start), rows, SCAN_BYTES)

    def scan(
        self, columns: Columns, wanted: Filter = EVERYTHING, *, start: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield all messages by offset, some thousands at a time."""
        for rows in self.portions(wanted, start=start):
            yield from self.columns_of(rows, columns)

    # -- data --------------------------------------------------------------------------------

    def batches_of(self, found: list[Rows], columns: Columns) -> list[pa.RecordBatch]:
        """Fetch the records of found rows in their order, some thousands at a time."""
        batches: list[pa.RecordBatch] = []
        for rows in found:
            if len(rows.offsets) <= _FEW_ROWS or not columns.needs_data:
                batches += self.columns_of(rows, columns)
                continue
            totals = np.cumsum(rows.entries["data_size"], dtype=np.int64)
            start = 0
            while start < len(totals):
                behind = totals.item(start - 1) if start else 0
                end = max(start + 1, int(totals.searchsorted(behind + _FETCHED_BYTES, "right")))
                batches += self.columns_of(rows.part(start, end), columns)
                start = end
        return batches

    def columns_of(self, rows: Rows, columns: Columns) -> list[pa.RecordBatch]:
        """Return the columns of some rows' records, in the order of the rows."""
        if rows.placed is not None:
            return [self._decode(rows, self._data_of_all(rows), columns)]
        if not columns.needs_data:
            return [self._decode(rows, None, columns)]
        entries = rows.entries
        damages = self._damages_of(entries) if self.files.damages else []
        if damages:
            columns = columns_for(
                columns.names,
                verify=True,
                strict=columns.strict,
                own_offset=any(damage.is_misplaced for damage in damages),
            )
        positions = entries["data_offset"].astype(np.int64)
        segment = self._segment_of(positions)
        if segment is not None:
            return [self._decode(rows, self._data_of(segment), columns, positions)]
        groups = self._groups(entries, positions)
        batches = [
            self._decode(Rows(rows.offsets[some], entries[some]), self._data_of(segment), columns)
            for segment, some in groups
        ]
        # A damaged entry can point to an earlier file than the one before it.
        pairs = itertools.pairwise(groups)
        ordered = all(one[1][-1] < other[1][0] for one, other in pairs)
        if not ordered or sum(len(some) for _, some in groups) < len(entries):
            return [self._with_missing(rows, groups, batches, columns)]
        return batches

    def _segment_of(self, positions: Array) -> FileSegment | None:
        """Return the data segment that has all records; None if there are several."""
        segments = self.ends.data_segments
        if segments.only is not None:
            return segments.only  # what it does not hold is marked by `decode`
        segment = segments.find(positions.item(0))
        if segment is None or positions.item(-1) >= segment.end:
            return None
        low, high = np.minimum.reduce(positions), np.maximum.reduce(positions)
        return segment if segment.start <= low and high < segment.end else None

    def _groups(self, entries: Array, positions: Array) -> list[tuple[FileSegment, Array]]:
        """Split records by their data segments: (segment, row numbers)."""
        high = int((positions + entries["data_size"]).max())
        segments = self.ends.data_segments.between(
            int(positions.min()), min(high, self.ends.data_end)
        )
        return locate(positions, segments) if segments else []

    def _data_of(self, segment: FileSegment) -> Data:
        data = self._opened.get(segment.start)
        if data is None:
            view = self.files.record_bytes(segment, self.ends.data_end)
            data = self._opened[segment.start] = Data(view, segment.start, lasting=segment.sealed)
        return data

    def _decode(
        self, rows: Rows, data: Data | None, columns: Columns, positions: Array | None = None
    ) -> pa.RecordBatch:
        batch, bad = decode(
            self.topic, self.store_id, rows.offsets, rows.entries, data, columns, positions
        )
        if bad is not None and columns.strict:
            row, state = bad
            offset = int(rows.offsets[row])
            partition = int(rows.entries["partition_id"][row])
            where = f"{self.topic} partition {partition} offset {offset}"
            raise CorruptRecord(self.files.directory, offset, f"{state} ({where})")
        return batch

    def _damages_of(self, entries: Array) -> list[Damage]:
        """Return the damage that opening found in some of these records."""
        starts = entries["data_offset"].astype(np.int64)
        ends = starts + entries["data_size"]
        return [
            damage
            for damage in self.files.damages
            if bool(((starts < damage.end) & (ends > damage.start)).any())
        ]

    def _with_missing(
        self,
        rows: Rows,
        groups: list[tuple[Any, Array]],
        batches: list[pa.RecordBatch],
        columns: Columns,
    ) -> pa.RecordBatch:
        """Join batches in the order of the rows; rows without their data are missing."""
        found = np.concatenate([some for _, some in groups]) if groups else np.empty(0, np.int64)
        lost = np.setdiff1d(np.arange(len(rows.entries)), found)
        missing = self._decode(Rows(rows.offsets[lost], rows.entries[lost]), None, columns)
        order = np.argsort(np.concatenate([found, lost]), kind="stable")
        table = pa.Table.from_batches([*batches, missing]).take(pa.array(order))
        return table.combine_chunks().to_batches()[0]
