"""Posting lists: which entries of one index segment belong to which partition (or key code).

TubeMQ reads a partition by walking past the entries of all others: 104 times slower with
10,000 partitions than with 10. Here a read costs its own messages (decisions.md D3).

A list is a handful of *runs*; a run is a stable sort of a stretch of entries:

    keys      the distinct values, ascending
    starts    where each one's ordinals begin in `ordinals`, and the end
    ordinals  places of the entries in the segment, ascending within a key

New entries become a run when a list is read. Runs of similar size are merged, so an entry is sorted
O(log n) times in all, and an idle partition costs nothing. The first look-up in a segment compares
all its values instead, a tenth of the work: many processes read one partition once.

Guards: `_lock` guards extension and merging; look-ups work on the tuple of runs they took.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tubestore.options import PARTITIONS_PER_STORE

Array = np.ndarray[Any, Any]
_NOTHING = np.empty(0, np.int32)
_NARROW = 1 << 16


class Run(NamedTuple):
    """Postings of the entries [first, end) of a segment."""

    first: int
    end: int
    keys: Array
    starts: Array
    ordinals: Array

    def of(self, key: int) -> Array:
        """Return the ordinals of one key, ascending."""
        keys = self.keys
        place = key  # mostly every partition has messages
        if not 0 <= place < len(keys) or keys.item(place) != key:
            # Typed: for a Python number numpy would widen all keys at every look-up.
            place = int(keys.searchsorted(keys.dtype.type(key)))
            if place == len(keys) or keys.item(place) != key:
                return self.ordinals[:0]
        starts = self.starts
        return self.ordinals[starts.item(place) : starts.item(place + 1)]

    def bounds_of(self, keys: Array) -> tuple[Array, Array]:
        """Return where the ordinals of each of some keys begin and end (int64)."""
        places = self.keys.searchsorted(keys)
        inside = np.minimum(places, len(self.keys) - 1)
        lows = self.starts[inside].astype(np.int64)
        highs = np.where(self.keys[inside] == keys, self.starts[inside + 1], lows)
        return lows, highs

    def check_invariants(self, values: Array) -> None:
        """Raise AssertionError unless this is the run of these values; for tests."""
        assert len(values) == self.end - self.first == len(self.ordinals), "an entry is missing"
        assert (np.diff(self.keys.astype(np.int64)) > 0).all(), "keys do not ascend"
        bounds = self.starts.item(0), self.starts.item(-1)
        assert len(self.keys) == len(self.starts) - 1, "a key without a place"
        assert bounds == (0, len(self.ordinals)), "ordinals of no key"
        assert (np.diff(self.starts) > 0).all(), "a key without entries"
        owners = np.repeat(self.keys, np.diff(self.starts))
        assert np.array_equal(values[self.ordinals - self.first], owners), "another key's entry"
        same = owners[1:] == owners[:-1]
        assert (np.diff(self.ordinals)[same] > 0).all(), "ordinals of a key do not ascend"


def build_run(values: Array, first: int) -> Run:
    """Sort one stretch of entries' values into a run."""
    order = _stable_order(values)
    ordinals = order.astype(np.int32)
    ordinals += np.int32(first)
    return _as_run(first, first + len(values), values[order], ordinals)


def _merge(runs: list[Run]) -> Run:
    """Merge neighbouring runs into one; ordinals of a key stay ascending."""
    keys = np.concatenate([np.repeat(r.keys, np.diff(r.starts)) for r in runs])
    ordinals = np.concatenate([r.ordinals for r in runs])
    order = _stable_order(keys)
    return _as_run(runs[0].first, runs[-1].end, keys[order], ordinals[order])


def _as_run(first: int, end: int, ordered: Array, ordinals: Array) -> Run:
    """Make a run of the sorted keys and the ordinals in that order."""
    borders = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    ends = [len(ordered)] if len(ordered) else []
    starts = np.concatenate(([0], borders, ends)).astype(np.int32)
    return Run(first, end, ordered[starts[:-1]], starts, ordinals)


def _stable_order(keys: Array) -> Array:
    """Return the order of the keys; equal keys keep their order.

    For 16 bits numpy's stable sort is a radix sort (5 ns an element instead of 60). Partition
    numbers are that wide; key codes are numbered first, in the order of their values.
    """
    if keys.dtype.itemsize > 2 and len(keys) >= _NARROW >> 4:
        encoded = pa.array(keys).dictionary_encode()
        values = encoded.dictionary.to_numpy()
        if len(values) < _NARROW:
            ranks = np.empty(len(values), np.uint16)
            ranks[np.argsort(values)] = np.arange(len(values), dtype=np.uint16)
            keys = ranks[encoded.indices.to_numpy()]
    return np.argsort(keys, kind="stable")


