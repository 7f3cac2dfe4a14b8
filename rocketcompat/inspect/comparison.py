"""Ordinary queues compared with the log piece by piece, in bounded memory.

Each place gets a state (`queues.UNIT_STATES`). Only runs of places with the same state are kept,
and a limited number of units of the log that are not compared yet. The files are read by the
window. A `QueueView` has all units of a queue, with these states.

Units wait before they are compared: in a store that is being written, the unit of a new record
may still be on its way to its file. Of units that differ only the older half is decided before
the end of the scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from rocketcompat.commitlog.walk import Gap
from rocketcompat.formats import CQ_PRE_FILL_SIZE, CQ_UNIT
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import QueueKey, ScannedEnd
from rocketcompat.inspect.queue_units import (
    HELD_UNITS_MAX,
    WINDOW_UNITS,
    QueueUnits,
    Ranges,
    Runs,
    leading,
)
from rocketcompat.queues.extension import is_address
from rocketcompat.queues.files import PLAIN, UnitKind
from rocketcompat.queues.units import GAP_UNITS_MAX, Units, is_fill, is_unit
from rocketcompat.record.properties import SCHEDULE_TOPIC
from tubestore.core.kernels import Int64s

#: What an array that is held costs beside its units, in units.
_ARRAY_UNITS = 8
#: Numbers of the states in runs. A wrong unit of the same record may hold an address of its own.
_STATES = ("ok", "missing", "wrong", "wrong", "surplus", "damaged", "fill")
_OK, _MISSING, _WRONG, _WRONG_SAME, _SURPLUS, _DAMAGED, _FILL = range(len(_STATES))
_SIZE = CQ_UNIT.size


@dataclass(slots=True)
class _InFile:
    """The units in the files of a queue, beside its runs."""

    #: Units that no record of the log has.
    loose: Runs = field(default_factory=Runs)
    #: Runs of units with damaged records.
    damaged: Runs = field(default_factory=Runs)
    #: Where the units end that only expired messages have, and whether there are any.
    expired_end: int = 0
    has_expired: bool = False
    has_units: bool = False
    #: Place of the first unit of a message that is in reach, and behind the last of all.
    kept_from: int | None = None
    end: int = 0
    has_addresses: bool = False


@dataclass(frozen=True, slots=True)
class ComparedQueue:
    """A queue after the comparison of its units; `low` … `high` are real, as in `QueueView`."""

    kind: ClassVar[UnitKind] = PLAIN

    topic: str
    queue_id: int
    low: int
    high: int
    units_per_file: int
    runs: Sequence[tuple[int, int, str]]
    _files: QueueUnits
    _log: Runs
    has_addresses: bool

    def stored(self) -> Units:
        """Return the units of the files at the places of the runs; zeros where no file has any."""
        return self._files.read(self.low, self.runs[-1][1] - self.low if self.runs else 0)

    def addresses(self) -> Iterator[tuple[Int64s, Int64s]]:
        """Yield places of units with the address of an extension, and these addresses."""
        for first, units in self._files.windows() if self.has_addresses else ():
            places = first + np.arange(len(units))
            inside = is_unit(units) & ~is_fill(units) & is_address(units["tags_code"])
            inside &= (places >= self.low) & (places < self.high)
            states = self._log.of(places)
            inside &= (states != _WRONG) & (states != _MISSING)
            if inside.any():
                yield places[inside], units["tags_code"][inside].astype(np.int64)


class QueueComparison:
    """Takes the log's units of ordinary queues in the log's order, and compares the files."""

    def __init__(self, directory: StoreDirectory, *, held_max: int = HELD_UNITS_MAX) -> None:
        self._directory, self._held_max = directory, held_max
        self._regions = Ranges()
        self._held: dict[QueueKey, list[tuple[Int64s, Units]]] = {}
        self._count = 0
        self._runs: dict[QueueKey, Runs] = {}
        #: Where the scan of the log ended.
        self.end = ScannedEnd(directory, directory.log.min_offset)

    def take(self, key: QueueKey, offsets: Int64s, units: Units) -> None:
        """Take units of a queue and their queue offsets."""
        self._held.setdefault(key, []).append((offsets, units))
        self._count += len(units) + _ARRAY_UNITS
        if self._count > self._held_max:
            self._settle_most()

    def take_region(self, region: Gap) -> None:
        """Take a part of the log without records."""
        self._regions.add(region.start, region.end)

    def finish(self, log_end: int) -> None:
        """Take where the log ended: it was taken whole."""
        self.end = ScannedEnd(self._directory, log_end)

    def names(self) -> list[QueueKey]:
        """Return the queues on disk and in the log, sorted."""
        return sorted({*self._directory.queues_of(PLAIN), *self._held, *self._runs})

    def compared(self, key: QueueKey) -> ComparedQueue:
        """Return the states of a queue's units, once: what is known of them is given back."""
        files = QueueUnits(self._directory, key)
        self._settle(key, files)
        log = _without_what_is_far_ahead(self._runs.pop(key, Runs()))
        found = self._compare_file(files, log)
        low, high = self._bounds(found, log)
        end = max(high, found.end)
        runs = list(_shown(log, found.loose, low, high, end))
        per_file = self._directory.config.consume_queue_file_size // _SIZE
        return ComparedQueue(*key, low, high, per_file, runs, files, log, found.has_addresses)

    # -- the log's units ---------------------------------------------------------------------

    def _settle_most(self) -> None:
        """Compare all units that are held, and keep those that differ, as long as they are few."""
        for key in list(self._held):
            self._settle(key, QueueUnits(self._directory, key), keep=1.0)
        if self._count > self._held_max // 2:
            for key in list(self._held):
                self._settle(key, QueueUnits(self._directory, key), keep=0.5)

    def _settle(self, key: QueueKey, files: QueueUnits, keep: float = 0.0) -> None:
        """Compare the units of a queue that are held; of those that differ, a part is kept."""
        held = self._held.pop(key, None)
        if held is None:
            return
        self._count -= sum(len(offsets) + _ARRAY_UNITS for offsets, _ in held)
        offsets = np.concatenate([offsets for offsets, _ in held])
        units = np.concatenate([units for _, units in held])
        del held
        order = np.arange(len(offsets))
        if not (offsets[1:] > offsets[:-1]).all():  # one record a queue offset: the first stays
            offsets, order = np.unique(offsets, return_index=True)
            units = units[order]
        runs = self._runs.setdefault(key, Runs())
        fresh = runs.of(offsets) < 0
        if not fresh.all():
            offsets, units, order = offsets[fresh], units[fresh], order[fresh]
        states = _states(files, offsets, units, keep_tags=key[0] == SCHEDULE_TOPIC)
        differs = np.flatnonzero(states != _OK)
        kept = differs[np.argsort(order[differs])]  # as in the log
        kept = kept[len(kept) - int(len(kept) * keep) :]
        if len(kept):
            decided = np.ones(len(offsets), bool)
            decided[kept] = False
            self._held[key] = [(offsets[kept], units[kept])]
            self._count += len(kept) + _ARRAY_UNITS
            offsets, states = offsets[decided], states[decided]
        runs.add(offsets, states)

    # -- the files' units --------------------------------------------------------------------

    def _compare_file(self, files: QueueUnits, log: Runs) -> _InFile:
        """Go through the files once; they end where a unit is of a later record than the scan's."""
        found = _InFile(expired_end=files.first, end=files.first)
        log_min = self._directory.log.min_offset
        leads = True
        for first, units in files.windows():
            count = leading(~self.end.is_later(units["physical_offset"]))
            later, units = count < len(units), units[:count]
            places = first + np.arange(count)
            stored, fill = is_unit(units), is_fill(units)
            real = stored & ~fill
            expired = stored & (units["physical_offset"] < log_min)
            found.has_units |= bool(stored.any())
            if leads and first == found.expired_end:
                before = leading(expired | fill)
                found.has_expired |= bool(expired[:before].any())
                found.expired_end += before
                leads = before == count
            else:
                leads = False
            if real.any():
                self._note(found, places, units, real, expired, log)
            if later:
                break
        return found

    def _note(
        self, found: _InFile, places: Int64s, units: Units, real: Any, expired: Any, log: Runs
    ) -> None:
        """Take the real units of a window in."""
        found.end = int(places[np.flatnonzero(real)[-1]]) + 1
        kept = np.flatnonzero(real & ~expired)
        if found.kept_from is None and len(kept):
            found.kept_from = int(places[kept[0]])
        found.has_addresses |= bool(is_address(units["tags_code"][real]).any())
        inside = self._regions.contain(units["physical_offset"].astype(np.int64))
        inside &= real
        found.damaged.add(places[inside], np.full(np.count_nonzero(inside), _DAMAGED))
        loose = real & (log.of(places) < 0)
        states = np.where(inside, _DAMAGED, _SURPLUS)
        found.loose.add(places[loose], states[loose])

    @staticmethod
    def _bounds(found: _InFile, log: Runs) -> tuple[int, int]:
        """Return where the queue begins and ends."""
        first_damaged = int(found.damaged.starts[0]) if len(found.damaged) else None
        if len(log):
            low, high = int(log.starts[0]), int(log.ends[-1])
            if first_damaged is not None:
                low = min(low, first_damaged)
            if found.kept_from is not None:  # the first record's number may be what is wrong
                low = min(low, found.kept_from)
        elif first_damaged is not None:
            low = high = first_damaged
        else:
            low = high = found.expired_end if found.has_units and found.has_expired else 0
        at = int(np.searchsorted(found.damaged.ends, high, "right"))
        if at < len(found.damaged) and found.damaged.starts[at] <= high:
            high = int(found.damaged.ends[at])  # a damaged last record keeps its place
        return low, high


