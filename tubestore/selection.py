"""Which entries a read wants: of one partition, of many, of a filter, between two times.

Works on index entries alone; no data record is touched here. All of it runs on immutable
snapshots, without a lock.

Next to read: `read_path.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tubestore.formats import INDEX_ENTRY, PARTITIONS_PER_STORE
from tubestore.index_lists import IndexLists
from tubestore.kernels import ranks, rows_at
from tubestore.mem_store import Placed
from tubestore.partition_index import PartitionIndex
from tubestore.partition_totals import Totals, totals_of
from tubestore.records import ENTRY_SIZE
from tubestore.segment import FileSegment
from tubestore.time_index import TimeIndex

Array = np.ndarray[Any, Any]
#: Entries that are looked at together where a filter has to be asked of each.
_PORTION, _PORTION_MAX = 1024, 65_536
#: A shard has 10,000 partitions at most.
_OWNER_BITS = 14
_RAW_ENTRY = np.dtype(f"V{ENTRY_SIZE}")
_ENTRY_SIZE = np.int64(ENTRY_SIZE)


@dataclass(frozen=True)
class Filter:
    """Which messages of a partition or shard are wanted; times in ms, half-open; None: all."""

    key_codes: frozenset[int] | None = None
    start_ms: int | None = None
    end_ms: int | None = None

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


EVERYTHING = Filter()


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
        self._raw = entries.view(_RAW_ENTRY)

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

    def offsets(self, ordinals: Array, out: Array | None = None) -> Array:
        """Return the index offsets of some of its entries (int64)."""
        offsets = np.multiply(ordinals, _ENTRY_SIZE, out=out)
        offsets += self.index_start
        return offsets

    def take(self, ordinals: Array) -> Array:
        """Return some of its entries: as they lie if they stand in a row, else copied."""
        first, last = ordinals.item(0), ordinals.item(-1)
        if last - first == len(ordinals) - 1:
            return self.entries[first : last + 1]
        return _as_entries(self._raw.take(ordinals))

    def take_into(self, raw: Array, ordinals: Array) -> None:
        """Copy some of its entries; they are known to be there."""
        self._raw.take(ordinals, out=raw, mode="clip")  # else numpy copies them twice

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


class Rows(NamedTuple):
    """Some entries of a shard, in the order of their offsets: of the files, or of one batch."""

    offsets: Array
    entries: Array
    placed: Placed | None = None

    def part(self, start: int, end: int) -> Rows:
        """Return the rows [start, end)."""
        return Rows(self.offsets[start:end], self.entries[start:end], self.placed)


class Found(NamedTuple):
    """The entries that a read wants; `truncated`: there are more before the end."""

    rows: list[Rows]
    next_offset: int
    truncated: bool


def find(
    sources: Iterable[Source],
    partition_id: int,
    offset: int,
    *,
    limit: int,
    max_bytes: int | None,
    wanted: Filter,
    end: int,
) -> Found:
    """Find up to `limit` entries of a partition from `offset` on; `end`: where the view ends.

    `max_bytes` counts whole records; the first entry is found even if its record is larger.
    """
    # One more than is wanted tells whether there are more.
    if wanted.is_empty:
        rows, missing = _all_of(sources, partition_id, offset, limit + 1)
    else:
        rows, missing = _some_of(sources, partition_id, offset, limit + 1, wanted)
    truncated = not missing
    if truncated:
        rows = _cut(rows, limit)
    fitting = None if max_bytes is None else _fitting(rows, max_bytes)
    if fitting is not None:
        truncated = True
        rows = _cut(rows, fitting)
    if not truncated:
        return Found(rows, max(end, offset), False)
    return Found(rows, rows[-1].offsets.item(-1) + ENTRY_SIZE if rows else offset, True)


def _all_of(
    sources: Iterable[Source], partition_id: int, offset: int, missing: int
) -> tuple[list[Rows], int]:
    """Return up to `missing` entries of a partition, and how many are still missing."""
    found: list[tuple[Source, Array]] = []
    for source in sources:
        ordinals = source.of_partition(partition_id, source.ordinal(offset), missing)
        if len(ordinals):
            found.append((source, ordinals))
            missing -= len(ordinals)
            if not missing:
                break
    count = sum([source.placed is None for source, _ in found])  # those of the files come first
    parts = [_gathered(found[:count])] if count > 1 else []
    for source, ordinals in found[count if count > 1 else 0 :]:
        parts.append(Rows(source.offsets(ordinals), source.take(ordinals), source.placed))
    return parts, missing


def _gathered(found: list[tuple[Source, Array]]) -> Rows:
    """Put entries of several stretches of the files behind each other."""
    total = sum([len(ordinals) for _, ordinals in found])
    offsets, raw = np.empty(total, np.int64), np.empty(total, _RAW_ENTRY)
    start = 0
    for source, ordinals in found:
        end = start + len(ordinals)
        source.offsets(ordinals, offsets[start:end])
        source.take_into(raw[start:end], ordinals)
        start = end
    return Rows(offsets, _as_entries(raw))


def _as_entries(raw: Array) -> Array:
    """Present raw entries as structured ones; as `view`, in a third of the time."""
    return np.ndarray(len(raw), INDEX_ENTRY.dtype, raw)


def _some_of(
    sources: Iterable[Source], partition_id: int, offset: int, missing: int, wanted: Filter
) -> tuple[list[Rows], int]:
    """As `_all_of`, of those that pass a filter."""
    parts: list[Rows] = []
    for source in sources:
        for part in _passing(source, partition_id, source.ordinal(offset), wanted):
            parts.append(part.part(0, missing))
            missing -= len(parts[-1].offsets)
            if not missing:
                return _joined(parts), missing
    return _joined(parts), missing


def _passing(source: Source, partition_id: int, first: int, wanted: Filter) -> Iterator[Rows]:
    """Go through a partition's entries of a source that pass a filter, some at a time."""
    low, high = source.between(wanted, first)
    ordinals = source.of_partition(partition_id, low, None)
    if wanted.key_codes is not None:
        keyed = source.with_keys(wanted.key_codes, low)
        if len(keyed) < len(ordinals):
            ordinals = keyed
    ordinals = ordinals[: ordinals.searchsorted(ordinals.dtype.type(high))]
    start, size = 0, _PORTION
    while start < len(ordinals):
        some = ordinals[start : start + size]
        entries = source.take(some)
        keep = wanted.mask(entries) & (entries["partition_id"] == partition_id)
        if keep.any():
            some = some[keep]
            yield Rows(source.offsets(some), rows_at(entries, np.flatnonzero(keep)), source.placed)
        start, size = start + size, min(size * 4, _PORTION_MAX)


