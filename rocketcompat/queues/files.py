"""The files of one queue, whatever its units: opened when they are first needed, and cut.

The number of units is not in the files. In a closed queue they are followed by zeros only. After a
crash the end is behind the last unit that can be right: units rise by physical offset, and stale
ones do not.

*Place* is a unit's number in the files, counted from offset 0; in an ordinary queue it is the
unit's queue offset.

Guards: `open_lock`, the table's, guards opening and cutting.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.files.mapped_file_queue import PAGE, MappedFileQueue
from rocketcompat.formats import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    BATCH_CQ_UNIT,
    CONSUME_QUEUE_DIRECTORY,
    CQ_UNIT,
)
from rocketcompat.options import MessageStoreConfig
from rocketcompat.queues.units import (
    LogMinimum,
    Units,
    end_of,
    is_batch_unit,
    is_unit,
    read_units,
)
from tubestore.core.layout import Buffer, Layout
from tubestore.core.quarantine import Quarantine
from tubestore.core.vfs import Vfs

#: A file of RocksDB's; it keeps queues in the same directory in another format.
_ROCKSDB_FILE = "CURRENT"
#: Recovery reads this many units at first, then twice as many each time.
_RECOVER_UNITS = 1024
_RECOVER_UNITS_MAX = 65_536


def queue_names(vfs: Vfs, directory: str) -> Iterator[tuple[str, int]]:
    """Yield topic and queue id of the queues below a directory, sorted."""
    for topic, is_directory, _ in vfs.entries(directory):
        if is_directory:
            names = vfs.entries(os.path.join(directory, topic))
            ids = [name for name, is_queue, _ in names if is_queue and _is_id(name)]
            yield from ((topic, int(name)) for name in sorted(ids, key=int))


def _is_id(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def holds_rocksdb(vfs: Vfs, directory: str) -> bool:
    """True if a directory's queues are RocksDB's; a topic may have the name of its file."""
    return vfs.exists(os.path.join(directory, _ROCKSDB_FILE)) and any(
        name == _ROCKSDB_FILE and not is_directory
        for name, is_directory, _ in vfs.entries(directory)
    )


@dataclass(frozen=True)
class UnitKind:
    """The differences between units of messages and units of inner batches."""

    layout: Layout
    #: The directory of queues of this kind, and the option with the size of their files.
    directory: str
    file_size_option: str
    #: True if a unit, as a tuple, can be one: as `is_unit` and `is_batch_unit` have it of columns.
    is_set: Callable[[Any], bool]
    #: How many units from the first on can be right: (units, `keep_below`, the unit before them).
    sound_count: Callable[[Units, int, Any], int]
    #: True if a file's first unit is compared with the last one of the file before, and a queue
    #: without units continues in its first file.
    is_joined: bool

    def file_size(self, config: MessageStoreConfig) -> int:
        """Return the bytes of a file."""
        size: int = getattr(config, self.file_size_option)
        return size


def sound_units(units: Units, keep_below: int, before: Any) -> int:
    """Count the units from the first on that can be right: sizes, and offsets that never fall."""
    offsets = units["physical_offset"].astype(np.int64)
    last = -1 if before is None else before.physical_offset
    good = is_unit(units) & (offsets < keep_below)
    # Units at damaged records share their offset; all others rise.
    good &= offsets >= np.concatenate(([last], offsets[:-1]))[: len(units)]
    return len(units) if good.all() else int(good.argmin())


def sound_batch_units(units: Units, keep_below: int, before: Any) -> int:
    """Count the units from the first on that can be right: sizes, and an order that rises."""
    offsets = units["physical_offset"].astype(np.int64)
    bases = units["base_offset"].astype(np.int64)
    good = is_batch_unit(units) & (offsets >= 0) & (offsets < keep_below) & (bases >= 0)
    ends = bases + units["batch_size"]
    last = (-1, 0) if before is None else (before.physical_offset, end_of(before))
    good &= offsets > np.concatenate(([last[0]], offsets[:-1]))[: len(units)]
    good &= bases >= np.concatenate(([last[1]], ends[:-1]))[: len(units)]
    return len(units) if good.all() else int(good.argmin())


PLAIN = UnitKind(
    CQ_UNIT, CONSUME_QUEUE_DIRECTORY, "consume_queue_file_size",
    lambda unit: unit[1] > 0 and unit[0] >= 0, sound_units, is_joined=False,
)  # fmt: skip
OF_BATCHES = UnitKind(
    BATCH_CQ_UNIT, BATCH_CONSUME_QUEUE_DIRECTORY, "mapper_file_size_batch_consume_queue",
    lambda unit: unit[1] > 0 and unit[5] > 0, sound_batch_units, is_joined=True,
)  # fmt: skip


class QueueFiles:
    """The units of a queue in its files; those below `end` are there, behind it all is zero."""

    __slots__ = ("_files", "_kind", "_log_minimum", "_open_lock", "_size", "end", "is_open", "tail",
                 "trusted_end")  # fmt: skip

    def __init__(
        self, vfs: Vfs, directory: str, kind: UnitKind, file_size: int, log_minimum: LogMinimum,
        open_lock: threading.RLock, *, trusted_end: int | None = None, writable: bool = True,
    ) -> None:  # fmt: skip
        self._files = MappedFileQueue(vfs, directory, file_size, writable=writable)
        self._kind, self._size = kind, kind.layout.size
        self._log_minimum, self._open_lock = log_minimum, open_lock
        #: The place behind the last unit by a clean close; None: not known.
        self.trusted_end = trusted_end
        self.is_open = False
        #: The place behind the last unit, of opened files.
        self.end = 0
        #: The last file of opened ones: looked up once, not for every few units.
        self.tail: MappedFile | None = None

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """All files in order, as of now."""
        return self._files.files

    @property
    def has_files(self) -> bool:
        """True while the queue has a file; only opened files are known."""
        return self._files.last is not None

    @property
    def first(self) -> int:
        """The place of the first unit; 0 without files."""
        return self._files.min_offset // self._size

    @property
    def per_file(self) -> int:
        """How many units a file holds."""
        return self._files.file_size // self._size

    def lacking(self, *, from_zero: bool = False) -> str | None:
        """Return the path of a file that is missing before the last, or is empty; None if none is.

        With `from_zero` the first file has to start at 0, too.
        """
        return self._files.lacking(from_zero=from_zero)

    def next_file(self, place: int) -> int:
        """Return the first place of the file after the one of `place`."""
        return place - place % self.per_file + self.per_file

    def path_and_position(self, place: int) -> tuple[str, int]:
        """Return the file of a unit and the position of its first byte there."""
        position = place * self._size
        file = self._files.find(position)
        if file is not None:
            return file.path, position - file.file_from_offset
        return self._files.path_of(position), position % self._files.file_size

    def open(self) -> None:
        """Take in the files and find the end, once."""
        if self.is_open:
            return
        with self._open_lock:
            if self.is_open:
                return
            self._files.load()
            trusted, last = self.trusted_end, self._files.last
            if trusted is not None and trusted <= (last.end_of_file // self._size if last else 0):
                self.end = trusted
            else:
                end = self._found_end()
                self.end = self._log_minimum.seen(self.first, end, self.physical_offset)
            self._files.set_end(self.end * self._size)
            if trusted is not None:
                self._files.set_flushed(self.end * self._size)
            self.tail = self._file_of_end()
            self.is_open = True

    def _found_end(self) -> int:
        """Return the place behind the last unit of closed files, by binary search."""
        size, unpack, is_set = self._size, self._kind.layout.struct.unpack, self._kind.is_set
        for file in reversed(self.files):
            low, high = 0, file.file_size // size
            while low < high:
                middle = (low + high) // 2
                # A reader may find a file empty: a power cut took its length.
                raw = file.read(middle * size, size)
                if len(raw) == size and is_set(unpack(raw)):
                    low = middle + 1
                else:
                    high = middle
            if low:
                return file.file_from_offset // size + low
        return self.first if self._kind.is_joined else 0

    def _file_of_end(self) -> MappedFile | None:
        """Return the file of the last unit; behind it there may be one that is empty."""
        return self._files.find(max(self.end * self._size - 1, 0))

    def read(self, start: int, end: int) -> Units:
        """Return units [start, end) as far as they are there, over files; fewer behind a hole."""
        return read_units(self._files, start, end, self._kind.layout)

    def unit(self, place: int) -> Any:
        """Return a unit as a named tuple, None if it is not there."""
        raw = self._files.read(place * self._size, self._size)
        return self._kind.layout.unpack_from(raw) if len(raw) == self._size else None

    def physical_offset(self, place: int) -> int:
        """Return the physical offset in a unit of the files; -1 where none can be read."""
        unit = self.unit(place)
        return -1 if unit is None else int(unit.physical_offset)

    def first_at_or_above(self, physical_offset: int) -> int:
        """Return the place of the first unit at or above a physical offset; `end` if none is."""
        first = min(self.first, self.end)
        # Mostly it is the first, whatever a damaged unit behind it contains.
        if first < self.end and self.physical_offset(first) >= physical_offset:
            return first
        return bisect_left(range(self.end), physical_offset, first, key=self.physical_offset)

    def write(self, place: int, units: Buffer) -> None:
        """Write units at a place, where the queue ends from then on."""
        self._files.write_at(place * self._size, units)
        self.end = place + len(units) // self._size
        self.tail = self._file_of_end()

    def replace(self, place: int, unit: Buffer) -> None:
        """Write over a unit that is there."""
        self._files.write_at(place * self._size, unit)

    # -- recovery and expiry -----------------------------------------------------------------

    def load_sound(self, keep_below: int) -> bool:
        """Load the files and set `end` at the first unit that is not kept; False if none is kept.

        That is the first unit that cannot be right, or has its record at or above `keep_below`.
        `cut` has to follow.
        """
        self._files.load()
        self.is_open, self.tail = True, None
        files = self.files
        while files and not self._starts_well(files, keep_below):
            files = files[:-1]
        self.end = self._sound_end(files, keep_below) if files else 0
        return bool(files)

    def _starts_well(self, files: tuple[MappedFile, ...], keep_below: int) -> bool:
        """True if the cut is in the last of these files or behind it."""
        first = np.frombuffer(files[-1].read(0, self._size), self._kind.layout.dtype)
        before = self._last_in(files[-2]) if len(files) > 1 else None
        if self._kind.is_joined or len(files) == 1:
            return self._kind.sound_count(first, keep_below, before) == 1
        if self._kind.sound_count(first, keep_below, None) != 1:
            return False
        whole = before is not None and self._kind.is_set(before)
        return whole or files[-2].end_of_file != files[-1].file_from_offset

    def _sound_end(self, files: tuple[MappedFile, ...], keep_below: int) -> int:
        """Return the place behind the last unit that is kept, in the last of these files."""
        kind, file, size = self._kind, files[-1], self._size
        before = self._last_in(files[-2]) if kind.is_joined and len(files) > 1 else None
        place, count = 0, _RECOVER_UNITS
        while place < self.per_file:
            raw = file.read(place * size, count * size)
            units = np.frombuffer(raw[: len(raw) - len(raw) % size], kind.layout.dtype)
            good = kind.sound_count(units, keep_below, before)
            place += good
            if good < len(units) or not good:
                break
            before = kind.layout.unpack_from(units[-1:].tobytes())
            count = min(2 * count, _RECOVER_UNITS_MAX)
        return file.file_from_offset // size + place

    def _last_in(self, file: MappedFile) -> Any:
        """Return the last unit of a file, None if it is shorter."""
        raw = file.read(file.file_size - self._size, self._size)
        return self._kind.layout.unpack_from(raw) if len(raw) == self._size else None

    def cut(self, end: int, keeper: Quarantine | None = None) -> None:
        """Drop the units from a place on; zeroed, durably; files that go are moved to a keeper."""
        leave_empty = self._kind.is_joined or end == 0
        self._files.truncate_dirty_files(end * self._size, leave_empty=leave_empty, keeper=keeper)
        self.end, self.tail = end, None

    def delete_expired(self, log_minimum: int) -> int:
        """Delete the oldest files with all records below a physical offset.

        Never the last file. Returns how many went, durably.
        """
        count = 0
        if self.is_open or self._files.holds_several():
            self.open()
            while len(files := self.files) > 1:
                last = self._last_in(files[0])
                if last is None or last.physical_offset >= log_minimum:
                    break
                self._files.delete_oldest()
                count += 1
        return count

    @property
    def dirty_pages(self) -> int:
        """Borders of 4 KiB pages between what is on stable storage and the end."""
        tail = self.tail
        if tail is not None and tail.file_from_offset == 0:  # the only file: asked of all queues
            return tail.wrote_position // PAGE - tail.flushed_position // PAGE
        return self._files.dirty_pages

    def flush(self) -> bool:
        """Bring what was written to stable storage; False if there was nothing to do."""
        return self._files.flush()

    def reload(self) -> None:
        """Read the files again, as a reader beside a live writer does."""
        with self._open_lock:
            self.is_open, self.trusted_end, self.tail = False, None, None

    def close(self) -> None:
        """Give the descriptors back."""
        self._files.close()
