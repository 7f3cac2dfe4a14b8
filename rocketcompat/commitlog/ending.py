"""Where a log ends: following the chain, and judging what follows damage. Reads only.

Used by recovery, by readers beside a writer and by the windows, so that all of them see the
same end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocketcompat.commitlog.walk import (
    FIRST_BYTES,
    NO_GAPS,
    Again,
    Checks,
    Gap,
    Gaps,
    LogView,
    Piece,
    find_record,
    gap_of,
    scan,
    walk,
)
from rocketcompat.files.progress import Progress, QueueKey
from rocketcompat.formats import BLANK, MAGIC_BLANK, MESSAGE_HEADS, MESSAGE_PREFIX, hosts_of
from rocketcompat.messages import DispatchBatch, has_queue_unit
from rocketcompat.record.batches import message_counts
from rocketcompat.record.columns import RecordColumns, decode_columns
from rocketcompat.record.copies import places_of
from rocketcompat.record.verify import UNFINISHED, WRONG_RECORD_CRC, first_fault

#: Returns where the records end that are proved to have been at a physical offset, where no sound
#: one is; the offset itself without a proof.
ProvedEnd = Callable[[int], int]
#: After a clean stop the last files of a log are verified, as RocketMQ does.
_CLEAN_FILES = 3


def start_alone(position: int) -> int:
    """Prove nothing: return the offset itself."""
    return position


def proof(log: LogView, by_units: ProvedEnd, *, own: bool, same_boot: bool) -> ProvedEnd:
    """Return what proves records behind `own` marks: `by_units`, if no power cut can have been.

    Zeros are where nothing was written, so no queue is opened for them.
    """
    if not (own and same_boot):
        return start_alone
    return lambda at: by_units(at) if has_data(log, at) else at


class QueueOffsets:
    """The next queue offset of every queue of which a batch was received."""

    name = "queue_offsets"

    def __init__(self, batch_topics: frozenset[str] = frozenset()) -> None:
        self.table: dict[QueueKey, int] = {}
        self._batch_topics = batch_topics

    def put(self, batch: DispatchBatch) -> None:
        """Take in the queue offsets of a batch."""
        last = self._lasts(batch.queue_keys, batch.queue_codes, batch.queue_offsets,
                           batch.message_counts)  # fmt: skip
        self._put(batch.queue_keys, batch.queue_codes, last, batch.queue_rows)
        every = np.ones(len(batch.copy_rows), bool)
        self._put(batch.queue_keys, batch.copy_codes, batch.copy_offsets, every)

    def put_records(self, records: RecordColumns) -> None:
        """Take in the queue offsets of records."""
        counted, places = has_queue_unit(records.column("sys_flag")), places_of(records)
        counts = message_counts(records) if self._batch_topics else None
        lasts = self._lasts(places.keys, places.codes, records.column("queue_offset"), counts)
        self._put(places.keys, places.codes, lasts, counted)
        every = np.ones(len(places.copy_rows), bool)
        self._put(places.keys, places.copy_codes, places.copy_offsets, every)

    def _lasts(self, keys: list[QueueKey], codes: Any, offsets: Any, counts: Any) -> Any:
        """Return the queue offset of each record's last message."""
        if counts is None or not self._batch_topics:
            return offsets
        of_batches = np.array([topic in self._batch_topics for topic, _ in keys], bool)[codes]
        return np.where(of_batches, offsets + counts - 1, offsets)

    def _put(self, keys: list[QueueKey], codes: Any, offsets: Any, counted: Any) -> None:
        highest = np.full(len(keys), -1, np.int64)
        rows = np.flatnonzero(counted)
        np.maximum.at(highest, codes[rows], offsets[rows])
        for key, last in zip(keys, highest.tolist(), strict=True):
            if last >= self.table.get(key, 0):
                self.table[key] = last + 1


