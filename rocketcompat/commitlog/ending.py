"""Where a log ends: following the chain, and judging what follows damage. Reads only.

Used by recovery, by readers beside a writer and by the windows, so that all of them see the
same end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from rocketcompat.commitlog.misplaced import over
from rocketcompat.commitlog.walk import Damage, Piece, find_record, scan
from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.files.progress import Progress, QueueKey
from rocketcompat.formats import BLANK, MAGIC_BLANK, MESSAGE_HEADS, MESSAGE_PREFIX, hosts_of
from rocketcompat.messages import DispatchBatch, has_queue_unit
from rocketcompat.record.batches import message_counts
from rocketcompat.record.columns import RecordColumns, decode_columns
from rocketcompat.record.copies import places_of
from rocketcompat.record.verify import UNFINISHED, WRONG_RECORD_CRC

#: After a clean stop the last files of a log are looked at, as a real broker does.
_CLEAN_FILES = 3


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
    queue: MappedFileQueue,
    start: int,
    *,
    check_crc: bool,
    keep_good: bool,
    own: bool = False,
    record_crc: bool = False,
    misplaced: tuple[Damage, ...] = (),
    limit: int | None = None,
) -> tuple[int, str | None, tuple[Damage, ...]]:
    """Follow the chain from `start`; returns the log's end, why it ended, and damage before it.

    With `limit` nothing from there on is looked at.

    With `keep_good` damage is passed over if sound records follow it, else the log ends there.
    With `own` only stores of ours have written from `start` on (see `record_check.first_fault`):
    they zero what they cut, so nothing there is left over.
    `record_crc` is explained there too. A file of `misplaced` that the chain reaches is passed
    over whole, at the log's end too: its records can be put back only while it stays. Reads only.
    """
    damages: list[Damage] = []
    limit = queue.max_offset if limit is None else limit
    position, reason = start, None
    follow = partial(scan, queue, check_crc=check_crc, own=own, record_crc=record_crc)
    while position < limit:
        fault = None
        for piece in follow(position, limit):
            position, fault = piece.end, piece.fault
        if fault is None:
            break
        whole = over(misplaced, position) if keep_good else None
        if whole is not None:
            damages.append(whole)
            position = min(whole.end, limit)
            continue
        last = queue.last
        if fault == UNFINISHED and last is not None and position >= last.file_from_offset:
            reason = fault  # what stands behind is of the same copy, and was not acknowledged
            break
        found = find_record(queue, position + 1, limit) if keep_good else None
        if found is not None and goes_on(follow(position, limit), position):
            continue
        if found is not None and not own and is_left_over(queue, start, position, found, limit):
            found, fault = None, f"{fault}; what follows was cut off once, and is older"
        if found is None:
            reason = fault
            break
        found = min([found, *(d.start for d in misplaced if d.start > position)])
        damages.append(damage_of(queue, position, found, fault))
        position = found
    return position, reason, tuple(damages)


def goes_on(pieces: Iterator[Piece], position: int) -> bool:
    """Whether the chain goes on at `position` by now.

    A writer that is at work may have put more than one record between two looks. What stands
    before a whole record was written before it, so the second look decides.
    """
    piece = next(pieces, None)
    return piece is not None and piece.end > position


def is_left_over(queue: MappedFileQueue, start: int, end: int, found: int, limit: int) -> bool:
    """Whether the records from `found` on are what an earlier recovery of a real broker cut off.

    It only moves its end back and leaves the bytes (oracle-rocketmq 2.1), so behind what was
    appended since stand older records: store times rise along the log, and all of theirs are
    below that of the last record of [start, end).
    """
    last_timestamp = 0
    for piece in scan(queue, start, end, check_crc=False):
        if len(piece.starts):
            records = decode_columns(piece.data, piece.starts, piece.base)
            last_timestamp = int(records.column("store_timestamp")[-1])
    following: int | None = found
    while following is not None:
        position = following
        for piece in scan(queue, position, limit):
            position = piece.end
            if not len(piece.starts):
                continue
            records = decode_columns(piece.data, piece.starts, piece.base)
            if records.column("store_timestamp").max() >= last_timestamp:
                return False
        following = find_record(queue, position + 1, limit)
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


def last_time(queue: MappedFileQueue, end: int) -> int:
    """Return the store time of the last record that ends at or before `end`, ms; 0 if none does."""
    for file in reversed(queue.files):
        found = 0
        for piece in scan(queue, file.file_from_offset, end, check_crc=False):
            if len(piece.starts):
                records = decode_columns(piece.data, piece.starts, piece.base)
                found = int(records.column("store_timestamp")[-1])
        if found:
            return found
    return 0


def unmarked_start(queue: MappedFileQueue, *, clean_exit: bool, least_time: int) -> int:
    """Return where the verification of a log begins that no mark of ours speaks of (spec §8.2).

    As a real broker's recovery: at the third-last file after a clean stop; after a crash at the
    newest file whose first record was stored at `least_time` (ms) or before, up to which
    everything was synced by the checkpoint; else at the first file.
    """
    files = queue.files
    if clean_exit:
        return files[max(len(files) - _CLEAN_FILES, 0)].file_from_offset if files else 0
    for file in reversed(files):
        stored = first_time(file)
        if stored and stored <= least_time:
            return file.file_from_offset
    return queue.min_offset


def damage_of(queue: MappedFileQueue, start: int, end: int, reason: str) -> Damage:
    """Describe a damaged region of the log."""
    file = queue.find(start)
    path = file.path if file else queue.directory
    return Damage(start, end, path, start - (file.file_from_offset if file else 0), reason)


def known_damages(
    queue: MappedFileQueue, progress: Progress, *, record_crc: bool
) -> tuple[Damage, ...]:
    """Return the damage that was found before and lies below the log's mark.

    Not what was mended since: see `mended_regions`.
    """
    return tuple(
        damage_of(queue, start, end, reason)
        for start, end, reason in progress.damages
        if start >= queue.min_offset and not _is_mended(queue, start, end, reason, record_crc)
    )


def mended_regions(
    queue: MappedFileQueue, progress: Progress, *, record_crc: bool
) -> list[tuple[int, int]]:
    """Return the regions that were damaged and begin with a sound record now.

    A file was put back there since: its content has to be verified again.
    """
    return [
        (start, end)
        for start, end, reason in progress.damages
        if start >= queue.min_offset and _is_mended(queue, start, end, reason, record_crc)
    ]


def _is_mended(queue: MappedFileQueue, start: int, end: int, reason: str, record_crc: bool) -> bool:
    """Return True if a region begins with a record that is sound by all rules in question.

    Damage that only the checksum of the whole record showed is judged by it again, also where
    that is not asked for now.
    """
    piece = next(
        scan(
            queue, start, end, own=True, record_crc=record_crc or reason == WRONG_RECORD_CRC,
            bytes_max=MESSAGE_HEADS[-1].size,
        ),
        None,
    )  # fmt: skip
    return piece is not None and len(piece.starts) > 0


def merged(damages: Iterable[Damage]) -> tuple[Damage, ...]:
    """Return damage in order, without what begins inside other damage."""
    kept: list[Damage] = []
    for damage in sorted(damages, key=lambda d: (d.start, -d.end, d.belongs is None)):
        if not kept or damage.start >= kept[-1].end:
            kept.append(damage)
    return tuple(kept)


def is_as_left(queue: MappedFileQueue, end: int) -> bool:
    """Whether the log still ends at `end`, by a look at the place: nothing was appended there."""
    last = queue.last
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