class PartitionIndex:
    """Posting lists of one index segment by one of its fields."""

    def __init__(self, field: str, first_partition_id: int = 0) -> None:
        self.field = field
        self._shift = first_partition_id if field == "partition_id" else 0
        self._runs: tuple[Run, ...] = ()
        #: The last entry in the lists.
        self._last = b""
        self._was_asked = False
        self._lock = threading.Lock()

    def _values(self, entries: Array) -> Array:
        if self.field != "partition_id":
            return entries[self.field].astype(np.int32)
        # Within a shard a partition has a small number; an id of another shard is damage and
        # becomes a number that is never read.
        places = entries["partition_id"].astype(np.int64) - self._shift
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
        """True if the last entry in the lists is this one."""
        return self._last == entry

    def lookup(self, entries: Array, key: int, first: int, limit: int | None) -> Array:
        """Return up to `limit` ordinals >= `first` of one partition id (or key code), ascending.

        `entries` are the entries of the segment that the caller may see, from its first.
        """
        end = len(entries)
        place = key - self._shift
        if self.field == "partition_id" and not 0 <= place < PARTITIONS_PER_STORE:
            return _NOTHING
        if not self._was_asked and not self._runs:
            self._was_asked = True
            ordinals = np.flatnonzero(entries[self.field][first:] == key)[:limit]
            return (ordinals + first).astype(np.int32)
        found: list[Array] = []
        for run in self.extend(entries):
            if run.end <= first:
                continue
            ordinals = run.of(place)
            if run.first < first:
                ordinals = ordinals[ordinals.searchsorted(np.int32(first)) :]
            if run.end > end:  # another reader has extended the lists beyond our snapshot
                ordinals = ordinals[: ordinals.searchsorted(np.int32(end))]
            if limit is not None:
                ordinals = ordinals[:limit]
                limit -= len(ordinals)
            if len(ordinals):
                found.append(ordinals)
            if limit == 0:
                break
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else _NOTHING

    def ranges(self, entries: Array, keys: Array, firsts: Array) -> Iterator[tuple[Run, Any, Any]]:
        """Go through (run, lows, highs): where each key's ordinals >= its first are in the run.

        `keys`, `firsts`, `lows`, `highs`: int64, of the same length.
        """
        end = len(entries)
        typed = (keys - self._shift).astype(self.key_dtype)
        for run in self.extend(entries):
            if not len(run.keys):
                continue
            lows, highs = run.bounds_of(typed)
            if run.first < firsts.max(initial=0):
                lows = _lower_bounds(run.ordinals, lows, highs, firsts)
            if run.end > end:
                highs = _lower_bounds(run.ordinals, lows, highs, np.full(len(keys), end))
            yield run, lows, highs

    def counts(self, entries: Array, first: int = 0) -> dict[int, int]:
        """Return how many of the entries from the ordinal `first` on each key has."""
        totals: dict[int, int] = {}
        for run in self.extend(entries):
            if run.end <= first:
                continue
            # Another reader may have extended beyond our snapshot.
            if run.end > len(entries) or run.first < first:
                start = max(run.first, first)
                run = build_run(self._values(entries[start : run.end]), start)
            sizes = np.diff(run.starts)
            for key, size in zip(run.keys.tolist(), sizes.tolist(), strict=True):
                totals[key + self._shift] = totals.get(key + self._shift, 0) + size
        return totals

    @property
    def key_dtype(self) -> type[np.uint16] | type[np.int32]:
        """The type of the keys in the runs."""
        return np.uint16 if self.field == "partition_id" else np.int32

    def check_invariants(self, entries: Array) -> None:
        """Raise AssertionError if the lists contradict themselves or the entries; for tests.

        `entries`: at least as many of the segment as are in the lists.
        """
        with self._lock:
            runs, last = self._runs, self._last
        end = 0
        for run in runs:
            assert run.first == end, "a gap between runs"
            end = run.end
            run.check_invariants(self._values(entries[run.first : run.end]))
        for older, newer in pairwise(runs):
            assert _size(older) > 2 * _size(newer), "runs of similar size were not merged"
        if runs:
            assert last == entries[end - 1].tobytes(), "the last entry is another one"


def _size(run: Run) -> int:
    return run.end - run.first


def _lower_bounds(values: Array, lows: Array, highs: Array, wanted: Array) -> Array:
    """Return for each row the first place in [low, high) with a value >= wanted, else high.

    A binary search of all rows at once; the values of each row's stretch ascend.
    """
    lows, highs = lows.copy(), highs.copy()
    while True:
        rows = np.flatnonzero(lows < highs)
        if not len(rows):
            return lows
        middles = (lows[rows] + highs[rows]) >> 1
        below = values[middles] < wanted[rows]
        lows[rows[below]] = middles[below] + 1
        highs[rows[~below]] = middles[~below]