def find_log_end(
    log: LogView,
    start: int,
    *,
    checks: Checks,
    keep_good: bool,
    misplaced: Gaps = NO_GAPS,
    limit: int | None = None,
    proved_end: ProvedEnd = start_alone,
) -> tuple[int, str | None, Gaps]:
    """Follow the chain from `start`; returns the log's end, why it ended, and the gaps before it.

    With `limit` nothing from there on is read.

    With `keep_good` damage is passed over if sound records follow it, else the log ends there.
    What only this package has written (`checks.own_from`) has nothing left over behind an end: it
    zeros what it cuts. A file of `misplaced` that the chain reaches is passed over whole, at the
    log's end too: its records can be put back only while it stays. What `proved_end` shows to have
    been a record is passed over, too: it is damaged, and not torn. Reads only.
    """
    limit = log.max_offset if limit is None else limit
    judge = _Judge(log, start, limit, checks, misplaced, proved_end, keep_good=keep_good)
    position, gaps, last = start, [], None
    for found in walk(log, start, limit, on_fault=judge, checks=checks, bytes_first=FIRST_BYTES):
        position = min(found.end, limit)
        if isinstance(found, Gap):
            gaps.append(found)
            last = None
        elif len(found.starts):
            last = found
    if checks.torn_tail and last is not None:
        torn = _torn_start(log, last, position)
        if torn is not None:
            return torn, "the last record was not written whole", Gaps(gaps)
    return position, judge.reason, Gaps(gaps)


def _torn_start(log: LogView, piece: Piece, end: int) -> int | None:
    """Return where the log's last record starts if it is torn; None if it is whole.

    Its topic or properties contain zeros, and nothing follows it. Its end may lie in a hole of the
    file, which no checksum covers.
    """
    start = int(piece.starts[-1])
    file = log.find(piece.base + start)
    if file is None or end != piece.end or end >= file.file_from_offset + file.file_size:
        return None
    if any(file.read(end - file.file_from_offset, BLANK.size)):
        return None
    sound, _ = first_fault(piece.data, piece.starts[-1:], check_crc=False, own=True)
    return None if sound else piece.base + start


class _Judge:
    """Judges the faults while the end of a log is searched; see `find_log_end`."""

    def __init__(
        self, log: LogView, start: int, limit: int, checks: Checks, misplaced: Gaps,
        proved_end: ProvedEnd, *, keep_good: bool,
    ) -> None:  # fmt: skip
        self._log, self._start, self._limit = log, start, limit
        self._proved_end = proved_end
        self._checks, self._misplaced, self._keep_good = checks, misplaced, keep_good
        #: Why the log ends; None if the chain just ends.
        self.reason: str | None = None

    def __call__(self, position: int, fault: str) -> Gap | Again | None:
        log, limit = self._log, self._limit
        whole = self._misplaced.over(position) if self._keep_good else None
        if whole is not None:
            return whole
        last = log.last
        if fault == UNFINISHED and last is not None and position >= last.file_from_offset:
            # The bytes behind are of the same copy, and were not acknowledged.
            self.reason = fault
            return None
        found = find_record(log, position + 1, limit) if self._keep_good else None
        if found is None:
            end = self._proved_end(position) if self._keep_good else position
            if end > position and goes_on(log, position, limit, self._checks):
                return Again.AGAIN
            if end > position:
                return gap_of(log, position, min(end, limit), fault, "damaged")
            self.reason = fault
            return None
        if goes_on(log, position, limit, self._checks):
            return Again.AGAIN
        own = position >= self._checks.own_from
        if not own and is_left_over(log, self._start, position, found, limit):
            self.reason = f"{fault}; what follows was cut off once, and is older"
            return None
        return gap_of(log, position, self._misplaced.next_start(position, found), fault, "damaged")


def goes_on(log: LogView, position: int, end: int, checks: Checks) -> bool:
    """True if the chain goes on at `position` by now.

    A writer that is at work may have put more than one record between two looks. The bytes
    before a whole record were written before it, so the second look decides.
    """
    own = position >= checks.own_from
    pieces = scan(
        log, position, end, check_crc=checks.body_crc, own=own, record_crc=checks.record_crc
    )
    piece = next(pieces, None)
    return piece is not None and piece.end > position


def is_left_over(log: LogView, start: int, end: int, found: int, limit: int) -> bool:
    """True if the records from `found` on were cut off by an earlier recovery of a broker.

    It only moves its end back and leaves the bytes, so behind what was
    appended since are older records: store times rise along the log, and all of those times are
    below that of the last record of [start, end).
    """
    last_timestamp = 0
    for piece in scan(log, start, end, check_crc=False):
        if len(piece.starts):
            records = decode_columns(piece.data, piece.starts, piece.base)
            last_timestamp = int(records.column("store_timestamp")[-1])
    following: int | None = found
    while following is not None:
        position = following
        for piece in scan(log, position, limit):
            position = piece.end
            if not len(piece.starts):
                continue
            records = decode_columns(piece.data, piece.starts, piece.base)
            if records.column("store_timestamp").max() >= last_timestamp:
                return False
        following = find_record(log, position + 1, limit)
    return True


