"""A queue of inner batches: 5.x's `BatchConsumeQueue`.

A unit of 46 bytes has the place of a record, the queue offset of its first message and the number
of its messages. Units follow each other without a gap, so a message is found by a binary search.
The order makes a replay harmless: physical offsets rise, and units that are there already are
skipped. Unlike in RocketMQ, what is behind a cut is zeroed, and units are verified against their
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

from rocketcompat.formats import BATCH_CQ_UNIT, CQ_UNIT
from rocketcompat.queues.files import OF_BATCHES, QueueFiles, sound_batch_units
from rocketcompat.queues.units import LogMinimum, Units, end_of, is_batch_unit, plain_units
from tubestore.core.quarantine import Quarantine
from tubestore.core.vfs import Vfs

_SIZE = BATCH_CQ_UNIT.size
_NO_END = 1 << 62
#: Bytes of units that a pull reads, counted from the requested offset.
_SCAN_BYTES = 16_000


def pulled(units: Units, start: int, count: int) -> tuple[Units, Sequence[int]]:
    """Return the units that a pull from `start` on reads, of the units of one file: see `spans`."""
    most = max(_SCAN_BYTES, count * _SIZE if count * CQ_UNIT.size > _SCAN_BYTES else 0)
    found = units[(units["base_offset"].astype(np.int64) - start) * _SIZE <= most]
    if not len(found):
        return plain_units([], [], []), [start]
    ends = found["base_offset"] + found["batch_size"]
    plain = plain_units(found["physical_offset"], found["size"], found["tags_code"])
    return plain, [*found["base_offset"].tolist(), int(ends[-1])]


class BatchConsumeQueue:
    """The units of one queue. Offsets are queue offsets; physical ones are named so."""

    def __init__(
        self, vfs: Vfs, directory: str, topic: str, queue_id: int, *, file_size: int,
        log_minimum: LogMinimum, open_lock: threading.RLock | None = None, writable: bool = True,
    ) -> None:  # fmt: skip
        self.topic, self.queue_id = topic, queue_id
        self._open_lock = open_lock or threading.RLock()
        self._files = QueueFiles(
            vfs, os.path.join(directory, topic, str(queue_id)), OF_BATCHES, file_size, log_minimum,
            self._open_lock, writable=writable,
        )  # fmt: skip
        self._log_minimum = log_minimum

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message that the log still has; -1 without any unit.

        RocketMQ answers -1, too.
        """
        self._files.open()
        place = self._files.first_at_or_above(self._log_minimum.value)
        if place < self._files.end:
            return int(self._files.unit(place).base_offset)
        return self.max_offset or -1

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last message; 0 without any."""
        last = self._last
        return 0 if last is None else end_of(last)

    @property
    def max_physical_offset(self) -> int:
        """Physical offset of the last unit's record (its start, as in RocketMQ); -1 without one."""
        last = self._last
        return -1 if last is None else int(last.physical_offset)

    @property
    def places(self) -> int:
        """How many places of units there are, from 0 on."""
        self._files.open()
        return self._files.end

    @property
    def first_file_offset(self) -> int:
        """The start of the first file, in bytes."""
        self._files.open()
        return self._files.first * _SIZE

    def lacking(self, *, from_zero: bool = False) -> str | None:
        """Return the path of a file that is missing before the last, or is empty; None if none is.

        With `from_zero` the first file has to start at 0, too.
        """
        return self._files.lacking(from_zero=from_zero)

    def place_of_unit(self, offset: int) -> tuple[str, int]:
        """Return the file of the unit that holds an offset, and its position there."""
        self._files.open()
        return self._files.path_and_position(max(self._place_of(offset), self._files.first))

    def unit(self, offset: int) -> Any:
        """Return the unit of the record that holds the message at an offset, None if none does."""
        self._files.open()
        place = self._place_of(offset)
        unit = None if place < self._files.first else self._files.unit(place)
        return unit if unit is not None and offset < end_of(unit) else None

    def units(self) -> Units:
        """Return all units, the expired ones too."""
        self._files.open()
        return self._files.read(self._files.first, self._files.end)

    def units_from(self, physical_offset: int) -> Units:
        """Return the units of the records at or above a physical offset, to the queue's end."""
        self._files.open()
        first = self._files.first_at_or_above(physical_offset)
        return self._files.read(first, self._files.end)

    def spans(self, start: int, count: int) -> tuple[Units, Sequence[int]]:
        """Return the units that a pull reads, from the record with the message at `start` on.

        As units of an ordinary queue, of one file; and the queue offset at which each begins, with
        that behind the last.
        """
        files = self._files
        files.open()
        place = max(self._place_of(start), files.first)
        unit = files.unit(place)
        if unit is None or not OF_BATCHES.is_set(unit) or end_of(unit) <= start:
            place += 1
        if place >= files.end:
            return plain_units([], [], []), [start]
        found = files.read(place, min(files.next_file(place), files.end))
        found = found[: sound_batch_units(found, _NO_END, None)]
        if len(found) and found["base_offset"][0] <= start:
            return pulled(found, start, count)
        # No unit has this message: its records are damaged, or the file is.
        return plain_units([-1], [0], [0]), [start, self._base_behind(place, start)]

    def _base_behind(self, place: int, offset: int) -> int:
        """Return the queue offset, above `offset`, of the first sound unit from a place on.

        The queue's end without one.
        """
        files = self._files
        while place < files.end:
            following = min(files.next_file(place), files.end)
            units = files.read(place, following)
            bases = units["base_offset"][is_batch_unit(units)]
            bases = bases[(bases > offset) & (bases < self.max_offset)]
            if len(bases):
                return int(bases.min())
            place = following
        return max(self.max_offset, offset + 1)

    def next_file_offset(self, offset: int) -> int:
        """Return the first offset behind the record at an offset: units of it are in no file."""
        unit = self.unit(offset)
        return offset + 1 if unit is None else end_of(unit)

    def put_rows(self, units: Units) -> None:
        """Append units that are not there yet; they rise by physical offset.

        OSError passes through; then the same units may be put again.
        """
        fresh = units[units["physical_offset"].astype(np.int64) > self.max_physical_offset]
        if len(fresh):
            self._files.write(self._files.end, fresh.tobytes())

    def recover(self, keep_below: int, keeper: Quarantine | None = None) -> None:
        """Cut at the first unit that cannot be right, or has its record at or above an offset.

        `keep_below` is a physical offset. What is behind the cut is zeroed, durably; files that go
        are moved to a `keeper`.
        """
        with self._open_lock:
            kept = self._files.load_sound(keep_below)
            self._files.cut(self._files.end if kept else self._files.first, keeper)

    def delete_expired(self, log_minimum: int) -> int:
        """Delete the oldest files with all records below a physical offset; never the last file.

        Returns how many went, durably.
        """
        return self._files.delete_expired(log_minimum)

    @property
    def dirty_pages(self) -> int:
        """Borders of 4 KiB pages between what is on stable storage and the end."""
        return self._files.dirty_pages

    def flush(self) -> bool:
        """Bring what was written to stable storage; False if there was nothing to do."""
        return self._files.flush()

    def reload(self) -> None:
        """Read the files again, as a reader beside a live writer does."""
        self._files.reload()

    def close(self) -> None:
        """Give the descriptors back."""
        self._files.close()

    @property
    def _last(self) -> Any:
        """The last unit; None without one."""
        files = self._files
        files.open()
        return files.unit(files.end - 1) if files.end > files.first else None

    def _place_of(self, offset: int) -> int:
        """Return the place of the last unit that begins at an offset or before it."""
        files = self._files
        place = bisect_right(
            range(files.end), offset, min(files.first, files.end),
            key=lambda place: getattr(files.unit(place), "base_offset", 0),
        ) - 1  # fmt: skip
        # The search takes places without a unit for units in front of the offset.
        while place > files.first:
            unit = files.unit(place)
            if unit is not None and OF_BATCHES.is_set(unit) and unit.base_offset <= offset:
                break
            place -= 1
        return place
