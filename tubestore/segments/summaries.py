"""Summaries of one index segment: the times block by block, and the totals of each partition.

Times: when messages were received, as the extremes of each block of entries. They are given before
the lock that gives offsets, and callers may give their own, so they are not in order. A search that
takes them for sorted may return anything (TubeMQ throws, or returns -1). Here the
first block that has a maximum at or above a time is the one where the running maximum reaches it:
nothing before it was received as late, whatever the order inside.

Totals: what each partition has. Entries are counted once, and the count goes on as the segment
grows.

Guards: `_lock` of each guards extension, and the result is replaced as a whole; look-ups work on
the arrays that they took.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.records import ENTRY_SIZE

Array = np.ndarray[Any, Any]
#: Entries of a block: 16 bytes for each of them is 0.2 % of the index.
BLOCK_ENTRIES = 256
_NONE = np.empty(0, np.int64)
_LATEST = (1 << 63) - 1


class Blocks(NamedTuple):
    """The extremes of whole blocks, from the segment's first entry on (int64, ms)."""

    maxima: Array
    minima: Array


class TimeIndex:
    """The times of one index segment, in blocks."""

    def __init__(self) -> None:
        self._blocks = Blocks(_NONE, _NONE)
        #: The last entry in the blocks.
        self._last = b""
        self._lock = threading.Lock()

    def ends_with(self, entry: bytes) -> bool:
        """True if the last entry in the blocks is this one."""
        return self._last == entry

    @property
    def covered(self) -> int:
        """How many entries, from the segment's first, are in the blocks."""
        return len(self._blocks.maxima) * BLOCK_ENTRIES

    def extend(self, entries: Array) -> Blocks:
        """Bring the blocks up to `entries` (all of the segment so far) and return those of them."""
        count = len(entries) // BLOCK_ENTRIES
        blocks = self._blocks
        if len(blocks.maxima) < count:
            with self._lock:
                known = self._blocks
                done = len(known.maxima)
                if done < count:
                    fresh = blocks_of(
                        entries[done * BLOCK_ENTRIES : count * BLOCK_ENTRIES]["received_time"]
                    )
                    pairs = zip(known, fresh, strict=True)
                    self._blocks = Blocks(*(np.concatenate(pair) for pair in pairs))
                    self._last = entries[count * BLOCK_ENTRIES - 1].tobytes()
                blocks = self._blocks
        return Blocks(blocks.maxima[:count], blocks.minima[:count])

    def first_from(self, entries: Array, time: int, first: int = 0) -> int:
        """Return the first ordinal >= `first` received at or after `time`; their number if none."""
        if first >= len(entries):
            return len(entries)
        maxima = self.extend(entries).maxima
        block = first // BLOCK_ENTRIES
        late = maxima[block:] >= time
        # Two tries: in the block of `first` the late one may come before it.
        for _ in range(2):
            step = int(late.argmax()) if late.any() else len(late)
            start = max(first, (block + step) * BLOCK_ENTRIES)
            stop = (block + step + 1) * BLOCK_ENTRIES
            found = np.flatnonzero(entries["received_time"][start:stop] >= time)
            if len(found):
                return start + int(found[0])
            if step == len(late):
                break
            late[step] = False
        return len(entries)

    def end_before(self, entries: Array, time: int) -> int:
        """Return the ordinal after the last one that was received before `time`; 0 if none was."""
        minima = self.extend(entries).minima
        tail = len(minima) * BLOCK_ENTRIES
        early = np.flatnonzero(entries["received_time"][tail:] < time)
        if len(early):
            return tail + int(early[-1]) + 1
        blocks = np.flatnonzero(minima < time)
        if not len(blocks):
            return 0
        start = int(blocks[-1]) * BLOCK_ENTRIES
        early = np.flatnonzero(entries["received_time"][start : start + BLOCK_ENTRIES] < time)
        return start + int(early[-1]) + 1


def blocks_of(times: Array) -> Blocks:
    """Return the extremes of whole blocks of times; a rest at the end counts for none."""
    count = len(times) // BLOCK_ENTRIES
    rows = times[: count * BLOCK_ENTRIES].astype(np.int64).reshape(count, BLOCK_ENTRIES)
    return Blocks(rows.max(axis=1), rows.min(axis=1))


class Totals(NamedTuple):
    """Totals of partitions, by their place in the shard (int64; those behind the end: nothing).

    `first` and `last`: offsets, -1 without messages; `bytes`: of the records; `oldest`: ms.
    """

    messages: Array
    first: Array
    last: Array
    bytes: Array
    oldest: Array

    def up_to(self, size: int) -> Totals:
        """Return them for `size` places, at least as many as there are."""
        more = size - len(self.messages)
        if more == 0:
            return self
        return Totals(
            *(
                np.concatenate([known, np.full(more, empty, np.int64)])
                for known, empty in zip(self, _EMPTY, strict=True)
            )
        )

    def and_then(self, later: Totals) -> Totals:
        """Return the totals of these entries and of those behind them."""
        size = max(len(self.messages), len(later.messages))
        one, other = self.up_to(size), later.up_to(size)
        return Totals(
            one.messages + other.messages,
            np.where(one.first < 0, other.first, one.first),
            np.where(other.last < 0, one.last, other.last),
            one.bytes + other.bytes,
            np.minimum(one.oldest, other.oldest),
        )


_EMPTY = (0, -1, -1, 0, _LATEST)
NOTHING = Totals(*(np.empty(0, np.int64) for _ in _EMPTY))


def totals_of(entries: Array, index_start: int, first_partition_id: int) -> Totals:
    """Count the entries from the offset `index_start` on; those of other shards are left out."""
    places = entries["partition_id"].astype(np.int64) - first_partition_id
    offsets = index_start + ENTRY_SIZE * np.arange(len(entries))
    known = (places >= 0) & (places < PARTITIONS_PER_STORE)
    if not known.all():
        places, offsets, entries = places[known], offsets[known], entries[known]
    size = int(places.max(initial=-1)) + 1
    if not size:
        return NOTHING
    weights = entries["data_size"].astype(np.int64)
    found = NOTHING.up_to(size)._replace(
        messages=np.bincount(places, minlength=size),
        bytes=np.bincount(places, weights=weights, minlength=size).astype(np.int64),
    )
    found.last[places] = offsets  # the last assignment stays
    found.first[places[::-1]] = offsets[::-1]
    np.minimum.at(found.oldest, places, entries["received_time"].astype(np.int64))
    return found


class PartitionTotals:
    """The totals of one index segment, as far as they were used."""

    def __init__(self, index_start: int, first_partition_id: int) -> None:
        self._index_start, self._first_partition_id = index_start, first_partition_id
        #: How many entries are in the totals, the last of them, and the totals.
        self._known: tuple[int, bytes, Totals] = (0, b"", NOTHING)
        self._lock = threading.Lock()

    @property
    def covered(self) -> int:
        """How many entries, from the segment's first, are in the totals."""
        return self._known[0]

    def ends_with(self, entry: bytes) -> bool:
        """True if the last entry in the totals is this one."""
        return self._known[1] == entry

    def of(self, entries: Array) -> Totals:
        """Return the totals of `entries`: all of the segment so far, or as they once were."""
        with self._lock:
            covered, _, totals = self._known
            count = len(entries)
            if count < covered:
                return totals_of(entries, self._index_start, self._first_partition_id)
            if count > covered:
                start = self._index_start + ENTRY_SIZE * covered
                fresh = totals_of(entries[covered:], start, self._first_partition_id)
                totals = totals.and_then(fresh)
                self._known = (count, entries[-1].tobytes(), totals)
            return totals