def first_time(file: Any) -> int | None:
    """Return the store time of the first record of a log's file, ms; None if there is none."""
    raw = file.read(0, MESSAGE_HEADS[-1].size)
    if len(raw) < MESSAGE_HEADS[-1].size:
        return None
    prefix = MESSAGE_PREFIX.unpack_from(raw)
    if prefix.physical_offset != file.file_from_offset:
        return None
    return int(MESSAGE_HEADS[hosts_of(prefix.sys_flag)].unpack_from(raw).store_timestamp)


def last_time(log: LogView, end: int) -> int:
    """Return the store time of the last record that ends at or before `end`, ms; 0 if none does."""
    for file in reversed(log.files):
        found = 0
        for piece in scan(log, file.file_from_offset, end, check_crc=False):
            if len(piece.starts):
                records = decode_columns(piece.data, piece.starts, piece.base)
                found = int(records.column("store_timestamp")[-1])
        if found:
            return found
    return 0


def unmarked_start(log: LogView, *, clean_exit: bool, least_time: int) -> int:
    """Return where the verification of a log without marks begins.

    As RocketMQ's recovery: at the third-last file after a clean stop; after a crash at the
    newest file with a first record that was stored at `least_time` (ms) or before, up to which
    everything was synced by the checkpoint; else at the first file.
    """
    files = log.files
    if clean_exit:
        return files[max(len(files) - _CLEAN_FILES, 0)].file_from_offset if files else 0
    for file in reversed(files):
        stored = first_time(file)
        if stored and stored <= least_time:
            return file.file_from_offset
    return log.min_offset


def known_gaps(log: LogView, progress: Progress, *, record_crc: bool) -> Gaps:
    """Return the damage that was found before and lies below the log's mark.

    Not what was mended since: see `mended_regions`.
    """
    return Gaps(
        gap_of(log, start, end, reason)
        for start, end, reason in progress.damages
        if start >= log.min_offset and not _is_mended(log, start, end, reason, record_crc)
    )


def mended_regions(log: LogView, progress: Progress, *, record_crc: bool) -> list[tuple[int, int]]:
    """Return the regions that were damaged and begin with a sound record now.

    A file was put back there since: its content has to be verified again.
    """
    return [
        (start, end)
        for start, end, reason in progress.damages
        if start >= log.min_offset and _is_mended(log, start, end, reason, record_crc)
    ]


def _is_mended(log: LogView, start: int, end: int, reason: str, record_crc: bool) -> bool:
    """Return True if a region begins with a record that is sound by all rules in question.

    Damage that only the checksum of the whole record showed is judged by it again, also where
    that is not asked for now.
    """
    piece = next(
        scan(
            log, start, end, own=True, record_crc=record_crc or reason == WRONG_RECORD_CRC,
            bytes_max=MESSAGE_HEADS[-1].size,
        ),
        None,
    )  # fmt: skip
    return piece is not None and len(piece.starts) > 0


def has_data(log: LogView, offset: int) -> bool:
    """True if the log goes on at an offset with something that is neither zeros nor a blank."""
    file = log.find(offset)
    raw = b"" if file is None else file.read(offset - file.file_from_offset, BLANK.size)
    if len(raw) == BLANK.size and BLANK.unpack_from(raw).magic_code == MAGIC_BLANK:
        return False
    return any(raw)


def is_as_left(log: LogView, end: int) -> bool:
    """True if the log still ends at `end`, by a look there: nothing was appended there."""
    last = log.last
    if last is None:
        return end == 0
    position = end - last.file_from_offset
    if position == last.file_size:
        return True
    if not 0 <= position < last.file_size:
        return False
    raw = last.read(position, BLANK.size)
    if len(raw) < BLANK.size or not any(raw):
        return True
    return bool(BLANK.unpack_from(raw).magic_code == MAGIC_BLANK)
