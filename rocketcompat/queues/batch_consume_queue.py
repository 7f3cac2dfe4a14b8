"""A queue of inner batches: 5.x's `BatchConsumeQueue` (spec §2.9).

A unit of 46 bytes says where a record is, which queue offset its first message has and how many
it holds. Units stand one behind the other, so a message is found by a binary search, and what
makes a replay harmless is the order: physical offsets rise, and what is there already is skipped.
Unlike the real one, what is behind a cut is zeroed, and units are verified against their
neighbours when the queue is opened after a crash.

Always true: units rise by physical offset and by queue offset; behind the last one all is zero.

One thread puts; any may read. *Place* is a unit's number in the files, counted from offset 0.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from rocketcompat.files.keeper import Keeper
from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.formats import BATCH_CQ_UNIT, CQ_UNIT
from rocketcompat.queues.units import LogMinimum, Units, plain_units, read_units
from tubestore.core.vfs import Vfs

_SIZE = BATCH_CQ_UNIT.size
#: What a pull looks at, in bytes of units counted from the offset that was asked for.
_SCAN_BYTES = 16_000


def sound_count(units: Units, keep_below: int, after: Any = None) -> int:
    """Return how many units from the first on can be right: sizes, and an order that rises.

    `keep_below` is a physical offset; `after` is the unit before them, if there is one.
    """
    offsets, bases = (
        units["physical_offset"].astype(np.int64),
        units["base_offset"].astype(np.int64),
    )
    good = (units["size"] > 0) & (units["batch_size"] > 0)
    good &= (offsets >= 0) & (offsets < keep_below) & (bases >= 0)
    ends = bases + units["batch_size"]
    last = (-1, 0) if after is None else (after.physical_offset, end_of(after))
    good &= offsets > np.concatenate(([last[0]], offsets[:-1]))[: len(units)]
    good &= bases >= np.concatenate(([last[1]], ends[:-1]))[: len(units)]
    return len(units) if good.all() else int(good.argmin())


def end_of(unit: Any) -> int:
    """Return the queue offset behind the last message of a unit."""
    return int(unit.base_offset) + int(unit.batch_size)


def pulled(units: Units, start: int, count: int) -> tuple[Units, Sequence[int]]:
    """Return what a pull from `start` on looks at of the units of one file: see `spans`."""
    most = max(_SCAN_BYTES, count * _SIZE if count * CQ_UNIT.size > _SCAN_BYTES else 0)
    found = units[(units["base_offset"].astype(np.int64) - start) * _SIZE <= most]
    if not len(found):
        return plain_units([], [], []), [start]
    ends = found["base_offset"] + found["batch_size"]
    plain = plain_units(found["physical_offset"], found["size"], found["tags_code"])
    return plain, [*found["base_offset"].tolist(), int(ends[-1])]


class BatchConsumeQueue:
    """The units of one queue. Offsets are queue offsets unless a name says physical."""

    def __init__(
        self, vfs: Vfs, directory: str, topic: str, queue_id: int, *, file_size: int,
        log_minimum: LogMinimum, writable: bool = True,
    ) -> None:  # fmt: skip
        self.topic, self.queue_id = topic, queue_id
        self._files = MappedFileQueue(
            vfs, os.path.join(directory, topic, str(queue_id)), file_size, writable=writable
        )
        self._log_minimum = log_minimum
        self._open_lock = threading.RLock()
        self._opened = False
        #: The place behind the last unit.
        self._end = 0

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message that the log still has; -1 without any unit.

        -1 is what the real one answers, too.
        """
        self._open()
        place = self._first_at_or_above(self._log_minimum.value)
        if place < self._end:
            return int(self._unit(place).base_offset)
        return self.max_offset or -1

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last message; 0 without any."""
        self._open()
        return end_of(self._unit(self._end - 1)) if self._end > self._first else 0

    @property
    def max_physical_offset(self) -> int:
        """Physical offset of the last unit's record (its start, as in the real one); -1 without."""
        self._open()
        return int(self._unit(self._end - 1).physical_offset) if self._end > self._first else -1

    def place_of_unit(self, offset: int) -> tuple[str, int]:
        """Return the file of the unit that holds an offset, and its position there."""
        position = self._place_of(offset) * _SIZE
        return self._files.path_of(position), position % self._files.file_size

    def unit(self, offset: int) -> Any:
        """Return the unit of the record that holds the message at an offset, None if none does."""
        self._open()
        place = self._place_of(offset)
        if place < self._first:
            return None
        unit = self._unit(place)
        return unit if offset < end_of(unit) else None

    def units(self) -> Units:
        """Return all units, the expired ones too."""
        self._open()
        return self._units(self._first, self._end)

    def spans(self, start: int, count: int) -> tuple[Units, Sequence[int]]:
        """Return what a pull looks at from the record on that holds the message at `start`.

        As units of an ordinary queue, of one file; and the queue offset at which each begins,
        with that behind the last.
        """
        self._open()
        place = max(self._place_of(start), self._first)
        if place >= self._end:
            return plain_units([], [], []), [start]
        if end_of(self._unit(place)) <= start:  # a hole, where records are damaged
            place += 1
        per_file = self._files.file_size // _SIZE
        found = self._units(place, min(place - place % per_file + per_file, self._end))
        return pulled(found, start, count)

    def next_file_offset(self, offset: int) -> int:
        """Return the first offset behind the record at an offset: units of it are in no file."""
        unit = self.unit(offset)
        return offset + 1 if unit is None else end_of(unit)

    def put_rows(self, units: Units) -> None:
        """Append units that are not there yet; they rise by physical offset.

        OSError passes through; then the same units may be put again.
        """
        self._open()
        fresh = units[units["physical_offset"].astype(np.int64) > self.max_physical_offset]
        if len(fresh):
            self._files.write_at(self._end * _SIZE, fresh.tobytes())
            self._end += len(fresh)

    def recover(self, keep_below: int, keeper: Keeper | None = None) -> None:
        """Cut at the first unit that cannot be right or whose record is at or above an offset.

        That is a physical one. What is behind the cut is zeroed, durably; files that go are moved
        to a `keeper`.
        """
        with self._open_lock:
            self._files.load()
            self._opened = True
            files = self._files.files
            while files and not self._starts_well(files, keep_below):
                files = files[:-1]
            self._end = self._first
            if files:
                self._end = self._recovered_end(files[-1], keep_below)
            self._files.truncate_dirty_files(self._end * _SIZE, keeper=keeper)

    def _starts_well(self, files: tuple[MappedFile, ...], keep_below: int) -> bool:
        """Whether the cut is in the last of these files or behind it."""
        first = np.frombuffer(files[-1].read(0, _SIZE), BATCH_CQ_UNIT.dtype)
        return sound_count(first, keep_below, self._last_of(files[:-1])) == 1

    def _recovered_end(self, file: MappedFile, keep_below: int) -> int:
        raw = file.read(0, file.file_size)
        units = np.frombuffer(raw[: len(raw) - len(raw) % _SIZE], BATCH_CQ_UNIT.dtype)
        before = self._last_of(tuple(f for f in self._files.files
                                     if f.file_from_offset < file.file_from_offset))  # fmt: skip
        return file.file_from_offset // _SIZE + sound_count(units, keep_below, before)

    @staticmethod
    def _last_of(files: tuple[MappedFile, ...]) -> Any:
        raw = files[-1].read(files[-1].file_size - _SIZE, _SIZE) if files else b""
        return BATCH_CQ_UNIT.unpack_from(raw) if len(raw) == _SIZE else None

    def delete_expired(self, log_minimum: int) -> int:
        """Delete the oldest files whose last record lies below a physical offset; never the last.

        Returns how many went, durably.
        """
        self._open()
        count = 0
        while len(files := self._files.files) > 1:
            last = self._last_of(files[:1])
            if last is None or last.physical_offset >= log_minimum:
                break
            self._files.delete_oldest()
            count += 1
        return count

    @property
    def dirty_pages(self) -> int:
        """Borders of 4 KiB pages between what is on stable storage and the end (spec §6)."""
        return self._files.dirty_pages

    def flush(self) -> bool:
        """Bring what was written to stable storage; False if there was nothing to do."""
        return self._files.flush()

    def reload(self) -> None:
        """Look at the files again, as a reader beside a live writer does."""
        with self._open_lock:
            self._opened = False

    def close(self) -> None:
        """Give the descriptors back."""
        self._files.close()

    @property
    def _first(self) -> int:
        return self._files.min_offset // _SIZE

    def _open(self) -> None:
        """Take in the files and find the end, once: in a closed queue zeros follow the units."""
        if self._opened:
            return
        with self._open_lock:
            if self._opened:
                return
            self._files.load()
            self._end = self._first
            for file in reversed(self._files.files):
                places = range(file.file_size // _SIZE)
                used = bisect_right(places, 0, key=lambda place: self._is_empty(file, place))
                if used:
                    self._end = file.file_from_offset // _SIZE + used
                    break
            self._end = self._log_minimum.seen(
                self._first, self._end, lambda place: int(self._unit(place).physical_offset)
            )
            self._files.set_end(self._end * _SIZE)
            self._opened = True

    @staticmethod
    def _is_empty(file: MappedFile, place: int) -> int:
        unit = BATCH_CQ_UNIT.unpack_from(file.read(place * _SIZE, _SIZE))
        return int(unit.size <= 0 or unit.batch_size <= 0)

    def _unit(self, place: int) -> Any:
        return BATCH_CQ_UNIT.unpack_from(self._files.read(place * _SIZE, _SIZE))

    def _units(self, start: int, end: int) -> Units:
        return read_units(self._files, start, end, BATCH_CQ_UNIT)

    def _place_of(self, offset: int) -> int:
        """Return the place of the last unit that begins at an offset or before it."""
        places = range(self._first, self._end)
        found = bisect_right(places, offset, key=lambda place: int(self._unit(place).base_offset))
        return self._first + found - 1

    def _first_at_or_above(self, physical_offset: int) -> int:
        places = range(self._first, self._end)
        return self._first + bisect_right(
            places, physical_offset - 1, key=lambda place: int(self._unit(place).physical_offset)
        )