def _joined(parts: list[Rows]) -> list[Rows]:
    """Put those of the files together, which come first; each memory batch stays for itself."""
    count = sum(part.placed is None for part in parts)
    if count < 2:
        return parts
    raw = np.concatenate([part.entries.view(_RAW_ENTRY) for part in parts[:count]])
    offsets = np.concatenate([part.offsets for part in parts[:count]])
    return [Rows(offsets, raw.view(INDEX_ENTRY.dtype)), *parts[count:]]


def _cut(rows: list[Rows], count: int) -> list[Rows]:
    """Return the first `count` of them."""
    kept = []
    for part in rows:
        if count <= 0:
            break
        kept.append(part if len(part.offsets) <= count else part.part(0, count))
        count -= len(part.offsets)
    return kept


def _fitting(rows: list[Rows], max_bytes: int) -> int | None:
    """Return how many of the records fit, at least one; None if all do."""
    sizes = [part.entries["data_size"] for part in rows]
    if sum(int(np.add.reduce(s, dtype=np.int64)) for s in sizes) <= max_bytes or not sizes:
        return None
    totals = np.cumsum(np.concatenate(sizes), dtype=np.int64)
    fitting = max(1, int(totals.searchsorted(max_bytes, side="right")))
    return fitting if fitting < len(totals) else None


# -- many partitions ---------------------------------------------------------------------------


class FoundMany(NamedTuple):
    """The entries that a read of many partitions wants, and by partition where it ended."""

    rows: list[Rows]
    next_offsets: Array
    truncated: Array


