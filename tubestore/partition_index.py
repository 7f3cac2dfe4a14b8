"""Posting lists: which entries of one index segment belong to which partition (or key code).

TubeMQ reads a partition by walking past the entries of all others: 104 times slower with
10,000 partitions than with 10. Here a read costs its own messages (DESIGN.md D3).

A list is a handful of *runs*; a run is a stable sort of a stretch of entries:

    keys      the distinct values, ascending
    starts    where each one's ordinals begin in `ordinals`, and the end
    ordinals  places of the entries in the segment, ascending within a key

New entries become a run when somebody asks; runs of similar size are merged, so an entry
is sorted O(log n) times in all, and an idle partition costs nothing.

Guards: `_lock` guards extension and merging; look-ups work on the tuple of runs they took.

Next to read: `file_store.py`.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from tubestore.formats import PARTITIONS_PER_STORE

Array = np.ndarray[Any, Any]


class Run(NamedTuple):
    """Postings of the entries [first, end) of a segment."""

    first: int
    end: int
    keys: Array
    starts: Array
    ordinals: Array

    def of(self, key: int) -> Array:
        """Return the ordinals of one key, ascending."""
        place = int(self.keys.searchsorted(key))
        if place == len(self.keys) or self.keys[place] != key:
            return self.ordinals[:0]
        return self.ordinals[self.starts[place] : self.starts[place + 1]]


def build_run(values: Array, first: int) -> Run:
    """Sort one stretch of entries' values into a run."""
    ordinals = np.arange(first, first + len(values), dtype=np.int32)
    return _sorted_run(first, first + len(values), values, ordinals)


def _merge(runs: list[Run]) -> Run:
    """Merge neighbouring runs into one; ordinals of a key stay ascending."""
    keys = np.concatenate([np.repeat(r.keys, np.diff(r.starts)) for r in runs])
    ordinals = np.concatenate([r.ordinals for r in runs])
    return _sorted_run(runs[0].first, runs[-1].end, keys, ordinals)


def _sorted_run(first: int, end: int, keys: Array, ordinals: Array) -> Run:
    # Partition numbers are 16 bits wide, so numpy's stable sort is a radix sort (5 ns an
    # element instead of 60); equal keys keep the order of their ordinals.
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    borders = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    ends = [len(ordered)] if len(ordered) else []
    starts = np.concatenate(([0], borders, ends)).astype(np.int32)
    return Run(first, end, ordered[starts[:-1]], starts, ordinals[order])


class PartitionIndex:
    """Posting lists of one index segment by one of its fields."""

    def __init__(self, field: str, first_partition_id: int = 0) -> None:
        self.field = field
        self._first_partition_id = first_partition_id
        self._runs: tuple[Run, ...] = ()
        #: The last entry in the lists; b"" while that is not known.
        self._last = b""
        self._lock = threading.Lock()

    def _values(self, entries: Array) -> Array:
        if self.field != "partition_id":
            return entries[self.field].astype(np.int32)
        # Within a shard a partition has a small number; an id of another shard is damage and
        # becomes the number that nobody asks for.
        places = entries["partition_id"].astype(np.int64) - self._first_partition_id
        strange = (places < 0) | (places >= PARTITIONS_PER_STORE)
        places[strange] = PARTITIONS_PER_STORE
        return places.astype(np.uint16)

    @property
    def covered(self) -> int:
        """How many entries, from the segment's first, are in the lists."""
        runs = self._runs
        return runs[-1].end if runs else 0

    def extend(self, entries: Array) -> tuple[Run, ...]:
        """Bring the lists up to `entries` (all of the segment so far); returns the runs."""
        runs = self._runs
        if (runs[-1].end if runs else 0) >= len(entries):
            return runs
        with self._lock:
            grown = list(self._runs)
            covered = grown[-1].end if grown else 0
            if covered < len(entries):
                grown.append(build_run(self._values(entries[covered:]), covered))
                while len(grown) > 1 and _size(grown[-2]) <= 2 * _size(grown[-1]):
                    grown[-2:] = [_merge(grown[-2:])]
                self._runs = tuple(grown)
                self._last = entries[-1].tobytes()
            return self._runs

    def ends_with(self, entry: bytes) -> bool:
        """Whether the last entry in the lists is this one."""
        return self._last == entry

    def lookup(self, entries: Array, key: int, first: int, limit: int | None) -> Array:
        """Return up to `limit` ordinals >= `first` of one partition id (or key code), ascending.

        `entries` are the entries of the segment that the caller may see, from its first.
        """
        key -= self._first_partition_id if self.field == "partition_id" else 0
        found: list[Array] = []
        wanted = limit
        end = len(entries)
        for run in self.extend(entries):
            if run.end <= first:
                continue
            ordinals = run.of(key)
            if run.first < first:
                ordinals = ordinals[ordinals.searchsorted(first) :]
            if run.end > end:  # another reader has extended the lists beyond our snapshot
                ordinals = ordinals[: ordinals.searchsorted(end)]
            if wanted is not None:
                ordinals = ordinals[:wanted]
                wanted -= len(ordinals)
            if len(ordinals):
                found.append(ordinals)
            if wanted == 0:
                break
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.empty(0, np.int32)

    def counts(self, entries: Array) -> dict[int, int]:
        """Return how many of the entries each key has."""
        totals: dict[int, int] = {}
        shift = self._first_partition_id if self.field == "partition_id" else 0
        for run in self.extend(entries):
            if run.end > len(entries):  # another reader has extended beyond our snapshot
                run = build_run(self._values(entries[run.first :]), run.first)
            sizes = np.diff(run.starts)
            for key, size in zip(run.keys.tolist(), sizes.tolist(), strict=True):
                totals[key + shift] = totals.get(key + shift, 0) + size
        return totals

    def merged(self, entries: Array) -> Run:
        """Return the lists of a whole segment as one run (what the cache file holds)."""
        runs = list(self.extend(entries))
        if not runs:
            return build_run(self._values(entries), 0)
        return runs[0] if len(runs) == 1 else _merge(runs)

    @property
    def key_dtype(self) -> type[np.generic]:
        """The type of the keys in the runs."""
        return np.uint16 if self.field == "partition_id" else np.int32

    def adopt(self, run: Run) -> None:
        """Take over lists that were read from a cache file."""
        self._runs = (run,)


def _size(run: Run) -> int:
    return run.end - run.first