def _without_what_is_far_ahead(runs: Runs) -> Runs:
    """Return the runs before the first large gap: what is behind it is damage."""
    ahead = np.flatnonzero(runs.starts[1:] - (runs.ends[:-1] - 1) > GAP_UNITS_MAX)
    count = int(ahead[0]) + 1 if len(ahead) else len(runs)
    return Runs(runs.starts[:count], runs.ends[:count], runs.states[:count])


def _states(files: QueueUnits, offsets: Int64s, units: Units, *, keep_tags: bool) -> Any:
    """Compare units of the log, by ascending queue offset, with those in the files."""
    states = np.empty(len(offsets), np.int64)
    at = 0
    while at < len(offsets):
        first = int(offsets[at])
        end = int(np.searchsorted(offsets, first + WINDOW_UNITS))
        end = min(end, at + WINDOW_UNITS)
        there = files.read(first, int(offsets[end - 1]) - first + 1)
        states[at:end] = _compared(there[offsets[at:end] - first], units[at:end], keep_tags)
        at = end
    return states


def _compared(there: Units, wanted: Units, keep_tags: bool) -> Any:
    """Return the state of each unit of the log.

    The unit of a scheduled message holds the time of its delivery, and one of a queue with an
    extension an address: these are not in the log, and taken as they are.
    """
    same = there["physical_offset"] == wanted["physical_offset"]
    equal = there["tags_code"] == wanted["tags_code"]
    equal |= is_address(there["tags_code"]) | keep_tags
    equal &= same & (there["size"] == wanted["size"])
    absent = ~is_unit(there) | (there["size"] == CQ_PRE_FILL_SIZE)
    found = np.where(equal, _OK, np.where(same, _WRONG_SAME, _WRONG))
    return np.where(absent, _MISSING, found)


