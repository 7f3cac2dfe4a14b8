"""Queues of inner batches as a correct recovery would show them, beside those on disk.

As `queues.py` has it of ordinary queues, but compared with the log piece by piece, in bounded
memory. Units follow each other in the log's order, those of expired records first: where one is
missing, all behind it are at wrong places. Units of damaged records stay, since nothing else
contains their numbers. Of both sides a limited number is held: the older half of the log's units
is compared, and forgotten, unless a view of them is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from rocketcompat.commitlog.walk import Gap
from rocketcompat.formats import BATCH_CQ_UNIT
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import QueueKey, ScannedEnd
from rocketcompat.inspect.queue_units import (
    HELD_UNITS_MAX,
    QueueUnits,
    Ranges,
    Runs,
    leading,
    states_of,
)
from rocketcompat.queues.batch_consume_queue import pulled
from rocketcompat.queues.files import OF_BATCHES, UnitKind
from rocketcompat.queues.units import Units, end_of, is_batch_unit
from tubestore.core.kernels import Int64s

_SIZE = BATCH_CQ_UNIT.size
#: Units of a file that are compared together.
WINDOW_UNITS = 1 << 14
#: What an array that is held costs beside its units, in units.
_ARRAY_UNITS = 4
_STATES = ("ok", "missing", "wrong", "surplus", "damaged")
_OK, _MISSING, _WRONG, _SURPLUS, _DAMAGED = range(len(_STATES))
_NEVER = (1 << 63) - 1
_NONE = np.empty(0, BATCH_CQ_UNIT.dtype)
_ZEROS = np.zeros(1, BATCH_CQ_UNIT.dtype)


@dataclass(frozen=True, slots=True)
class BatchQueueView:
    """One queue: what its files should hold from `first_place` on, and the state of each place.

    The states are those of `queues.UNIT_STATES`. Where they reach further than the units the files
    hold more than they should. It can be pulled from as a queue of a store.
    """

    kind: ClassVar[UnitKind] = OF_BATCHES

    topic: str
    queue_id: int
    #: The number of the first unit in the files, counted from offset 0 on.
    first_place: int
    units_per_file: int
    #: Places [start, end) of one state, one behind the other.
    runs: tuple[tuple[int, int, str], ...]
    #: Empty where only the states were asked for.
    units: Units
    #: How many units at the front are those of records that the log has no more.
    expired: int

    @property
    def states(self) -> np.ndarray[Any, Any]:
        """The state of each place."""
        return states_of(self.runs)

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message that the log still has."""
        left = self.units[self.expired :]
        return int(left["base_offset"][0]) if len(left) else self.max_offset

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last message; 0 without any."""
        return (
            end_of(BATCH_CQ_UNIT.unpack_from(self.units[-1:].tobytes())) if len(self.units) else 0
        )

    @property
    def message_count(self) -> int:
        """How many messages the queue has, damaged ones included."""
        return int(self.units["batch_size"][self.expired :].sum(dtype=np.int64))

    @property
    def record_offsets(self) -> Int64s:
        """Physical offsets of the records that should be readable, in the queue's order."""
        kept = self.states[self.expired : len(self.units)] != "damaged"
        found: Int64s = self.units["physical_offset"][self.expired :][kept].astype(np.int64)
        return found

    def record_offset(self, offset: int) -> int:
        """Return the physical offset of the record with a message; -1 if no unit has it."""
        units, bases = self.spans(offset, 1)
        return int(units["physical_offset"][0]) if len(units) and bases[0] <= offset else -1

    def spans(self, start: int, count: int) -> tuple[Units, Sequence[int]]:
        """As `BatchConsumeQueue.spans`: the units that a pull reads, of one file."""
        ends = self.units["base_offset"].astype(np.int64) + self.units["batch_size"]
        place = int(np.searchsorted(ends, start, "right"))
        room = self.units_per_file - (self.first_place + place) % self.units_per_file
        return pulled(self.units[place : place + room], start, count)

    def next_file_offset(self, offset: int) -> int:
        """Return the next offset: nothing is missing between files here."""
        return offset + 1


@dataclass(slots=True)
class _Queue:
    """How far a queue was compared."""

    #: The place of the next unit, and the physical offset of its record at least.
    place: int
    low: int = 0
    runs: Runs = field(default_factory=Runs)
    #: What the files should hold, where that is kept, and how much of it is of expired records.
    units: list[Units] = field(default_factory=list)
    expired: int = 0


