"""The one walk of the CommitLog: its chain of records over its files, and the gaps in between.

`scan` follows the chain up to the first fault; `walk` goes on behind it, as the caller judges.
Reads only; used by recovery, by the dispatcher where puts left no places of records, and by
readers of a directory that lies still. Nothing here trusts a byte: what is returned as a
record has its magic code, its length, its own physical offset and its checksum.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self

import numpy as np

from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.formats import MAGIC_PREFIX, MESSAGE_PREFIX, offset_name
from rocketcompat.record.codec import decode_one
from rocketcompat.record.verify import sound_chain
from tubestore.core.kernels import Int64s
from tubestore.errors import CorruptRecord

PIECE_BYTES = 8 << 20
_SEARCH_BYTES = 1 << 20
#: A search, and a walk to a log's end, begin with so many bytes and go on with twice as many each
#: time: behind the end of most logs there is a hole, which a reader meets at each refresh.
FIRST_BYTES = 16 << 10
_MAGIC_POSITION = MESSAGE_PREFIX.position("magic_code")


#: States of a gap behind which the log does not go on.
ENDS = ("torn", "stale")
#: Why a gap holds no records if a file between others is gone.
FILE_MISSING = "the file of this place is missing"
#: A physical offset behind every log.
NOWHERE = 1 << 63


class LogView(Protocol):
    """The files of a log: `MappedFileQueue`, or a directory as it lies."""

    directory: str
    file_size: int

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The files in order."""

    @property
    def last(self) -> MappedFile | None:
        """The file with the highest offset."""

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte."""

    @property
    def max_offset(self) -> int:
        """Physical offset behind the last byte."""

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds an offset."""


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
class Gap:
    """A part [start, end) of the log that holds no sound records.

    `state` is "damaged" if sound ones follow, "missing" if its file is not there; at the end
    of the log "torn", or "stale" where records follow that an earlier recovery cut off.
    `position` is where it starts in the file at `path`.
    """

    start: int
    end: int
    state: str
    reason: str
    path: str
    position: int
    #: Of a whole file that holds records of another place: where they belong.
    belongs: int | None = None

    @property
    def size(self) -> int:
        """Bytes of the gap."""
        return self.end - self.start

    def error(self) -> CorruptRecord:
        """Return the same as an exception to raise or to list."""
        return CorruptRecord(self.path, self.position, f"{self.size} bytes: {self.reason}")


def gap_of(log: LogView, start: int, end: int, reason: str, state: str | None = None) -> Gap:
    """Return a gap with its file and position; by default "damaged", or "missing" without one."""
    file = log.find(start)
    if file is None:
        position = start % log.file_size
        path = os.path.join(log.directory, offset_name(start - position))
        return Gap(start, end, state or "missing", reason, path, position)
    position = start - file.file_from_offset
    return Gap(start, end, state or "damaged", reason, file.path, position)


class Gaps(tuple[Gap, ...]):
    """The gaps of a log that are known, in order; never changed but replaced."""

    __slots__ = ()

    @classmethod
    def merged(cls, gaps: Iterable[Gap]) -> Self:
        """Return gaps in order, without those that begin inside another one."""
        kept: list[Gap] = []
        for gap in sorted(gaps, key=lambda g: (g.start, -g.end, g.belongs is None)):
            if not kept or gap.start >= kept[-1].end:
                kept.append(gap)
        return cls(kept)

    def over(self, offset: int) -> Gap | None:
        """Return the gap that an offset lies in."""
        return next((gap for gap in self if gap.start <= offset < gap.end), None)

    def next_start(self, offset: int, limit: int = NOWHERE) -> int:
        """Return where the first gap behind an offset begins, `limit` at most."""
        return min([limit, *(gap.start for gap in self if gap.start > offset)])


NO_GAPS = Gaps()