def _shown(log: Runs, loose: Runs, low: int, high: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield the runs of the places [low, end), neighbours of one state joined."""
    both = Runs(log.starts, log.ends, log.states)
    both.join(_cut(loose, low, high))
    start, at, state = low, low, ""
    for part_end, next_state in _filled(both, low, end):
        if state and next_state != state:
            yield start, at, state
            start = at
        at, state = part_end, next_state
    if state:
        yield start, at, state


def _filled(runs: Runs, low: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield where each run ends, and its state, from `low` to `end`; what lies between is fill."""
    at = low
    found = zip(runs.starts.tolist(), runs.ends.tolist(), runs.states.tolist(), strict=True)
    for run_start, run_end, number in found:
        if run_start > at:
            yield run_start, _STATES[_FILL]
        yield run_end, _STATES[number]
        at = run_end
    if end > at:
        yield end, _STATES[_FILL]


def _cut(loose: Runs, low: int, high: int) -> Runs:
    """Return the runs from `low` on; behind `high` no unit is a damaged record's."""
    parts = Runs()
    for first, stop, known in ((low, high, None), (high, None, _SURPLUS)):
        starts = np.maximum(loose.starts, first)
        ends = loose.ends if stop is None else np.minimum(loose.ends, stop)
        kept = starts < ends
        states = loose.states if known is None else np.full(len(loose), known)
        parts.join(Runs(starts[kept], ends[kept], states[kept]))
    return parts
