"""Queues of inner batches as a correct recovery would show them, beside those on disk.

As `queues.py` for ordinary queues. Units follow each other without a gap, so a unit is identified
by its place: if one is missing, all behind it are at wrong places.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from rocketcompat.formats import BATCH_CONSUME_QUEUE_DIRECTORY, BATCH_CQ_UNIT, parse_offset_name
from rocketcompat.inspect.directory import Region, StoreDirectory
from rocketcompat.inspect.log_units import LogUnits, QueueKey, ScannedUnits, WantedQueues
from rocketcompat.inspect.queues import QueueView, QueueViews
from rocketcompat.inspect.scan import ScannedEnd
from rocketcompat.queues.batch_consume_queue import pulled
from rocketcompat.queues.units import Units, end_of, is_batch_unit
from tubestore.core.kernels import Int64s

_SIZE = BATCH_CQ_UNIT.size


@dataclass(frozen=True, slots=True)
class BatchQueueView:
    """One queue: what its files should hold from `first_place` on, and a state a place.

    The states are those of `queue_view.UNIT_STATES`. If there are more states than units, the files
    hold more than they should. It can be pulled from as a queue of a store.
    """

    topic: str
    queue_id: int
    #: The number of the first unit in the files, counted from offset 0 on.
    first_place: int
    units: Units
    states: np.ndarray[Any, Any]
    #: How many units at the front are those of records that the log has no more.
    expired: int
    units_per_file: int

    @property
    def kind(self) -> str:
        """The directory of queues of this kind."""
        return BATCH_CONSUME_QUEUE_DIRECTORY

    @property
    def unit_size(self) -> int:
        """Bytes of a unit."""
        return _SIZE

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

    @property
    def runs(self) -> Iterator[tuple[int, int, str]]:
        """Places [start, end) in the files that have one state."""
        if not len(self.states):
            return
        firsts = np.flatnonzero(self.states[1:] != self.states[:-1]) + 1
        for start, end in pairwise([0, *firsts.tolist(), len(self.states)]):
            yield self.first_place + start, self.first_place + end, str(self.states[start])

    def next_file_offset(self, offset: int) -> int:
        """Return the next offset: nothing is missing between files here."""
        return offset + 1


class BatchQueueViews:
    """The queues of inner batches of a directory; one scan of the log if it has any.

    With `scanned` (units of inner batches in it) the log is not read here.
    """

    def __init__(
        self, directory: StoreDirectory, *, topic: str | None = None,
        scanned: ScannedUnits | None = None,
    ) -> None:  # fmt: skip
        self._directory = directory
        topics = directory.config.batch_topics
        self._topics = topics if topic is None else topics & {topic}
        self._computed: dict[QueueKey, Units] = {}
        self._regions: list[Region] = []
        self.log_end = directory.log.min_offset
        names = directory.queue_names(BATCH_CONSUME_QUEUE_DIRECTORY)
        self._on_disk = {key for key in names if key[0] in self._topics}
        if scanned is None and self._topics:
            scanned = LogUnits(directory, WantedQueues(topic=topic)).scan().of_batches()
        if scanned is not None:
            self._regions, self.log_end = list(scanned.regions), scanned.log_end
            self._computed = {key: units for key, (_, units) in scanned.units.items()}
        self._end = ScannedEnd(directory, self.log_end)

    def keys(self) -> list[QueueKey]:
        """Return the queues on disk and in the log, sorted."""
        return sorted({*self._on_disk, *self._computed})

    def __iter__(self) -> Iterator[BatchQueueView]:
        return (self.view(key) for key in self.keys())

    def find(self, topic: str, queue_id: int) -> BatchQueueView | None:
        """Return a queue's view, None if it is neither on disk nor in the log."""
        key = (topic, queue_id)
        return self.view(key) if key in self._on_disk or key in self._computed else None

    def view(self, key: QueueKey) -> BatchQueueView:
        """Compare a queue's files with the log."""
        first, stored = read_batch_files(self._directory, key)
        stored = stored[~self._end.is_later(stored["physical_offset"])]
        sound = is_batch_unit(stored)
        places = stored["physical_offset"].astype(np.int64)
        old = sound & (places < self._directory.log.min_offset)
        expired = len(old) if old.all() else int(old.argmin())
        # Units of damaged records stay: nothing else contains their numbers.
        inside = np.zeros(len(stored), bool)
        for region in self._regions:
            inside |= (places >= region.start) & (places < region.end)
        kept = stored[inside & sound]
        computed = self._computed.get(key, stored[:0])
        body = np.concatenate((kept, computed)).astype(BATCH_CQ_UNIT.dtype)
        body = body[np.argsort(body["physical_offset"].astype(np.int64), kind="stable")]
        wanted = np.concatenate((stored[:expired], body)).astype(BATCH_CQ_UNIT.dtype)
        states = self._states(stored, wanted)
        damaged = np.isin(wanted["physical_offset"], kept["physical_offset"])
        ok = states[: len(wanted)] == "ok"
        states[: len(wanted)][ok & damaged] = "damaged"
        per_file = self._directory.config.mapper_file_size_batch_consume_queue // _SIZE
        return BatchQueueView(*key, first, wanted, states, expired, per_file)

    @staticmethod
    def _states(stored: Units, wanted: Units) -> np.ndarray[Any, Any]:
        both = min(len(stored), len(wanted))
        states = np.full(max(len(stored), len(wanted)), "missing", dtype="U9")
        states[len(wanted) :] = "surplus"
        states[:both] = np.where(stored[:both] == wanted[:both], "ok", "wrong")
        return states