@dataclass(frozen=True, slots=True)
class Checks:
    """What is compared of each record beside its magic code, its length and its place.

    From `own_from` on only this package has written, which is stricter (see
    `verify.first_fault`, for `record_crc` too).
    """

    body_crc: bool = True
    record_crc: bool = False
    own_from: int = NOWHERE
    #: True if the log's last record may be what a kill left of a write: another program may write
    #: zeros into topics and properties, but at the log's very end they are a torn write.
    torn_tail: bool = False


#: What links a record to the next, and nothing else.
LINKS = Checks(body_crc=False)


class Again(Enum):
    """An answer to a fault: verify the place again, a writer may be in the middle of it."""

    AGAIN = "again"


#: Judges where the chain broke, by physical offset and reason: a gap that is passed over (the walk
#: ends behind one of `ENDS`), `AGAIN`, or None where the log ends.
OnFault = Callable[[int, str], Gap | Again | None]


def walk(
    log: LogView,
    start: int,
    end: int,
    *,
    on_fault: OnFault,
    known: Gaps = NO_GAPS,
    checks: Checks = LINKS,
    bytes_max: int = PIECE_BYTES,
    bytes_first: int = PIECE_BYTES,
) -> Iterator[Piece | Gap]:
    """Yield the records of [start, end) and the gaps between them, in order.

    `known` gaps are not read; a gap that holds `start` is yielded whole. Every piece of
    the chain is yielded, also one without records: its `end` is how far the walk came.
    """
    position = start
    while position < end:
        gap = known.over(position)
        if gap is not None:
            yield gap
            position = gap.end
            continue
        own, fault = position >= checks.own_from, None
        stop = known.next_start(position, end if own else min(end, checks.own_from))
        for piece in scan(
            log, position, stop, check_crc=checks.body_crc, own=own,
            record_crc=checks.record_crc, bytes_max=bytes_max, bytes_first=bytes_first,
        ):  # fmt: skip
            position, fault = piece.end, piece.fault
            yield piece
        if fault is None:
            if position < stop:
                return
            continue
        judged = on_fault(position, fault)
        if judged is None:
            return
        if isinstance(judged, Gap):
            yield judged
            if judged.state in ENDS:
                return
            position = judged.end


def scan(
    log: LogView,
    start: int,
    end: int,
    *,
    check_crc: bool = True,
    own: bool = False,
    record_crc: bool = False,
    bytes_max: int = PIECE_BYTES,
    bytes_first: int = PIECE_BYTES,
) -> Iterator[Piece]:
    """Follow the chain from the physical offset `start` up to `end`, piece by piece.

    Stops behind the first piece with a fault, at the end of what is written, and never reads
    behind `end`. The last piece's `end` is where the chain ends; it moves on into the next
    file only if that exists. `own` and `record_crc` are those of
    `verify.first_fault`.
    """
    position, most = start, min(bytes_first, bytes_max)
    window = most
    while position < end:
        file = log.find(position)
        if file is None:
            yield Piece(b"", position, _NONE, position, FILE_MISSING)
            return
        relative = position - file.file_from_offset
        data = file.read(relative, min(window, end - position))
        found = sound_chain(
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
            window = most = min(2 * most, bytes_max)
        at_file_end = after == file.file_from_offset + file.file_size
        if found.blank or at_file_end:
            following = file.file_from_offset + file.file_size
            beyond = log.last
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


def find_record(log: LogView, start: int, end: int) -> int | None:
    """Return the physical offset of the first sound record at or behind `start`, None without one.

    Holes are passed over without being read; damage in between is searched byte by byte for
    the magic code, and what follows one must be a whole record of its own place.
    """
    for file in log.files:
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
    position, size = start, FIRST_BYTES
    while position < end:
        # A magic code is 4 bytes behind the record's start, which may still be a hole.
        data_at = file.next_data(position)
        if data_at is None:
            return None
        position = max(position, data_at - MESSAGE_PREFIX.size)
        window = file.read(position, min(size + MESSAGE_PREFIX.size, end - position))
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
        size = min(2 * size, _SEARCH_BYTES)
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
