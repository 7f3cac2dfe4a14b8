"""Which entries a read of many partitions wants: as `selection.py`, for all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tubestore.core.kernels import ranks, rows_at
from tubestore.reading.entry_rows import Rows, cut, fitting_rows
from tubestore.reading.entry_sources import PORTION, PORTION_MAX, Filter, Source, rows_of
from tubestore.record.records import ENTRY_SIZE

Array = np.ndarray[Any, Any]
#: A shard has 10,000 partitions at most.
_OWNER_BITS = 14


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
    """Return low, low + 1, … of each row's size, one row behind the other."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(lows - (ends - sizes), sizes) + np.arange(total)