class AllQueueViews:
    """The queues of both kinds of a directory."""

    def __init__(
        self, directory: StoreDirectory, *, only: QueueKey | None = None, topic: str | None = None,
        trust: bool = False,
    ) -> None:  # fmt: skip
        units = None if trust else LogUnits(directory, WantedQueues(only, topic)).scan()
        self.ordinary = QueueViews(
            directory, only=only, topic=topic, trust=trust,
            scanned=units.plain() if units else None,
        )  # fmt: skip
        self.batches = BatchQueueViews(
            directory, topic=topic, scanned=units.of_batches() if units else None
        )
        #: Regions of the log without records, and its end.
        self.regions, self.log_end = self.ordinary.regions, self.ordinary.log_end

    def keys(self) -> list[QueueKey]:
        """Return the queues on disk and in the log, those of batches last."""
        return [*self.ordinary.keys(), *self.batches.keys()]

    def __iter__(self) -> Iterator[QueueView | BatchQueueView]:
        return chain(self.ordinary, self.batches)

    def find(self, topic: str, queue_id: int) -> QueueView | BatchQueueView | None:
        """Return a queue's view, None if it is neither on disk nor in the log."""
        return self.ordinary.find(topic, queue_id) or self.batches.find(topic, queue_id)


def views_of(
    directory: StoreDirectory, topic: str, queue_id: int, *, trust: bool = False
) -> QueueViews | BatchQueueViews:
    """Return the views in which a queue is, whatever its kind."""
    if topic in directory.config.batch_topics:
        return BatchQueueViews(directory, topic=topic)
    return QueueViews(directory, only=(topic, queue_id), trust=trust)


def read_batch_files(directory: StoreDirectory, key: QueueKey) -> tuple[int, Units]:
    """Return the first place of a queue's files, and all units from there on.

    Without the zeros at the end; missing files are zeros.
    """
    path = directory.queue_path(*key, BATCH_CONSUME_QUEUE_DIRECTORY)
    size = directory.config.mapper_file_size_batch_consume_queue
    rows = [(parse_offset_name(n), n) for n, is_dir, _ in directory.vfs.entries(path) if not is_dir]
    files = sorted((start, name) for start, name in rows if start is not None)
    raw = bytearray()
    first = files[0][0] if files else 0
    for start, name in files:
        if start - first > size * len(files):
            break
        raw.extend(bytes(max(start - first - len(raw), 0)))
        raw[start - first :] = directory.vfs.read_file(os.path.join(path, name))[:size]
    used = -(-len(raw.rstrip(b"\0")) // _SIZE) * _SIZE
    padded = bytes(raw[:used]).ljust(used, b"\0")
    return first // _SIZE, np.frombuffer(padded, BATCH_CQ_UNIT.dtype)
