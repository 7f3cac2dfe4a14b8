"""Stretches of index entries that a reader may see, and which of a stretch's are wanted.

Works on index entries alone; no data record is touched here. All of it runs on immutable
snapshots, without a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore.core.kernels import rows_at
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.reading.entry_rows import RAW_ENTRY, Rows, as_entries
from tubestore.record.layouts import key_code_of
from tubestore.record.records import ENTRY_SIZE, Placed
from tubestore.segments.lookup import IndexLists
from tubestore.segments.partition_totals import Totals, totals_of
from tubestore.segments.postings import PartitionIndex
from tubestore.segments.segment import FileSegment
from tubestore.segments.times import TimeIndex

Array = np.ndarray[Any, Any]
#: Entries that are looked at together where a filter has to be asked of each.
PORTION, PORTION_MAX = 1024, 65_536
_ENTRY_SIZE = np.int64(ENTRY_SIZE)


@dataclass(frozen=True)
class Filter:
    """Which messages of a partition or shard are wanted; times in ms, half-open; None: all.

    An index entry has a filter item's 32-bit hash, which two items may share; the item itself is
    in the record. `items`: what the records are asked for, by `stored`, which the view sets.
    """

    key_codes: frozenset[int] | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    items: frozenset[str] | None = None
    stored: Callable[[Rows], Array] | None = None

    @cached_property
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

    def confirmed(self, rows: Rows) -> Rows:
        """Return the rows, of those that pass by their entries, whose records have the items."""
        if self.stored is None or not len(rows.offsets):
            return rows
        keep = self.stored(rows)
        if keep.all():
            return rows
        places = np.flatnonzero(keep)
        return Rows(rows.offsets[places], rows_at(rows.entries, places), rows.placed)

    def admits(self, stored: pa.Array | pa.ChunkedArray) -> Array:
        """Return which stored items are not other ones; a row that has none is let through."""
        known = pa.array(sorted(self.items or ()), stored.type)
        return np.asarray(pc.or_(pc.is_in(stored, value_set=known), pc.is_null(stored)))


EVERYTHING = Filter()


def item_filter(
    items: Iterable[str] | None, start_ms: int | None = None, end_ms: int | None = None
) -> Filter:
    """Return a filter for items (None: all messages) that were received in [start, end)."""
    if items is None:
        return Filter(None, start_ms, end_ms)
    listed = list(items)
    trimmed = frozenset(item.strip() for item in listed if item)
    return Filter(frozenset(map(key_code_of, listed)), start_ms, end_ms, trimmed)


class Source:
    """A stretch of index entries that a reader may see: a segment's, or a memory batch's."""

    def __init__(
        self,
        index_start: int,
        entries: Array,
        segment: FileSegment | None = None,
        lists: IndexLists | None = None,
        placed: Placed | None = None,
    ) -> None:
        self.index_start, self.entries, self.placed = index_start, entries, placed
        self.index_end = index_start + ENTRY_SIZE * len(entries)
        self._segment, self._lists = segment, lists
        self._raw = entries.view(RAW_ENTRY)

    @cached_property
    def partitions(self) -> PartitionIndex:
        """The posting lists of the partitions."""
        return self.lists("partition_id")

    @cached_property
    def times(self) -> TimeIndex:
        """The times of the entries."""
        if self._segment is None or self._lists is None:
            return TimeIndex()
        return self._lists.times(self._segment)

    def lists(self, field: str) -> PartitionIndex:
        """Return the posting lists of the entries by "partition_id" or "key_code"."""
        if self._segment is None or self._lists is None:
            first = int(self.entries["partition_id"][0]) // PARTITIONS_PER_STORE
            return PartitionIndex(field, first * PARTITIONS_PER_STORE)
        return self._lists.postings(self._segment, field)

    def totals(self, store_id: int, start: int) -> Totals:
        """Return what each partition has from the offset `start` on; remembered of a segment."""
        first = self.ordinal(start)
        if first == 0 and self._segment is not None and self._lists is not None:
            return self._lists.totals(self._segment).of(self.entries)
        offset = self.index_start + ENTRY_SIZE * first
        return totals_of(self.entries[first:], offset, store_id * PARTITIONS_PER_STORE)

    def ordinal(self, offset: int) -> int:
        """Return the first ordinal at or behind an index offset."""
        return max(0, -(-(offset - self.index_start) // ENTRY_SIZE))

    def offsets(self, ordinals: Array) -> Array:
        """Return the index offsets of some of its entries (int64)."""
        offsets = np.multiply(ordinals, _ENTRY_SIZE)
        if self.index_start:
            offsets += self.index_start
        return offsets

    def take(self, ordinals: Array) -> Array:
        """Return some of its entries: as they lie if they stand in a row, else copied."""
        first, last = ordinals.item(0), ordinals.item(-1)
        if last - first == len(ordinals) - 1:
            return self.entries[first : last + 1]
        return as_entries(self._raw.take(ordinals))

    def gather(self, ordinals: Array, offsets: Array, raw: Array) -> None:
        """Fill in the offsets (int64) and raw bytes of some of its entries; they are there."""
        offsets[:] = ordinals
        self._raw.take(offsets, out=raw, mode="clip")  # else numpy copies them twice
        offsets *= _ENTRY_SIZE
        if self.index_start:
            offsets += self.index_start

    def of_partition(self, partition_id: int, first: int, limit: int | None) -> Array:
        """Return up to `limit` ordinals >= `first` of a partition, ascending."""
        if self._segment is None:
            ordinals = np.flatnonzero(self.entries["partition_id"] == partition_id)
            return ordinals[ordinals.searchsorted(first) :][:limit]
        return self.partitions.lookup(self.entries, partition_id, first, limit)

    def with_keys(self, key_codes: frozenset[int], first: int) -> Array:
        """Return the ordinals >= `first` of entries with any of some key codes, ascending."""
        if self._segment is None:
            keep = Filter(key_codes).mask(self.entries[first:])
            return np.flatnonzero(keep) + first
        lists = self.lists("key_code")
        found = [lists.lookup(self.entries, code, first, None) for code in key_codes]
        if len(found) == 1:
            return found[0]
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)

    def between(self, wanted: Filter, first: int) -> tuple[int, int]:
        """Return [low, high): outside of it, from `first` on, no entry has a wanted time."""
        low, high = first, len(self.entries)
        if wanted.start_ms is not None:
            low = self.times.first_from(self.entries, wanted.start_ms, first)
        if wanted.end_ms is not None:
            high = self.times.end_before(self.entries, wanted.end_ms)
        return low, max(low, high)


def rows_of(found: list[tuple[Source, Array]]) -> list[Rows]:
    """Return entries of stretches by their ordinals: those of the files, which come first, as one.

    Each batch in memory stays for itself.
    """
    count = sum([source.placed is None for source, _ in found])
    parts = [_gathered(found[:count])] if count > 1 else []
    for source, ordinals in found[count if count > 1 else 0 :]:
        parts.append(Rows(source.offsets(ordinals), source.take(ordinals), source.placed))
    return parts


def _gathered(found: list[tuple[Source, Array]]) -> Rows:
    """Put entries of several stretches of the files behind each other."""
    total = sum([len(ordinals) for _, ordinals in found])
    offsets, raw = np.empty(total, np.int64), np.empty(total, RAW_ENTRY)
    start = 0
    for source, ordinals in found:
        end = start + len(ordinals)
        source.gather(ordinals, offsets[start:end], raw[start:end])
        start = end
    return Rows(offsets, as_entries(raw))
