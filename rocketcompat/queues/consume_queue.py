"""One queue of a topic: its units, 20 bytes each, in files of one size.

RocketMQ's `ConsumeQueue`. Unit n of a queue is at byte n × 20 of its files. It has the
place of the n-th message: physical offset, size, tag hash. A queue with a first unit other than 0
begins in the file of that unit, with fill units before it.

Differences from RocketMQ: a unit is written to the place of its record's queue offset, never to the
present end of the queue, so handing over a record twice changes nothing. The end is found by the
content of the files, not by a guess. What is behind a cut is zeroed, so stale units cannot come
back.

Always true:
- every unit below `max_offset` is in its file; above it everything is zero;
- a unit that was written is not changed, but a fill unit may become a real one.

One thread puts; any thread may read. Opening is lazy: `_open_lock` guards it.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rocketcompat.formats import CQ_PRE_FILL_SIZE, CQ_UNIT, INT32_MAX
from rocketcompat.queues.extension import ConsumeQueueExt, is_address
from rocketcompat.queues.files import PLAIN, QueueFiles
from rocketcompat.queues.units import (
    GAP_UNITS_MAX,
    QUEUE_OFFSET_MAX,
    LogMinimum,
    Units,
    is_fill,
    is_unit,
    plain_units,
)
from tubestore.core.doors import logger
from tubestore.core.kernels import Int64s
from tubestore.core.layout import Buffer
from tubestore.core.quarantine import Quarantine
from tubestore.core.vfs import Vfs

_SIZE = CQ_UNIT.size
#: A search for one unit reads so many at a time.
_SEARCHED_UNITS = 1024
_log = logger(__name__)


class ConsumeQueue:
    """The units of one queue. Offsets are queue offsets; physical ones are named so."""

    __slots__ = ("_files", "_log_minimum", "_min", "_min_for", "_open_lock", "ext", "queue_id",
                 "refused", "topic")  # fmt: skip

    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        topic: str,
        queue_id: int,
        *,
        file_size: int,
        log_minimum: LogMinimum,
        open_lock: threading.RLock,
        trusted_end: int | None = None,
        writable: bool = True,
        ext: ConsumeQueueExt | None = None,
    ) -> None:
        self.topic, self.queue_id = topic, queue_id
        #: Has the tag hashes if the units have addresses instead.
        self.ext = ext
        #: Units that were refused: negative, impossible, or at another record's place.
        self.refused = 0
        self._files = QueueFiles(
            vfs, os.path.join(directory, topic, str(queue_id)), PLAIN, file_size, log_minimum,
            open_lock, trusted_end=trusted_end, writable=writable,
        )  # fmt: skip
        self._log_minimum, self._open_lock = log_minimum, open_lock
        self._min, self._min_for = 0, -1

    @property
    def max_offset(self) -> int:
        """The next queue offset: units before it are there (fill units included)."""
        files = self._files
        if not files.is_open:
            if files.trusted_end is not None:
                return files.trusted_end
            files.open()
        return files.end

    @property
    def min_offset(self) -> int:
        """The first queue offset with a record at or above the log's minimum; max without one.

        As 5.3.3; 4.9.8 keeps an old value for a queue that has expired.
        """
        floor = self._log_minimum.value
        if self._min_for != floor:
            self._files.open()
            self._min = self._first_at_or_above(floor)
            self._min_for = floor if self._min < self._files.end else -1
        return self._min

    @property
    def places(self) -> int:
        """How many places of units there are, from 0 on."""
        return self.max_offset

    @property
    def first_file_offset(self) -> int | None:
        """Start of the first file in bytes; None while the files were not read."""
        return self._files.first * _SIZE if self._files.is_open else None

    @property
    def has_hole(self) -> bool:
        """True if a file between the first and the last is missing."""
        self._files.open()
        files = self._files.files
        return any(a.end_of_file != b.file_from_offset for a, b in itertools.pairwise(files))

    @property
    def units_per_file(self) -> int:
        """How many units a file holds."""
        return self._files.per_file

    @property
    def max_physical_offset(self) -> int:
        """End of the record of the last real unit; -1 without one."""
        self._files.open()
        last = self._last_unit(lambda units: ~is_fill(units) & is_unit(units))
        return -1 if last is None else int(last["physical_offset"]) + int(last["size"])

    def units(self, start: int, end: int) -> Units:
        """Return units [start, end) as far as they are there, over files; fewer behind a hole."""
        self._files.open()
        return self._files.read(start, min(end, self._files.end))

    def units_from(self, physical_offset: int) -> Units:
        """Return the units of the records at or above a physical offset, to the queue's end."""
        self._files.open()
        return self.units(self._first_at_or_above(physical_offset), self._files.end)

    def units_in_file(self, start: int, count: int) -> Units:
        """Return up to `count` units from `start`, of its file only; none if it is missing."""
        tail = self._files.tail
        if tail is not None and self.ext is None and start * _SIZE >= tail.file_from_offset:
            count = min(count, self._files.end - start, self.next_file_offset(start) - start)
            raw = tail.read(start * _SIZE - tail.file_from_offset, count * _SIZE)
            return np.frombuffer(raw, CQ_UNIT.dtype, len(raw) // _SIZE)
        return self.resolved(self.units(start, min(start + count, self.next_file_offset(start))))

    def spans(self, start: int, count: int) -> tuple[Units, Sequence[int]]:
        """As `units_in_file`, with the queue offset of each, and the one behind the last."""
        units = self.units_in_file(start, count)
        return units, range(start, start + len(units) + 1)

    def resolved(self, units: Units) -> Units:
        """Return units with the tag hashes that their addresses lead to."""
        if self.ext is None or not is_address(units["tags_code"]).any():
            return units
        units = units.copy()
        units["tags_code"] = self.ext.resolve(units["tags_code"].astype(np.int64))
        return units

    def extended(self, offsets: Int64s, units: Units, store_timestamps: Int64s) -> Units:
        """Return units to be put, with addresses of new units of the extension in them.

        Units that the queue has already keep the address that they have.
        """
        self._files.open()
        assert self.ext is not None
        if not self.ext.is_open:
            self.ext.open_behind(self._last_address())
        units = units.copy()
        # However the log is cut: a place that a row before it takes, or passes by, has an old unit.
        end = self._files.end
        ends = np.where(offsets - end > GAP_UNITS_MAX, 0, offsets + 1)
        known = np.maximum.accumulate(np.concatenate(([end], ends)))[:-1]
        fresh = np.flatnonzero(offsets >= known)
        codes = units["tags_code"][fresh].astype(np.int64)
        units["tags_code"][fresh] = self.ext.append(codes, store_timestamps[fresh])
        return units

    def _last_address(self) -> int | None:
        """Return the address in the last unit that has one."""
        last = self._last_unit(lambda units: is_address(units["tags_code"]))
        return None if last is None else int(last["tags_code"])

    def _last_unit(self, is_wanted: Callable[[Units], np.ndarray[Any, Any]]) -> Any:
        """Return the last wanted unit, from the end back; None without one."""
        first, end = self._files.first, self._files.end
        while end > first:
            start = max(first, end - _SEARCHED_UNITS)
            units = self.units(start, end)
            found = np.flatnonzero(is_wanted(units))
            if len(found):
                return units[found[-1]]
            end = start
        return None

    def next_file_offset(self, offset: int) -> int:
        """Return the first queue offset of the file after the one of `offset`."""
        return self._files.next_file(offset)

    def lacking(self, *, from_zero: bool = False) -> str | None:
        """Return the path of a file that is missing before the last, or is empty; None if none is.

        With `from_zero` the first file has to start at 0, too.
        """
        return self._files.lacking(from_zero=from_zero)

    def place_of_unit(self, offset: int) -> tuple[str, int]:
        """Return the file of a unit and the position of its first byte there."""
        return self._files.path_and_position(offset)

    def unit(self, offset: int) -> Any:
        """Return one unit as a named tuple, None if it is not there."""
        self._files.open()
        return self._files.unit(offset) if 0 <= offset < self._files.end else None

    def put_units(
        self, queue_offsets: Int64s, physical_offsets: Any, sizes: Any, tags_codes: Any
    ) -> None:
        """Write units at their places; those that are there already stay as they are.

        OSError passes through; then the same units may be put again.
        """
        self.put_rows(queue_offsets, plain_units(physical_offsets, sizes, tags_codes))

    def append_units(self, first: int, units: Buffer) -> bool:
        """Write units where the queue ends; False, and nothing done, if that is not at `first`."""
        files = self._files
        tail = files.tail
        if tail is not None and first == files.end:
            position = first * _SIZE - tail.file_from_offset
            if position + len(units) <= tail.file_size:
                tail.write_at(position, units)
                files.end = first + len(units) // _SIZE
                return True
        files.open()
        if first != files.end or not (first == 0 or files.has_files):
            return False
        files.write(first, units)
        return True

    def put_rows(
        self, queue_offsets: Int64s, rows: Units, damaged: tuple[int, int] | None = None
    ) -> None:
        """As `put_units`; missing places before a row point into the `damaged` region."""
        self._files.open()
        count = len(rows)
        if count == 0:
            return
        first = int(queue_offsets[0])
        consecutive = count == 1 or bool((np.diff(queue_offsets) == 1).all())
        if consecutive:
            self._put_run(first, rows, damaged)
            return
        cuts = [0, *(np.flatnonzero(np.diff(queue_offsets) != 1) + 1).tolist(), count]
        for start, end in itertools.pairwise(cuts):
            self._put_run(int(queue_offsets[start]), rows[start:end], damaged)

    def _put_run(self, first: int, rows: Units, damaged: tuple[int, int] | None) -> None:
        """Put units with consecutive offsets, which may overlap what is there or leave a gap."""
        known, there = self._files.has_files, self._files.end
        if not 0 <= first <= QUEUE_OFFSET_MAX or (known and first - there > GAP_UNITS_MAX):
            self._refuse(first, len(rows), "an impossible queue offset")
            return
        overlap = min(max(there - first, 0), len(rows))
        if overlap and known:
            self._put_over(first, rows[:overlap])
            first, rows = first + overlap, rows[overlap:]
        if len(rows) == 0:
            return
        gap_start = there if known else first - first % self.units_per_file
        fill = self._fill(first - gap_start, damaged) if gap_start < first else b""
        self._files.write(gap_start, fill + rows.tobytes())

    def _fill(self, count: int, damaged: tuple[int, int] | None) -> bytes:
        """Return fill units: before the first unit of the queue, or for places that are missing."""
        unit = CQ_UNIT.pack(physical_offset=0, size=CQ_PRE_FILL_SIZE, tags_code=0)
        known = self._files.has_files
        if known and damaged is not None:
            size = min(damaged[1], INT32_MAX)
            unit = CQ_UNIT.pack(physical_offset=damaged[0], size=size, tags_code=0)
        elif known:  # the reason is not known: keep the order, for searches
            last = self.unit(self._files.end - 1)
            offset = last.physical_offset if last else 0
            unit = CQ_UNIT.pack(physical_offset=offset, size=CQ_PRE_FILL_SIZE, tags_code=0)
        return unit * count

    def _put_over(self, first: int, rows: Units) -> None:
        """Put units where some are: equal ones are passed by, fill units are replaced."""
        there = self.units(first, first + len(rows))
        if there.tobytes() == rows.tobytes():
            return
        rows = rows[: len(there)].copy()
        # An address replaces the hash, if it is the same record's.
        same = is_address(there["tags_code"])
        same &= there["physical_offset"] == rows["physical_offset"]
        rows["tags_code"][same] = there["tags_code"][same]
        fill = is_fill(there)
        refused = ~fill & (there != rows)
        if refused.any():
            self._refuse(first + int(refused.argmax()), int(refused.sum()), "taken by another")
        for place in np.flatnonzero(fill).tolist():
            self._files.replace(first + place, rows[place].tobytes())

    def _refuse(self, offset: int, count: int, reason: str) -> None:
        if not self.refused:
            _log.warning("%s/%d: unit %d: %s", self.topic, self.queue_id, offset, reason)
        self.refused += count

    def recover(
        self, keep_below: int, keeper: Quarantine | None = None, log_end: int = 1 << 62
    ) -> int:
        """Cut at the first unit that cannot be right, or has its record at or above `keep_below`.

        That is a physical offset. Units must rise by it; pre-fill before the first real unit stays.
        Everything behind the cut is zeroed, durably. Returns the new max_offset.

        A `keeper` gets the files that go, and a copy of the units that the log does not give
        again: those of records that end behind `log_end`.
        """
        with self._open_lock:
            files, self._min_for = self._files, -1
            files.load_sound(keep_below)
            end = files.end
            # If no unit is kept, only the first file may stay: a later file would come before the
            # units that the log gives again.
            if keeper is not None and self._reaches_beyond(log_end):
                keeper.copy(*files.path_and_position(end))
            files.cut(end, keeper)
            if self.ext is not None:
                self.ext.recover(self._last_address(), keeper)
            return end

    def _reaches_beyond(self, log_end: int) -> bool:
        """True if units behind the end, in its file, are of records that end behind `log_end`."""
        there = self._files.read(self._files.end, self.next_file_offset(self._files.end))
        ends = there["physical_offset"].astype(np.int64) + there["size"]
        return bool((is_unit(there) & ~is_fill(there) & (ends > log_end)).any())

    def cut(self, end: int) -> None:
        """Drop the units from queue offset `end` on; zeroed, durably (for recovery)."""
        with self._open_lock:
            self._files.open()
            self._files.cut(end)
            self._min_for = -1

    def delete_expired(self, log_minimum: int) -> int:
        """Delete the oldest files with all records below a physical offset.

        Never the last file. Returns how many went, durably.
        """
        count = self._files.delete_expired(log_minimum)
        self._min_for = -1 if count else self._min_for
        if count and self.ext is not None:
            first_unit = self.unit(self._files.first)
            if first_unit is not None and is_address(first_unit.tags_code):
                self.ext.delete_below(first_unit.tags_code)
        return count

    @property
    def dirty_pages(self) -> int:
        """Borders of 4 KiB pages between what is on stable storage and the end."""
        return self._files.dirty_pages

    def flush(self) -> bool:
        """Bring what was written to stable storage; False if there was nothing to do."""
        if self.ext is not None:
            self.ext.flush()
        return self._files.flush()

    def reload(self) -> None:
        """Read the files again, as a reader beside a live writer does."""
        with self._open_lock:
            self._files.reload()
            self._min_for = -1

    def close(self) -> None:
        """Give the descriptors back."""
        self._files.close()
        if self.ext is not None:
            self.ext.close()

    def _first_at_or_above(self, physical_offset: int) -> int:
        """Find the first real unit at or above a physical offset (they rise); else the end."""
        end, low = self._files.end, self._files.first_at_or_above(physical_offset)
        while low < end:
            units = self.units(low, low + _SEARCHED_UNITS)
            if len(units) == 0:
                break
            fill = is_fill(units)
            if not fill.all():
                return low + int(fill.argmin())
            low += len(units)
        return end
