"""One record of a log by its physical offset, of anything that can read the log's bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from rocketcompat.commitlog.walk import Gaps, LogView, Piece, walk
from rocketcompat.formats import (
    CQ_PRE_FILL_SIZE,
    LOST_REASON,
    MESSAGE_HEADS,
    MESSAGE_PREFIX,
    hosts_of,
)
from rocketcompat.messages import MessageRecord
from rocketcompat.record.codec import decode_one
from rocketcompat.record.copies import copies_of_one
from tubestore.errors import CorruptRecord, OffsetOutOfRange

#: A queue (topic, queue id), and a queue offset in it.
QueuePlace = tuple[tuple[str, int], int]
#: A unit with a larger record is compared with the record's own length before that is read.
_TRUSTED_SIZE = 64 * 1024
#: A record of unknown size is read with so many bytes at first: most need no second read.
_FIRST_READ = 4096


class LogBytes(Protocol):
    """What a read asks of the CommitLog."""

    @property
    def gaps(self) -> Gaps:
        """What is known to be damaged: its records are not delivered."""

    @property
    def record_crc(self) -> bool:
        """True if the checksum of the whole record is compared, and not the body's."""

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte."""

    @property
    def max_offset(self) -> int:
        """Physical offset behind the last record."""

    def read_at(self, physical_offset: int, size: int) -> bytes:
        """Read bytes as they are, fewer where there are no more."""


class ReadableLog(LogBytes, Protocol):
    """A log with its files: the CommitLog, or a directory as far as it counts."""

    @property
    def queue(self) -> LogView:
        """The files."""


def record_at(log: ReadableLog, physical_offset: int, *, check_crc: bool = True) -> MessageRecord:
    """Decode the record that starts at `physical_offset`.

    OffsetOutOfRange outside the log; CorruptRecord where no sound record starts.
    """
    if not log.min_offset <= physical_offset < log.max_offset:
        raise OffsetOutOfRange(physical_offset, log.min_offset, log.max_offset)
    file = log.queue.find(physical_offset)
    path = file.path if file else log.queue.directory
    position = physical_offset - (file.file_from_offset if file else 0)
    gap = log.gaps.over(physical_offset) if check_crc else None
    if gap is not None and file is None:
        raise gap.error()
    head = log.read_at(physical_offset, MESSAGE_PREFIX.size)
    if len(head) < MESSAGE_PREFIX.size:
        raise CorruptRecord(path, position, "no room for a record")
    size = MESSAGE_PREFIX.unpack_from(head).total_size
    room = log.queue.file_size - physical_offset % log.queue.file_size
    if not MESSAGE_PREFIX.size <= size <= room:
        raise CorruptRecord(path, position, f"a length of {size} bytes")
    data = log.read_at(physical_offset, size)
    if gap is not None:
        raise CorruptRecord(path, position, gap.reason)
    try:
        return decode_one(
            data, physical_offset=physical_offset, check_crc=check_crc,
            record_crc=check_crc and log.record_crc,
        )  # fmt: skip
    except CorruptRecord as error:
        raise CorruptRecord(path, position, error.reason) from None


def record_over(log: ReadableLog, physical_offset: int) -> int | None:
    """Return where the record begins that has an offset inside it; None if none has.

    The chain is followed from the beginning of the log's file.
    """
    file = log.queue.find(physical_offset)
    if file is None:
        return None
    start, end = file.file_from_offset, log.max_offset
    for found in walk(log.queue, start, end, on_fault=lambda *_: None, known=log.gaps):
        if isinstance(found, Piece) and found.end > physical_offset:
            row = int(np.searchsorted(found.starts + found.base, physical_offset, "right")) - 1
            at = int(found.starts[row]) if row >= 0 else 0
            size = MESSAGE_PREFIX.unpack_from(found.data, at).total_size if row >= 0 else 0
            inside = 0 < physical_offset - found.base - at < size
            return found.base + at if inside else None
        if found.end > physical_offset:
            return None
    return None


def read_unit(
    log: LogBytes, physical_offset: int, size: int, queue: tuple[str, int], number: int
) -> MessageRecord | CorruptRecord | None:
    """Return the record that a unit points to, why it cannot be read, or None if it is gone.

    A record that is not `number` of `queue` (topic, queue id) cannot be: the queue's files are
    damaged or were swapped.
    """
    if size != CQ_PRE_FILL_SIZE and not 0 <= physical_offset < log.max_offset:
        return CorruptRecord(
            "commitlog", physical_offset, unit_without_record(physical_offset, size)
        )
    found = _read_sized(log, physical_offset, size)
    if isinstance(found, MessageRecord):
        place = (found.topic, found.queue_id), found.queue_offset
        reason = foreign_record(place, found.properties, (queue, number))
        if reason is not None:
            return CorruptRecord("commitlog", physical_offset, reason)
    return found


def unit_without_record(physical_offset: int, size: int) -> str:
    """Return the reason for a unit that can point to no record of the log."""
    if (physical_offset, size) == (-1, 0):
        return "no unit has this message"
    return f"a unit of {size} bytes at {physical_offset}, where the log has none"


def foreign_record(
    place: QueuePlace, properties: Mapping[str, str], expected: QueuePlace
) -> str | None:
    """Return why the unit at an expected place cannot point to a record; None if it can.

    A record is in the queue that it names, at its queue offset, and at the places of its copies.
    """
    if place == expected or expected in copies_of_one(properties, place[0][1]):
        return None
    (topic, queue_id), number = place
    (own_topic, own_id), own = expected
    if place[0] != expected[0]:
        return f"a unit of {own_topic}/{own_id} points to this record of {topic}/{queue_id}"
    return f"unit {own} of {topic}/{queue_id} points to this record, which is number {number}"


def _read_sized(
    log: LogBytes, physical_offset: int, size: int
) -> MessageRecord | CorruptRecord | None:
    """Return the record of `size` bytes at a place, why it cannot be read, None if it is gone."""
    if size == CQ_PRE_FILL_SIZE or not log.min_offset <= physical_offset < log.max_offset:
        return None
    if size > _TRUSTED_SIZE and log.gaps.over(physical_offset) is None:
        head = log.read_at(physical_offset, MESSAGE_PREFIX.size)
        whole = len(head) == MESSAGE_PREFIX.size
        if not whole or MESSAGE_PREFIX.unpack_from(head).total_size != size:
            return CorruptRecord("commitlog", physical_offset, "not of the size in its unit")
    return _sound(log, physical_offset, size, log.read_at(physical_offset, size))


def _sound(
    log: LogBytes, physical_offset: int, size: int, raw: bytes
) -> MessageRecord | CorruptRecord | None:
    """Return the record in bytes that were read, why it is not sound, None if they are too few."""
    gap = log.gaps.over(physical_offset)
    if gap is not None:
        return CorruptRecord("commitlog", physical_offset, gap.reason)
    if len(raw) < size:
        return None
    try:
        record = decode_one(raw, physical_offset=physical_offset, record_crc=log.record_crc)
    except CorruptRecord as error:
        return CorruptRecord("commitlog", physical_offset, error.reason)
    if record.size != size:
        return CorruptRecord("commitlog", physical_offset, "not of the size in its unit")
    return record


def lost_message(record: MessageRecord) -> CorruptRecord:
    """Return the error for a stand-in of a lost message."""
    return CorruptRecord("commitlog", record.physical_offset, LOST_REASON)


def read_record(log: LogBytes, physical_offset: int) -> MessageRecord | None:
    """Return the sound record that starts at a physical offset, None where there is none."""
    found = read_found(log, physical_offset)
    return found if isinstance(found, MessageRecord) else None


def read_found(log: LogBytes, physical_offset: int) -> MessageRecord | CorruptRecord | None:
    """Return the record that starts at a physical offset, or why it cannot be read.

    None where no record of this place starts.
    """
    if not log.min_offset <= physical_offset < log.max_offset:
        return None
    head = log.read_at(physical_offset, _FIRST_READ)
    if len(head) < MESSAGE_PREFIX.size:
        return None
    prefix = MESSAGE_PREFIX.unpack_from(head)
    size = prefix.total_size
    if prefix.physical_offset != physical_offset or size < MESSAGE_PREFIX.size:
        return None
    if size <= len(head):
        return _sound(log, physical_offset, size, head[:size])
    return _read_sized(log, physical_offset, size)


def store_timestamp_at(log: LogBytes, physical_offset: int) -> int | None:
    """Return the store time in the head of the record at this place; None if none starts there."""
    if not log.min_offset <= physical_offset < log.max_offset:
        return None
    raw = log.read_at(physical_offset, MESSAGE_HEADS[-1].size)
    if len(raw) < MESSAGE_PREFIX.size:
        return None
    prefix = MESSAGE_PREFIX.unpack_from(raw)
    layout = MESSAGE_HEADS[hosts_of(prefix.sys_flag)]
    if prefix.physical_offset != physical_offset or len(raw) < layout.size:
        return None
    timestamp: int = layout.unpack_from(raw).store_timestamp
    return timestamp