def find_many(
    sources: Iterable[Source],
    partition_ids: Array,
    offsets: Array,
    *,
    limit: int,
    max_bytes: int | None,
    wanted: Filter,
    end: int,
) -> FoundMany:
    """As `find` for each of many partitions (ascending int64 ids), but `max_bytes` in all.

    The rows are in the order of their offsets, whatever their partition.
    """
    #: How many of each partition's entries were found, all that are wanted or more than `limit`.
    available = np.zeros(len(partition_ids), np.int64)
    parts: list[Rows] = []
    owners: list[Array] = []
    for source in sources:
        firsts = np.maximum(0, -(-(offsets - source.index_start) // ENTRY_SIZE))
        if wanted.is_empty:
            found = _of_each(source, partition_ids, firsts, limit, available)
        else:
            found = _passing_of_each(source, partition_ids, firsts, limit, available, wanted)
        for ordinals, owner in found:
            owners.append(owner)
            parts.append(Rows(source.offsets(ordinals), source.take(ordinals), source.placed))
        if (available > limit).all():
            break
    owner = np.concatenate(owners) if owners else np.empty(0, np.int64)
    places = np.concatenate([p.offsets for p in parts]) if parts else np.empty(0, np.int64)
    truncated = available > limit
    after = offsets.copy()
    after[owner] = places + ENTRY_SIZE  # the last row of each stays
    next_offsets = np.where(truncated, after, np.maximum(end, offsets))
    rows = _joined(parts)
    fitting = None if max_bytes is None else _fitting(rows, max_bytes)
    if fitting is not None:
        rows = _cut(rows, fitting)
        left_out = owner[fitting:][::-1]
        next_offsets[left_out] = places[fitting:][::-1]  # the first row of each stays
        truncated[left_out] = True
    return FoundMany(rows, next_offsets, truncated)


def _of_each(
    source: Source, partition_ids: Array, firsts: Array, limit: int, available: Array
) -> Iterator[tuple[Array, Array]]:
    """Return (ordinals, which partition's each is), up to `limit` of each; counts `available`."""
    found: list[Array] = []
    owning: list[Array] = []
    for run, lows, highs in source.partitions.ranges(source.entries, partition_ids, firsts):
        sizes = np.clip(limit - available, 0, highs - lows)
        available += highs - lows
        found.append(run.ordinals[_expand(lows, sizes)])
        owning.append(np.repeat(np.arange(len(partition_ids)), sizes))
    if found and len(ordinals := np.concatenate(found)):
        # Together as one number: numpy sorts values ten times as fast as it finds their order.
        both = np.left_shift(ordinals, _OWNER_BITS, dtype=np.int64)
        both |= np.concatenate(owning)
        both.sort()
        yield both >> _OWNER_BITS, both & ((1 << _OWNER_BITS) - 1)


def _passing_of_each(
    source: Source,
    partition_ids: Array,
    firsts: Array,
    limit: int,
    available: Array,
    wanted: Filter,
) -> Iterator[tuple[Array, Array]]:
    """As `_of_each` for what passes a filter, some at a time."""
    low, high = source.between(wanted, int(firsts.min(initial=0)))
    if wanted.key_codes is not None:
        ordinals = source.with_keys(wanted.key_codes, low)
    else:
        lists = [
            run.ordinals[_expand(lows, highs - lows)]
            for run, lows, highs in source.partitions.ranges(
                source.entries, partition_ids, np.maximum(firsts, low)
            )
        ]
        ordinals = np.sort(np.concatenate(lists)) if lists else np.empty(0, np.int32)
    ordinals = ordinals[: ordinals.searchsorted(ordinals.dtype.type(high))]
    start, size = 0, _PORTION
    while start < len(ordinals) and not (available > limit).all():
        some = ordinals[start : start + size]
        entries = source.take(some)
        places = partition_ids.searchsorted(entries["partition_id"])
        places = np.minimum(places, len(partition_ids) - 1)
        keep = wanted.mask(entries) & (partition_ids[places] == entries["partition_id"])
        keep &= some >= firsts[places]
        some, owner = some[keep], places[keep]
        if len(some):
            within = available[owner] + ranks(owner) < limit
            available += np.bincount(owner, minlength=len(partition_ids))
            if within.any():
                yield some[within], owner[within]
        start, size = start + size, min(size * 4, _PORTION_MAX)


def _expand(lows: Array, sizes: Array) -> Array:
    """Return low, low + 1, … of each row's size, one row behind the other."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(lows - (ends - sizes), sizes) + np.arange(total)


# -- everything --------------------------------------------------------------------------------


def portions(
    source: Source, wanted: Filter, first: int, rows_max: int, bytes_max: int
) -> Iterator[Rows]:
    """Go through the entries of a source from `first` on, a bounded number and size at a time."""
    low, high = source.between(wanted, first)
    keyed: Array | None = None
    if wanted.key_codes is not None:
        keyed = source.with_keys(wanted.key_codes, low)
        keyed = keyed[: keyed.searchsorted(keyed.dtype.type(high))]
    timed = wanted.start_ms is not None or wanted.end_ms is not None
    start, stop = (low, high) if keyed is None else (0, len(keyed))
    while start < stop:
        end = min(start + rows_max, stop)
        if keyed is None:
            entries, ordinals = source.entries[start:end], np.arange(start, end)
        else:
            ordinals = keyed[start:end]
            entries = source.take(ordinals)
        totals = np.cumsum(entries["data_size"], dtype=np.int64)
        fitting = max(1, int(totals.searchsorted(bytes_max, side="right")))
        entries, ordinals = entries[:fitting], ordinals[:fitting]
        start += len(ordinals)
        if timed:
            keep = np.flatnonzero(wanted.mask(entries))
            entries, ordinals = rows_at(entries, keep), ordinals[keep]
        if len(ordinals):
            yield Rows(source.offsets(ordinals), entries, source.placed)
