"""Following the CommitLog's chain of records over its files, and finding it again behind damage.

Reads only; used by recovery, by the dispatcher where nobody told it the records' places, and
by readers of a directory that lies still. Nothing here trusts a byte: what is returned as a
record has its magic code, its length, its own physical offset and its checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.formats import MAGIC_PREFIX, MESSAGE_PREFIX
from rocketcompat.record.codec import decode_one
from rocketcompat.record.verify import walk
from tubestore.core.kernels import Int64s
from tubestore.errors import CorruptRecord

PIECE_BYTES = 8 << 20
_SEARCH_BYTES = 1 << 20
_MAGIC_POSITION = MESSAGE_PREFIX.position("magic_code")


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive records of one file: `starts` are positions in `data`, sound ones.

    `base` is the physical offset of `data[0]`; the chain goes on at the physical offset `end`,
    or, with a `fault`, ends there for the reason given.
    """

    data: bytes
    base: int
    starts: Int64s
    end: int
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """A region [start, end) of the log that holds no records, with sound ones behind it."""

    start: int
    end: int
    path: str
    position: int
    reason: str
    #: Of a whole file that holds records of another place: where they belong.
    belongs: int | None = None

    @property
    def size(self) -> int:
        """Bytes of the region."""
        return self.end - self.start

    def error(self) -> CorruptRecord:
        """The same as an exception to raise or to list."""
        return CorruptRecord(self.path, self.position, f"{self.size} bytes: {self.reason}")


def scan(
    queue: MappedFileQueue,
    start: int,
    end: int,
    *,
    check_crc: bool = True,
    own: bool = False,
    record_crc: bool = False,
    bytes_max: int = PIECE_BYTES,
) -> Iterator[Piece]:
    """Follow the chain from the physical offset `start` up to `end`, piece by piece.

    Stops behind the first piece with a fault, at the end of what is written, and never reads
    behind `end`. The last piece's `end` is where the chain stands; it moves on into the next
    file only if that exists (spec §8.1, trap 10). `own` and `record_crc` are those of
    `record_check.first_fault`.
    """
    position, window = start, bytes_max
    while position < end:
        file = queue.find(position)
        if file is None:
            yield Piece(b"", position, _NONE, position, "the file of this place is missing")
            return
        relative = position - file.file_from_offset
        data = file.read(relative, min(window, end - position))
        found = walk(
            data, 0, position, file.file_size - relative, check_crc=check_crc, own=own,
            record_crc=record_crc,
        )  # fmt: skip
        after = position + found.end
        if found.reason is None and found.wanted > window:
            window = found.wanted  # a record larger than the window; bounded by the file
            if not found.end:
                continue
        elif found.reason is None and found.wanted and not found.end:
            yield Piece(data, position, _NONE, position, "a record that is not whole")
            return
        else:
            window = bytes_max
        at_file_end = after == file.file_from_offset + file.file_size
        if found.blank or at_file_end:
            following = file.file_from_offset + file.file_size
            beyond = queue.last
            if beyond is not None and beyond.file_from_offset >= following and following <= end:
                yield Piece(data, position, found.starts, following)
                position = following
                continue
            yield Piece(data, position, found.starts, after)
            return
        yield Piece(data, position, found.starts, after, found.reason)
        if found.reason is not None:
            return
        position = after


_NONE = np.empty(0, np.int64)


def find_record(queue: MappedFileQueue, start: int, end: int) -> int | None:
    """Return the physical offset of the first sound record at or behind `start`, None without one.

    Holes are passed over without being read; damage in between is searched byte by byte for
    the magic code, and what follows one must be a whole record that stands where it says.
    """
    for file in queue.files:
        file_end = min(file.file_from_offset + file.wrote_position, end)
        if file_end <= start:
            continue
        found = _find_in_file(file, max(start - file.file_from_offset, 0),
                              file_end - file.file_from_offset)  # fmt: skip
        if found is not None:
            return file.file_from_offset + found
    return None


def _find_in_file(file: MappedFile, start: int, end: int) -> int | None:
    """Return the position of the first sound record of this place that starts in [start, end)."""
    found = find_in_file(file, start, end, file.file_from_offset.__add__)
    return found[0] if found is not None else None


def find_in_file(
    file: MappedFile, start: int, end: int, place_of: Callable[[int], int] | None = None
) -> tuple[int, int] | None:
    """Return position and physical offset of the first sound record that starts in [start, end).

    `place_of` returns the physical offset that a record at a position has to have; without it
    every one counts.
    """
    position = start
    while position < end:
        # A magic code stands 4 bytes behind the record's start, which may still be a hole.
        data_at = file.next_data(position)
        if data_at is None:
            return None
        position = max(position, data_at - MESSAGE_PREFIX.size)
        window = file.read(position, min(_SEARCH_BYTES + MESSAGE_PREFIX.size, end - position))
        at = window.find(MAGIC_PREFIX)
        while at >= 0:
            candidate = position + at - _MAGIC_POSITION
            if candidate >= start:
                wanted = place_of(candidate) if place_of is not None else None
                place = _place_at(file, candidate, wanted)
                if place is not None:
                    return candidate, place
            at = window.find(MAGIC_PREFIX, at + 1)
        if len(window) <= MESSAGE_PREFIX.size:
            return None
        position += len(window) - MESSAGE_PREFIX.size
        if position + MESSAGE_PREFIX.size >= end:
            return None
    return None


def _place_at(file: MappedFile, position: int, wanted: int | None) -> int | None:
    """Return the physical offset of the sound record at `position`; None without one.

    None too if `wanted` is another one.
    """
    head = file.read(position, MESSAGE_PREFIX.size)
    if len(head) < MESSAGE_PREFIX.size:
        return None
    prefix = MESSAGE_PREFIX.unpack_from(head)
    place = int(prefix.physical_offset)
    if wanted not in (None, place) or prefix.total_size > file.file_size - position:
        return None
    if prefix.total_size < MESSAGE_PREFIX.size:
        return None
    try:
        decode_one(file.read(position, prefix.total_size), physical_offset=place)
    except CorruptRecord:
        return None
    return place