class BatchComparison:
    """Takes the log's units of queues of inner batches in its order, and compares the files."""

    def __init__(
        self,
        directory: StoreDirectory,
        *,
        held_max: int = HELD_UNITS_MAX,
        keeps_units: bool = False,
    ) -> None:
        self._directory, self._held_max, self._keeps_units = directory, held_max, keeps_units
        self._regions = Ranges()
        self._held: dict[QueueKey, list[Units]] = {}
        self._count = 0
        self._queues: dict[QueueKey, _Queue] = {}
        #: Where the scan of the log ended; None until then.
        self.end: ScannedEnd | None = None

    def take(self, key: QueueKey, units: Units) -> None:
        """Take units of a queue."""
        self._hold(key, units)
        if self._count > self._held_max:
            self._settle_older()

    def take_region(self, region: Gap) -> None:
        """Take a part of the log without records."""
        self._regions.add(region.start, region.end)

    def finish(self, log_end: int) -> None:
        """Take where the log ended: it was taken whole."""
        self.end = ScannedEnd(self._directory, log_end)

    def names(self) -> list[QueueKey]:
        """Return the queues on disk and in the log, sorted."""
        return sorted({*self._directory.queues_of(OF_BATCHES), *self._held, *self._queues})

    def compared(self, key: QueueKey) -> BatchQueueView:
        """Return the states of a queue's units, once: what is known of them is given back."""
        files = self._settle(key, _NEVER)
        queue = self._queues.pop(key)
        end = self._stored_end(files)
        if end > queue.place:
            surplus = Runs(*(np.array([n], np.int64) for n in (queue.place, end, _SURPLUS)))
            queue.runs.join(surplus)
        found = zip(queue.runs.starts, queue.runs.ends, queue.runs.states, strict=True)
        runs = tuple((int(start), int(stop), _STATES[state]) for start, stop, state in found)
        per_file = OF_BATCHES.file_size(self._directory.config) // _SIZE
        units = np.concatenate([_NONE, *queue.units]).astype(BATCH_CQ_UNIT.dtype)
        return BatchQueueView(*key, files.first, per_file, runs, units, queue.expired)

    def _hold(self, key: QueueKey, units: Units) -> None:
        self._held.setdefault(key, []).append(units)
        self._count += len(units) + _ARRAY_UNITS

    def _settle_older(self) -> None:
        """Compare the older half of the units that are held; all of many queues with few each."""
        offsets = np.concatenate(
            [u["physical_offset"] for held in self._held.values() for u in held]
        )
        middle = int(np.partition(offsets, len(offsets) // 2)[len(offsets) // 2])
        for key in list(self._held):
            self._settle(key, middle)
        if self._count > self._held_max // 2:
            for key in list(self._held):
                self._settle(key, int(offsets.max()) + 1)

    def _settle(self, key: QueueKey, high: int) -> QueueUnits:
        """Compare the units of a queue that have their records before `high`."""
        files = QueueUnits(self._directory, key, OF_BATCHES)
        held = self._held.pop(key, [])
        self._count -= sum(len(units) + _ARRAY_UNITS for units in held)
        units = np.concatenate([_NONE, *held]).astype(BATCH_CQ_UNIT.dtype)
        del held
        count = int(np.searchsorted(_offsets(units), high))
        if count < len(units):
            self._hold(key, units[count:].copy())
            units = units[:count]
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._begun(files)
        while queue.low < high:
            kept, end = self._kept(files, queue.low, high)
            count = int(np.searchsorted(_offsets(units), end))
            body = np.concatenate((kept, units[:count])).astype(BATCH_CQ_UNIT.dtype)
            body = body[np.argsort(_offsets(body), kind="stable")]
            self._compare(files, queue, body, kept)
            units, queue.low = units[count:], end
        return files

    def _begun(self, files: QueueUnits) -> _Queue:
        """Pass over the units at the front that have no record in the log any more."""
        queue, low = _Queue(files.first), self._directory.log.min_offset
        count = WINDOW_UNITS
        while count == WINDOW_UNITS:
            units = files.read(queue.place, WINDOW_UNITS)
            count = leading(is_batch_unit(units) & (_offsets(units) < low))
            queue.place += count
            if self._keeps_units:
                queue.units.append(units[:count])
        queue.expired = queue.place - files.first
        if queue.expired:
            queue.runs.add(np.array([files.first]), np.array([_OK]))
            queue.runs.ends[0] = queue.place
        return queue

    def _kept(self, files: QueueUnits, low: int, high: int) -> tuple[Units, int]:
        """Return the files' units of damaged records in [low, high), and `high`.

        If there are more than can be held, only those before a lower end, and that end.
        """
        kept = _NONE
        if not self._regions.meet(low, high):
            return kept, high
        for _, units in files.windows():
            offsets = _offsets(units)
            inside = self._regions.contain(offsets) & (offsets >= low) & (offsets < high)
            kept = np.concatenate((kept, units[inside & is_batch_unit(units)]))
            if len(kept) > self._held_max:
                kept = kept[np.argsort(_offsets(kept), kind="stable")]
                offsets = _offsets(kept)
                high = max(int(offsets[self._held_max // 2]), int(offsets[0]) + 1)
                kept = kept[: int(np.searchsorted(offsets, high))]
        return kept[np.argsort(_offsets(kept), kind="stable")].astype(BATCH_CQ_UNIT.dtype), high

    def _compare(self, files: QueueUnits, queue: _Queue, body: Units, kept: Units) -> None:
        """Compare the next units of the files with what they should be."""
        end: int | None = None
        for at in range(0, len(body), WINDOW_UNITS):
            wanted = body[at : at + WINDOW_UNITS]
            there = files.read(queue.place, len(wanted))
            places = queue.place + np.arange(len(wanted))
            states = np.where(there == wanted, _OK, _WRONG)
            in_damage = np.isin(wanted["physical_offset"], kept["physical_offset"])
            states[(states == _OK) & in_damage] = _DAMAGED
            if (there == _ZEROS).any():  # a hole, or behind the last unit
                end = self._stored_end(files) if end is None else end
                states[places >= end] = _MISSING
            queue.runs.add(places, states)
            queue.place += len(wanted)
            if self._keeps_units:
                queue.units.append(wanted)

    def _stored_end(self, files: QueueUnits) -> int:
        """Return the place behind the last unit in the files that the scan can have."""
        end = files.first
        for first, units in files.windows():
            there = units != _ZEROS
            if self.end is not None:
                there &= ~self.end.is_later(units["physical_offset"])
            if there.any():
                end = first + int(np.flatnonzero(there)[-1]) + 1
        return end


def _offsets(units: Units) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = units["physical_offset"].astype(np.int64)
    return found
