"""Which entries a read wants: of one partition, of many, or of a whole shard.

Each of the three takes a filter. `find` and `find_many` stop at a limit and return rows with the
offset to go on from; `portions` goes through everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tubestore.core.kernels import ranks, rows_at
from tubestore.reading.sources import (
    PORTION,
    PORTION_MAX,
    Filter,
    Rows,
    Source,
    cut,
    fitting_rows,
    joined,
    rows_of,
)
from tubestore.record.records import ENTRY_SIZE

Array = np.ndarray[Any, Any]
#: Bits of a partition's number: a shard has 10,000 partitions at most.
_OWNER_BITS = 14


# -- one partition -------------------------------------------------------------------------------


class Found(NamedTuple):
    """The entries that a read wants; `truncated` is True if more follow before the end."""

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
    # One more than is wanted: if it is found, the answer is truncated.
    if wanted.is_empty:
        rows, missing = _all_of(sources, partition_id, offset, limit + 1)
    else:
        rows, missing = _some_of(sources, partition_id, offset, limit + 1, wanted)
    truncated = not missing
    if truncated:
        rows = cut(rows, limit)
    fitting = None if max_bytes is None else fitting_rows(rows, max_bytes)
    if fitting is not None:
        truncated = True
        rows = cut(rows, fitting)
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
    return rows_of(found), missing


def _some_of(
    sources: Iterable[Source], partition_id: int, offset: int, missing: int, wanted: Filter
) -> tuple[list[Rows], int]:
    """As `_all_of`, of those that pass a filter."""
    parts: list[Rows] = []
    for source in sources:
        for part in _passing(source, partition_id, source.ordinal(offset), wanted):
            start = 0
            while start < len(part.offsets):  # reads no more records than are wanted
                some = part.part(start, start + missing)
                start += len(some.offsets)
                confirmed = wanted.confirmed(some)
                if not len(confirmed.offsets):
                    continue
                parts.append(confirmed)
                missing -= len(confirmed.offsets)
                if not missing:
                    return joined(parts), missing
    return joined(parts), missing


def _passing(source: Source, partition_id: int, first: int, wanted: Filter) -> Iterator[Rows]:
    """Yield the entries of a partition that pass a filter, a portion at a time."""
    low, high = source.between(wanted, first)
    ordinals = source.of_partition(partition_id, low, None)
    if wanted.key_codes is not None:
        keyed = source.with_keys(wanted.key_codes, low)
        if len(keyed) < len(ordinals):
            ordinals = keyed
    ordinals = ordinals[: ordinals.searchsorted(ordinals.dtype.type(high))]
    start, size = 0, PORTION
    while start < len(ordinals):
        some = ordinals[start : start + size]
        entries = source.take(some)
        keep = wanted.mask(entries) & (entries["partition_id"] == partition_id)
        if keep.any():
            some = some[keep]
            yield Rows(source.offsets(some), rows_at(entries, np.flatnonzero(keep)), source.placed)
        start, size = start + size, min(size * 4, PORTION_MAX)


# -- many partitions -----------------------------------------------------------------------------


class FoundMany(NamedTuple):
    """The entries that a read of many partitions wants; for each, where it ended."""

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
    #: Wanted entries found for each partition; counted until they exceed `limit`.
    available = np.zeros(len(partition_ids), np.int64)
    chosen: list[tuple[Source, Array]] = []
    owners: list[Array] = []
    for source in sources:
        firsts = np.maximum(0, -(-(offsets - source.index_start) // ENTRY_SIZE))
        if wanted.is_empty:
            found = _of_each(source, partition_ids, firsts, limit, available)
        else:
            found = _passing_of_each(source, partition_ids, firsts, limit, available, wanted)
        for ordinals, owner in found:
            owners.append(owner)
            chosen.append((source, ordinals))
        if (available > limit).all():
            break
    owner = np.concatenate(owners) if owners else np.empty(0, np.int64)
    rows = rows_of(chosen)
    places = np.concatenate([p.offsets for p in rows]) if rows else np.empty(0, np.int64)
    truncated = available > limit
    after = offsets.copy()
    after[owner] = places + ENTRY_SIZE  # the last row of each stays
    next_offsets = np.where(truncated, after, np.maximum(end, offsets))
    fitting = None if max_bytes is None else fitting_rows(rows, max_bytes)
    if fitting is not None:
        rows = cut(rows, fitting)
        left_out = owner[fitting:][::-1]
        next_offsets[left_out] = places[fitting:][::-1]  # the first row of each stays
        truncated[left_out] = True
    return FoundMany(rows, next_offsets, truncated)


def _of_each(
    source: Source, partition_ids: Array, firsts: Array, limit: int, available: Array
) -> Iterator[tuple[Array, Array]]:
    """Yield (ordinals, their partitions), up to `limit` of each; counts `available`."""
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
    """As `_of_each`, for entries that pass a filter, a portion at a time."""
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
    start, size = 0, PORTION
    while start < len(ordinals) and not (available > limit).all():
        some = ordinals[start : start + size]
        entries = source.take(some)
        places = partition_ids.searchsorted(entries["partition_id"])
        places = np.minimum(places, len(partition_ids) - 1)
        keep = wanted.mask(entries) & (partition_ids[places] == entries["partition_id"])
        keep &= some >= firsts[places]
        if wanted.stored is not None:
            asked = np.flatnonzero(keep)
            asked = asked[available[places[asked]] <= limit]
            rows = Rows(source.offsets(some[asked]), rows_at(entries, asked), source.placed)
            keep[asked] = wanted.stored(rows) if len(asked) else False
        some, owner = some[keep], places[keep]
        if len(some):
            within = available[owner] + ranks(owner) < limit
            available += np.bincount(owner, minlength=len(partition_ids))
            if within.any():
                yield some[within], owner[within]
        start, size = start + size, min(size * 4, PORTION_MAX)


def _expand(lows: Array, sizes: Array) -> Array:
    """Return the ranges [low, low + size) of all rows, joined."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(lows - (ends - sizes), sizes) + np.arange(total)


# -- a whole shard -------------------------------------------------------------------------------


def portions(
    source: Source, wanted: Filter, first: int, rows_max: int, bytes_max: int
) -> Iterator[Rows]:
    """Yield the entries of a source from `first` on, bounded in number and bytes."""
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
        rows = wanted.confirmed(Rows(source.offsets(ordinals), entries, source.placed))
        if len(rows.offsets):
            yield rows
