"""Takes the bytes of another log, at its offsets, into this one: what a master sends a slave.

The bytes come in parts that end anywhere. Whole records are verified and appended; what is not
whole waits in memory, one record at most.

Always true:
- the log contains only whole records with their places, lengths and checksums compared;
- a part that leaves a gap or overlaps is refused, and so is everything behind damage;
- a kill leaves a prefix of the other log: the next opening cuts a record that is not whole.

The blank at a file's end is written with all bytes behind it, as they were sent. The log's end
moves over it with the next file's first record, as after a put.

Guards: none; one thread.
"""

from __future__ import annotations

from typing import Any

from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.formats import BLANK
from rocketcompat.record.codec import decode_one
from rocketcompat.record.verify import sound_chain
from tubestore.core.layout import Buffer
from tubestore.errors import CorruptRecord, InvalidMessage

_HINT = "; if the master's files have another size, give its mappedFileSizeCommitLog"


class OutOfPlace(InvalidMessage):
    """Bytes for another offset than the one where the log goes on."""

    def __init__(self, offset: int, expected: int) -> None:
        super().__init__(offset, expected)
        self.offset, self.expected = offset, expected

    def describe(self) -> str:
        """Return the sentence."""
        return f"bytes at {self.offset} do not continue the log, which goes on at {self.expected}"


class RawIntake:
    """Appends parts of another log to a log that nothing else appends to."""

    def __init__(self, log: CommitLog) -> None:
        if log.uses_pool:
            raise InvalidMessage("transientStorePoolEnable: a slave writes without the pool")
        self._log = log
        #: Physical offset of the first byte that waits: everything before it is in the files.
        self._at = log.end
        #: The blank that is being written; both 0 outside of one.
        self._blank_start = self._blank_end = 0
        self._waiting: list[Buffer] = []
        #: Bytes that wait, and how many of them the next record needs.
        self._size, self._wanted = 0, 1

    @property
    def next_offset(self) -> int:
        """Physical offset of the next byte."""
        return self._at + self._size

    @property
    def end(self) -> int:
        """Physical offset below which all bytes are in the files: whole records, whole blanks."""
        return self._blank_start if self._blank_end else self._at

    def append(self, offset: int, data: Buffer) -> int:
        """Take the bytes at a physical offset; returns `end`.

        OutOfPlace for another offset than `next_offset`. CorruptRecord for bytes that are not a
        record of this place: what came before them is in the log. DiskFull and StoreFailed as of a
        put. After an error the bytes from `end` on have to come again.
        """
        if offset != self.next_offset:
            raise OutOfPlace(offset, self.next_offset)
        self._waiting.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            self._waiting[-1] = bytes(data)  # the caller reuses its buffer
            return self.end
        parts, self._waiting, self._size, self._wanted = self._waiting, [], 0, 1
        view = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        try:
            while len(view):
                taken = self._take(view)
                if not taken:
                    break
                self._at += taken
                view = view[taken:]
        except BaseException:
            self.discard()
            raise
        if len(view):
            self._waiting, self._size = [bytes(view)], len(view)
        return self.end

    def discard(self) -> None:
        """Drop what is not whole: the next bytes are those at `end`."""
        self._waiting, self._size, self._wanted = [], 0, 1
        if self._blank_end:
            self._at, self._blank_start, self._blank_end = self._blank_start, 0, 0
            self._log.cut_raw()

    def _take(self, data: memoryview) -> int:
        """Write the first part of the data that is whole; returns its bytes, 0 if none is."""
        if self._blank_end:
            return self._take_blank(data)
        at, log = self._at, self._log
        room = log.queue.file_size - at % log.queue.file_size
        found = sound_chain(data, 0, at, room, record_crc=log.record_crc)
        if found.end:
            last = int(found.starts[-1])
            stored = decode_one(data[: found.end], last, physical_offset=at + last).store_timestamp
            log.append_raw(at, data[: found.end], found.starts, stored)
            return found.end
        if found.blank:
            blank: Any = BLANK.unpack_from(data)
            if blank.total_size != room:
                raise self._damaged(f"a blank of {blank.total_size} bytes, {room} are left{_HINT}")
            self._blank_start, self._blank_end = at, at + room
            return self._take_blank(data)
        if found.reason is not None:
            has_size = len(data) >= BLANK.size
            is_too_long = has_size and BLANK.unpack_from(data).total_size > room
            raise self._damaged(found.reason + (_HINT if is_too_long else ""))
        largest = log.config.record_size_max
        if found.wanted > largest:
            raise self._damaged(
                f"a record of {found.wanted} bytes, and {largest} are taken here"
                "; give the master's maxMessageSize"
            )
        self._wanted = found.wanted
        return 0

    def _take_blank(self, data: memoryview) -> int:
        part = data[: self._blank_end - self._at]
        self._log.append_raw_blank(self._at, part)
        if self._at + len(part) == self._blank_end:
            self._blank_start = self._blank_end = 0
        return len(part)

    def _damaged(self, reason: str) -> CorruptRecord:
        """Return the error for bytes that cannot be appended at the first waiting byte's place."""
        queue = self._log.queue
        return CorruptRecord(queue.path_of(self._at), self._at % queue.file_size, reason)
