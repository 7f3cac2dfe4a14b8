"""Which entries a read wants: of one partition, or of all; of a filter, between two times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tubestore.core.kernels import rows_at
from tubestore.reading.entry_rows import Rows, cut, fitting_rows, joined
from tubestore.reading.entry_sources import PORTION, PORTION_MAX, Filter, Source, rows_of
from tubestore.record.records import ENTRY_SIZE

Array = np.ndarray[Any, Any]


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
            while start < len(part.offsets):  # no more records are looked at than are wanted
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
    """Go through a partition's entries of a source that pass a filter, some at a time."""
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
        rows = wanted.confirmed(Rows(source.offsets(ordinals), entries, source.placed))
        if len(rows.offsets):
            yield rows
