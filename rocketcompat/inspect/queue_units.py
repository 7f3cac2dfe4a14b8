"""The units in a queue's files as they lie, by the window; places and ranges of the log as runs."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from rocketcompat.formats import parse_offset_name
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import QueueKey
from rocketcompat.queues.files import PLAIN, UnitKind
from rocketcompat.queues.units import Units
from tubestore.core.kernels import Int64s
from tubestore.core.trees import files_by_start

#: Units of the log that wait for their comparison: 28 bytes each of ordinary queues.
HELD_UNITS_MAX = 1 << 18
#: Units of a file that are read together: few at first, since most files are nearly empty.
_FIRST_UNITS = 1 << 11
WINDOW_UNITS = 1 << 15


def leading(mask: Any) -> int:
    """How many elements from the first are true."""
    return len(mask) if mask.all() else int(mask.argmin())


def states_of(runs: Sequence[tuple[int, int, str]]) -> np.ndarray[Any, Any]:
    """Return the state of each place of runs [start, end) that follow each other."""
    names = np.array([state for _, _, state in runs], "U9")
    return np.repeat(names, [end - start for start, end, _ in runs])


@dataclass(slots=True)
class Runs:
    """Places of a queue in runs [start, end) of one state, ascending and apart."""

    starts: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    ends: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    states: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, places: Int64s, states: Any) -> None:
        """Add ascending places that are in no run yet."""
        if not len(places):
            return
        apart = (places[1:] != places[:-1] + 1) | (states[1:] != states[:-1])
        firsts = np.flatnonzero(np.concatenate(([True], apart)))
        lasts = np.append(firsts[1:], len(places)) - 1
        self.join(Runs(places[firsts], places[lasts] + 1, np.asarray(states[firsts], np.int64)))

    def join(self, others: Runs) -> None:
        """Add runs that cover no place of these."""
        starts = np.concatenate((self.starts, others.starts))
        ends = np.concatenate((self.ends, others.ends))
        states = np.concatenate((self.states, others.states))
        if len(self) and len(others) and others.starts[0] < self.starts[-1]:
            order = np.argsort(starts, kind="stable")
            starts, ends, states = starts[order], ends[order], states[order]
        first = np.ones(len(starts), bool)
        first[1:] = (starts[1:] != ends[:-1]) | (states[1:] != states[:-1])
        last = np.append(first[1:], True)[: len(first)]
        self.starts, self.ends, self.states = starts[first], ends[last], states[first]

    def of(self, places: Int64s) -> Any:
        """Return the state of each place, -1 where no run is."""
        if not len(self):
            return np.full(len(places), -1, np.int64)
        at = np.maximum(np.searchsorted(self.starts, places, "right") - 1, 0)
        inside = (places >= self.starts[at]) & (places < self.ends[at])
        return np.where(inside, self.states[at], -1)


class Ranges:
    """Ranges [start, end) of the log, ascending and apart."""

    def __init__(self) -> None:
        self._starts, self._ends = array("q"), array("q")

    def add(self, start: int, end: int) -> None:
        """Add a range behind all others."""
        self._starts.append(start)
        self._ends.append(end)

    def contain(self, offsets: Int64s) -> Any:
        """Return the mask of the offsets that are in a range."""
        if not self._starts:
            return np.zeros(len(offsets), bool)
        starts, ends = np.array(self._starts), np.array(self._ends)
        at = np.searchsorted(starts, offsets, "right") - 1
        return (at >= 0) & (offsets < ends[np.maximum(at, 0)])

    def meet(self, low: int, high: int) -> bool:
        """True if a range has a part in [low, high)."""
        at = bisect_right(self._ends, low)
        return at < len(self._starts) and self._starts[at] < high


class QueueUnits:
    """The units in a queue's files, whatever its kind, by their place.

    A file counts up to the next one's first place. A hole larger than all files together is no
    part of a queue: what is behind it is left out.
    """

    def __init__(self, directory: StoreDirectory, key: QueueKey, kind: UnitKind = PLAIN) -> None:
        self._vfs, self._dtype = directory.vfs, kind.layout.dtype
        self._unit, most = kind.layout.size, kind.file_size(directory.config)
        path = directory.queue_path(*key, kind.directory)
        found = files_by_start(self._vfs, path, parse_offset_name)
        far = [at for at, (a, b) in enumerate(pairwise(found), 1)
               if b[0] - a[0] - min(a[2], most) > most * len(found)]  # fmt: skip
        firsts = [start // self._unit for start, _, _ in found]
        #: (first place, units, path) of each file.
        self._files = [
            (first, min(min(size, most) // self._unit, following - first), path)
            for (_, path, size), first, following in zip(
                found[: min(far, default=len(found))], firsts, [*firsts[1:], 1 << 62], strict=False
            )
        ]
        self.first = firsts[0] if firsts else 0

    def read(self, first: int, count: int) -> Units:
        """Return the units of these places; zeros where no file has any."""
        found = np.zeros(count, self._dtype)
        for file_first, file_count, path in self._files:
            start, end = max(first, file_first), min(first + count, file_first + file_count)
            if start < end:
                file = self._vfs.open(path, writable=False)
                raw = file.pread((end - start) * self._unit, (start - file_first) * self._unit)
                file.close()
                units = np.frombuffer(raw, self._dtype, len(raw) // self._unit)
                found[start - first : start - first + len(units)] = units
        return found

    def windows(self) -> Iterator[tuple[int, Units]]:
        """Yield (place, units) up to the last unit that is not zeros; holes are left out."""
        for first, count, path in self._files:
            file = self._vfs.open(path, writable=False)
            end, step = count * self._unit, min(_FIRST_UNITS, WINDOW_UNITS)
            position = file.next_data(0)
            while position is not None and position < end:
                start = position - position % self._unit
                raw = file.pread(min(step * self._unit, end - start), start)
                used = -(-len(raw.rstrip(b"\0")) // self._unit)
                units = np.frombuffer(raw, self._dtype, min(used, len(raw) // self._unit))
                if len(units):
                    yield first + start // self._unit, units
                position = file.next_data(start + step * self._unit)
                step = min(2 * step, WINDOW_UNITS)
            file.close()

    def whole(self) -> Units:
        """Return all units from the first place on; zeros at the end are left out."""
        parts = list(self.windows())
        found = np.zeros(parts[-1][0] + len(parts[-1][1]) - self.first if parts else 0, self._dtype)
        for first, units in parts:
            found[first - self.first : first - self.first + len(units)] = units
        return found
