"""Positions in a shard: offsets by time and by count, and totals of each partition.

Posting lists and times answer; data is not touched. An offset is a byte position in the index,
common to all partitions of the shard, so "the next but ten" is a matter of counting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tubestore.options import PARTITIONS_PER_STORE
from tubestore.reading.sources import Source
from tubestore.segments.summaries import NOTHING, Totals

Array = np.ndarray[Any, Any]
_CHUNK, _CHUNK_MAX = 64, 65_536
_LATEST = (1 << 63) - 1


class Place(NamedTuple):
    """A message's offset and when it was received (ms)."""

    offset: int
    time: int


def first_from(sources: Iterable[Source], partition_id: int, start: int, time: int) -> Place | None:
    """Return the first message of a partition, from `start` on, received at or after `time`."""
    for source in sources:
        low = source.times.first_from(source.entries, time, source.ordinal(start))
        if low == len(source.entries):
            continue
        for ordinals in _chunks(source.of_partition(partition_id, low, None)):
            times = source.take(ordinals)["received_time"]
            found = np.flatnonzero(times >= time)
            if len(found):
                return _place(source, ordinals, times, int(found[0]))
    return None


def last_until(sources: Iterable[Source], partition_id: int, start: int, time: int) -> Place | None:
    """Return the last message of a partition, from `start` on, received at or before `time`.

    `sources` come from the last to the first.
    """
    for source in sources:
        end = len(source.entries)
        if time < _LATEST:
            end = source.times.end_before(source.entries, time + 1)
        ordinals = source.of_partition(partition_id, source.ordinal(start), None)
        ordinals = ordinals[: ordinals.searchsorted(ordinals.dtype.type(end))]
        for reverse in _chunks(ordinals[::-1]):
            some = reverse[::-1]
            times = source.take(some)["received_time"]
            found = np.flatnonzero(times <= time)
            if len(found):
                return _place(source, some, times, int(found[-1]))
    return None


def _chunks(ordinals: Array) -> Iterator[Array]:
    """Yield growing chunks: a search from the beginning mostly ends in the first."""
    start, size = 0, _CHUNK
    while start < len(ordinals):
        yield ordinals[start : start + size]
        start, size = start + size, min(4 * size, _CHUNK_MAX)


def _place(source: Source, ordinals: Array, times: Array, row: int) -> Place:
    return Place(int(source.offsets(ordinals[row : row + 1])[0]), int(times[row]))


def count(sources: Iterable[Source], partition_id: int, start: int, end: int) -> int:
    """Return how many messages a partition has at the offsets [start, end)."""
    total = 0
    for source in sources:
        ordinals = source.of_partition(partition_id, source.ordinal(start), None)
        total += int(ordinals.searchsorted(ordinals.dtype.type(_clipped(source, end))))
    return total


def _clipped(source: Source, offset: int) -> int:
    return min(source.ordinal(offset), len(source.entries))


def ahead(sources: Iterable[Source], partition_id: int, start: int, step: int) -> int | None:
    """Return the offset of the message behind `step` others from `start` on, None if none is."""
    for source in sources:
        ordinals = source.of_partition(partition_id, source.ordinal(start), step + 1)
        if len(ordinals) > step:
            return int(source.offsets(ordinals[step : step + 1])[0])
        step -= len(ordinals)
    return None


def back(
    sources: Iterable[Source], partition_id: int, start: int, end: int, step: int
) -> int | None:
    """Return the offset of the `step`-th message before `end` and not before `start`, or None.

    `sources` come from the last to the first.
    """
    for source in sources:
        ordinals = source.of_partition(partition_id, source.ordinal(start), None)
        place = int(ordinals.searchsorted(ordinals.dtype.type(_clipped(source, end))))
        if place >= step:
            return int(source.offsets(ordinals[place - step : place - step + 1])[0])
        step -= place
    return None


def summarize(sources: Iterable[Source], store_id: int, start: int) -> Totals:
    """Return what each of a shard's 10,000 partitions has from `start` on."""
    totals = NOTHING
    for source in sources:
        totals = totals.and_then(source.totals(store_id, start))
    return totals.up_to(PARTITIONS_PER_STORE)
