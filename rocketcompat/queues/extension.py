"""The extension of a queue: tag hash, store time and a filter's bitmap of its messages.

With `enableConsumeQueueExt` a unit's tag field holds the address of a unit here, and that one the
hash. Units follow each other and never cross a file's end. If a unit does not fit with 4 bytes to
spare, the file ends in a mark. Units of this package have no bitmap (RocketMQ's broker computes
them), so they take 20 bytes; those of a broker are read as they are.

Always true: everything that a unit of the queue points to is here before that unit is written.
Recovery zeroes what a crash leaves behind the last of these units.

One thread appends; any may read.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.formats import CQ_EXT_UNIT, INT32_MAX
from tubestore.core.kernels import Int64s
from tubestore.core.quarantine import Quarantine
from tubestore.core.vfs import Vfs

_UNIT_SIZE = CQ_EXT_UNIT.size
#: Kept free at the end of a file, for the mark.
_END_SIZE = 4
_END_MARK = struct.pack(">h", -1)
_ADDRESS_BASE = -(1 << 63)


def is_address(tags_codes: Any) -> Any:
    """True for tag fields (an int or a column) that are addresses; hashes have 32 bits."""
    return tags_codes < -(INT32_MAX + 1)


class ConsumeQueueExt:
    """The extension of one queue. An address is the content of a tag field."""

    def __init__(self, vfs: Vfs, directory: str, file_size: int, *, writable: bool) -> None:
        self._files = MappedFileQueue(vfs, directory, file_size, writable=writable)
        self._file_size = file_size
        self._loaded = False
        #: The place of the next unit; unknown until `open_behind`.
        self._end: int | None = None

    @property
    def is_open(self) -> bool:
        """True once the place of the next unit is known."""
        return self._end is not None

    def open_behind(self, last_address: int | None) -> None:
        """Take the unit at an address for the last one; None for none at all."""
        self._load()
        end = self._end_of(last_address)
        self._files.set_end(end)
        self._end = end

    def append(self, tags_codes: Int64s, store_timestamps: Int64s) -> Int64s:
        """Append units; returns their addresses. OSError passes through."""
        assert self._end is not None, "where the extension ends is not known"
        count = len(tags_codes)
        units = np.zeros(count, CQ_EXT_UNIT.dtype)
        units["size"] = _UNIT_SIZE
        units["tags_code"], units["store_timestamp"] = tags_codes, store_timestamps
        offsets = np.empty(count, np.int64)
        first = 0
        while first < count:
            position = self._end % self._file_size
            room = (self._file_size - _END_SIZE - position) // _UNIT_SIZE
            if room <= 0:
                self._files.write_at(self._end, _END_MARK)
                self._end += self._file_size - position
                continue
            last = min(count, first + room)
            self._files.write_at(self._end, units[first:last].tobytes())
            offsets[first:last] = self._end + _UNIT_SIZE * np.arange(last - first)
            self._end += _UNIT_SIZE * (last - first)
            first = last
        return offsets + _ADDRESS_BASE

    def resolve(self, tags_codes: Int64s) -> Int64s:
        """Return tag fields with addresses replaced by the hashes in their units.

        An address that leads nowhere stays.
        """
        places = np.flatnonzero(is_address(tags_codes))
        if not len(places):
            return tags_codes
        self._load()
        resolved = tags_codes.copy()
        for place, address in zip(places.tolist(), tags_codes[places].tolist(), strict=True):
            unit = self._unit_at(address)
            if unit is not None:
                resolved[place] = unit.tags_code
        return resolved

    def recover(self, last_address: int | None, keeper: Quarantine | None = None) -> None:
        """Drop everything behind the unit at an address, durably; None drops all."""
        self._load(again=True)
        end = self._end_of(last_address)
        self._files.truncate_dirty_files(end, keeper=keeper)
        self._end = end

    def delete_below(self, address: int) -> None:
        """Unlink files that end before an address, durably; never the last."""
        self._load()
        offset = address - _ADDRESS_BASE
        while len(files := self._files.files) > 1:
            if files[0].file_from_offset + self._file_size > offset:
                return
            self._files.delete_oldest()

    def flush(self) -> None:
        """Bring what was appended to stable storage."""
        self._files.flush()

    def close(self) -> None:
        """Give the descriptors back."""
        self._files.close()

    def _load(self, *, again: bool = False) -> None:
        if not self._loaded or again:
            self._files.load()
            self._loaded = True

    def _unit_at(self, address: int) -> Any:
        raw = self._files.read(address - _ADDRESS_BASE, _UNIT_SIZE)
        if len(raw) < _UNIT_SIZE:
            return None
        unit = CQ_EXT_UNIT.unpack_from(raw)
        return unit if unit.size >= _UNIT_SIZE else None

    def _end_of(self, last_address: int | None) -> int:
        """Return the offset behind the unit at an address."""
        if last_address is None:
            return self._files.min_offset
        unit = self._unit_at(last_address)
        offset = last_address - _ADDRESS_BASE
        if unit is None:  # the file is gone: go on in a new one
            return offset - offset % self._file_size + self._file_size
        return int(offset + unit.size)
