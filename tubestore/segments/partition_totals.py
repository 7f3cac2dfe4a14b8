"""What each partition has in one index segment: counted once, and gone on with as it grows.

Guards: what is known is replaced as a whole; `_lock` keeps two from counting the same entries.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.records import ENTRY_SIZE

Array = np.ndarray[Any, Any]
_LATEST = (1 << 63) - 1


class Totals(NamedTuple):
    """What partitions have, by their place in the shard (int64; those behind the end: nothing).

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
    """The totals of one index segment, as far as somebody has asked."""

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
        """Whether the last entry in the totals is this one."""
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
