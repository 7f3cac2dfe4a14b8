"""Opening for writing: find the log's end, bring every structure to it, hand over what is missing.

What is believed without looking is what `progress.py` vouches for. From there on the log is
followed record by record. The first record that is no record is

- *torn*, if no sound record follows anywhere: the log is cut there (zeroed behind, later
  files removed), as the real one does;
- *damaged*, if one does: it stays, is listed in `problems`, and is passed over (D7). With
  `recovery="upstream"` it is cut like the real one cuts, and what follows is lost.

Then the structures are cut at their trusted mark, or the log's end if that is lower, and what
lies behind it is handed over again. A follower's *written* mark is kept for the record, but
only *synced* is trusted: what a killed process had written and not synced belongs to nobody's
list of files to sync, so a later sync would claim it without having done it. The log's
*written* mark is trusted after a kill, since its files are synced from the *synced* mark on.

Always true: every step may be repeated; a crash in the middle, then recovery, gives the same.

Next to read: `default_message_store.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocketcompat.columns import RecordColumns, decode_columns
from rocketcompat.commit_log import CommitLog
from rocketcompat.consume_queue import ConsumeQueue
from rocketcompat.consume_queue_table import ConsumeQueueTable
from rocketcompat.dispatch import Follower, ReputMessageService, queue_columns
from rocketcompat.formats import BLANK, CQ_PRE_FILL_SIZE, LMQ_PREFIX, MAGIC_BLANK
from rocketcompat.index_service import IndexService
from rocketcompat.log_scan import Damage, Piece, find_record, scan
from rocketcompat.mapped_file_queue import MappedFileQueue
from rocketcompat.messages import DispatchBatch, has_queue_unit
from rocketcompat.progress import Mark, Progress, QueueKey
from tubestore.clock import Clock
from tubestore.errors import CorruptRecord, OffsetOutOfRange

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoverResult:
    """What opening found and did; offsets are physical."""

    #: Closed cleanly: nothing was looked at.
    clean: bool
    verified_from: int
    log_end: int
    #: Bytes behind the end that were zeroed or removed, and why the chain ended.
    cut_bytes: int = 0
    reason: str | None = None
    damages: tuple[Damage, ...] = ()


class QueueOffsets:
    """A follower that keeps nothing: the next queue offset of every queue that it saw."""

    name = "queue_offsets"

    def __init__(self) -> None:
        self.table: dict[QueueKey, int] = {}

    def put_batch(self, batch: DispatchBatch) -> None:
        """Take in the queue offsets of a batch."""
        self._put(batch.queue_keys, batch.queue_codes, batch.queue_offsets, batch.queue_rows)

    def put_records(self, records: RecordColumns) -> None:
        """Take in the queue offsets of records."""
        counted = has_queue_unit(records.column("sys_flag"))
        self._put(*queue_columns(records), records.column("queue_offset"), counted)

    def _put(self, keys: list[QueueKey], codes: Any, offsets: Any, counted: Any) -> None:
        highest = np.full(len(keys), -1, np.int64)
        rows = np.flatnonzero(counted)
        np.maximum.at(highest, codes[rows], offsets[rows])
        for key, last in zip(keys, highest.tolist(), strict=True):
            if last >= self.table.get(key, 0):
                self.table[key] = last + 1

    def recover(self, log_end: int, trusted: int | None) -> int:
        """Nothing is kept, so everything that counts has to be handed over."""
        return 0 if trusted is None else min(trusted, log_end)

    def mark(self, written: int, synced: int) -> None:
        """Nothing to keep."""

    def flush(self, sync: bool) -> None:
        """Nothing to write."""

    def progress(self) -> tuple[int, int]:
        """It is never behind."""
        return 0, 0

    def close(self) -> None:
        """Nothing is open."""


def find_log_end(
    queue: MappedFileQueue, start: int, *, check_crc: bool, keep_good: bool, own: bool = False
) -> tuple[int, str | None, tuple[Damage, ...]]:
    """Follow the chain from `start`; returns the log's end, why it ended, and damage before it.

    With `keep_good` damage is passed over if sound records follow it, else the log ends there.
    With `own` nobody but us has written from `start` on (see `codec.first_fault`). Reads only.
    """
    damages: list[Damage] = []
    limit = queue.max_offset
    position, reason = start, None
    while position < limit:
        fault = None
        for piece in scan(queue, position, limit, check_crc=check_crc, own=own):
            position, fault = piece.end, piece.fault
        if fault is None:
            break
        found = find_record(queue, position + 1, limit) if keep_good else None
        if found is not None and is_left_over(queue, start, position, found, limit):
            found, fault = None, f"{fault}; what follows was cut off once, and is older"
        if found is None:
            reason = fault
            break
        damages.append(_damage(queue, position, found, fault))
        position = found
    return position, reason, tuple(damages)


def known_damages(queue: MappedFileQueue, progress: Progress) -> tuple[Damage, ...]:
    """Return the damage that was found before and lies below the log's mark."""
    kept = (row for row in progress.damages if row[0] >= queue.min_offset)
    return tuple(_damage(queue, start, end, reason) for start, end, reason in kept)


def is_left_over(queue: MappedFileQueue, start: int, end: int, found: int, limit: int) -> bool:
    """Whether the records from `found` on are what an earlier recovery of a real broker cut off.

    It only moves its end back and leaves the bytes (oracle-rocketmq 2.1), so behind what was
    appended since stand older records. They are known by both: all are older than the last
    record of [start, end), and some claim queue offsets that were given out again there.
    """
    offsets, last_timestamp = QueueOffsets(), 0
    for piece in scan(queue, start, end, check_crc=False):
        if len(piece.starts):
            records = decode_columns(piece.data, piece.starts, piece.base)
            offsets.put_records(records)
            last_timestamp = int(records.column("store_timestamp")[-1])
    conflict = False
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
            keys, codes = queue_columns(records)
            known = np.array([offsets.table.get(key, 0) for key in keys], np.int64)[codes]
            counted = has_queue_unit(records.column("sys_flag"))
            conflict |= bool((counted & (records.column("queue_offset") < known)).any())
        following = find_record(queue, position + 1, limit)
    return conflict


def _damage(queue: MappedFileQueue, start: int, end: int, reason: str) -> Damage:
    file = queue.find(start)
    path = file.path if file else queue.directory
    return Damage(start, end, path, start - (file.file_from_offset if file else 0), reason)


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


def recover_log(
    log: CommitLog, known: tuple[Progress, bool] | None, *, clean_exit: bool
) -> RecoverResult:
    """Load the log, verify it from where it is trusted, cut a torn end; the log is usable then."""
    queue = log.queue
    queue.load()
    minimum, limit = queue.min_offset, queue.max_offset
    if known is not None:
        progress, same_boot = known
        end = progress.log.written
        old = known_damages(queue, progress)
        if clean_exit and progress.clean and is_as_left(queue, end):
            log.start_at(end, end)
            log.damages = old
            return RecoverResult(True, end, end, damages=old)
        trusted = progress.trusted(progress.log, same_boot=same_boot)
        synced = progress.log.synced
    else:
        trusted, synced, old = minimum, minimum, ()
    if not minimum <= trusted <= limit:
        trusted, synced, old = minimum, minimum, ()
    keep_good = log.config.recovery == "tubestore"
    end, reason, damages = find_log_end(
        queue,
        trusted,
        check_crc=log.config.check_crc_on_recover,
        keep_good=keep_good,
        own=known is not None,
    )
    damages = (*(damage for damage in old if damage.end <= trusted), *damages)
    cut = queue.truncate_dirty_files(end)
    if cut:
        _log.warning("%s: cut at %d, %d bytes (%s)", queue.directory, end, cut, reason)
    log.start_at(end, min(synced, end))
    log.damages = damages
    return RecoverResult(False, trusted, end, cut, reason if cut else None, damages)


def recover_followers(
    log: CommitLog,
    followers: Sequence[Follower],
    known: tuple[Progress, bool] | None,
    result: RecoverResult,
    clock: Clock,
) -> ReputMessageService:
    """Cut every structure at what is trusted and hand over the rest; returns the dispatcher.

    Afterwards all of them stand at the log's end, and the log knows the next queue offsets.
    """
    marks = known[0].followers if known else {}
    if result.damages:
        _keep_numbers(log, followers, result.damages)
    starts = [
        _recover_follower(log, follower, marks.get(follower.name), result) for follower in followers
    ]
    offsets = QueueOffsets()
    queues = _queues_of(followers)
    first = min([*starts, log.max_offset]) if queues is not None else log.min_offset
    service = ReputMessageService(
        log, [*followers, offsets], clock, position=min([*starts, first]), starts=[*starts, first]
    )
    service.dispatch_pending()
    log.raise_queue_offsets(offsets.table.items())
    if queues is not None:
        log.raise_queue_offsets(queues.max_offsets().items())
    service.drop(offsets)
    return service


def _queues_of(followers: Sequence[Follower]) -> ConsumeQueueTable | None:
    found: list[Any] = [f for f in followers if isinstance(f, ConsumeQueueTable)]
    return found[0] if found else None


def _recover_follower(
    log: CommitLog, follower: Follower, mark: Mark | None, result: RecoverResult
) -> int:
    """Bring one structure to a state that the log vouches for; returns from where to hand over."""
    end = log.max_offset
    if result.clean and mark is not None and mark.synced == end:
        follower.mark(end, end)
        return end
    trusted = min(mark.synced, end) if mark is not None else None
    if trusted is not None and trusted < log.min_offset:
        trusted = None
    if isinstance(follower, ConsumeQueueTable):
        # Units below the log's minimum stay: they are all that is left of those offsets.
        start = log.min_offset if trusted is None else trusted
        _recover_queues(log, follower, start, known=trusted is not None)
        return start
    # Of an index that nobody vouches for nothing is kept that the log can give again: items of
    # records that a real broker cut off would hide those that stand there now.
    limit = log.min_offset if trusted is None and isinstance(follower, IndexService) else end
    start = min(max(follower.recover(limit, trusted), log.min_offset), end)
    follower.mark(start, start)
    return start


def _recover_queues(log: CommitLog, queues: ConsumeQueueTable, start: int, *, known: bool) -> None:
    """Cut the queues at `start`, but those that the log will not fill again only at its end.

    Such are the queues of multi-dispatch (LMQ): other records' copies (spec §1.13). Which
    they are only the log says, unless the store is known to be ours.
    """
    seen: set[QueueKey] | None = None
    if not known and len(queues):
        offsets = QueueOffsets()
        for piece in sound_pieces(log, start, log.max_offset):
            offsets.put_records(decode_columns(piece.data, piece.starts, piece.base))
        seen = set(offsets.table)
    for queue in queues:
        key = (queue.topic, queue.queue_id)
        filled = not queue.topic.startswith(LMQ_PREFIX) if seen is None else key in seen
        queue.recover(start if filled else log.max_offset)
        if filled:
            _drop_foreign_units(log, queue)
    queues.mark(start, start)


def _drop_foreign_units(log: CommitLog, queue: ConsumeQueue) -> None:
    """Cut a queue's last unit as long as it is not that of the record that it points to.

    A unit of which a cut was zeroing the front when the process ended points too low, and
    would stay as one below the mark.
    """
    end = queue.max_offset
    while end > 0 and (unit := queue.unit(end - 1)) is not None:
        offset, size, _ = unit
        if size == CQ_PRE_FILL_SIZE or offset < log.min_offset or log.is_damaged(offset):
            return
        try:
            record = log.record_at(offset, check_crc=False)
            place = (record.topic, record.queue_id, record.queue_offset, record.size)
        except (CorruptRecord, OffsetOutOfRange):
            place = ("", 0, 0, 0)
        if place == (queue.topic, queue.queue_id, end - 1, size):
            return
        end -= 1
        queue.cut(end)


def sound_pieces(log: CommitLog, start: int, end: int) -> Iterator[Piece]:
    """Follow the chain from `start`, over the damage that is known; no checksums."""
    position = start
    for damage in (*log.damages, None):
        stop = end if damage is None else min(damage.start, end)
        for piece in scan(log.queue, position, stop, check_crc=False):
            if len(piece.starts):
                yield piece
        if damage is not None:
            position = max(position, damage.end)


def _keep_numbers(
    log: CommitLog, followers: Sequence[Follower], damages: tuple[Damage, ...]
) -> None:
    """Take note of the queue offsets of damaged records, while units still tell them.

    Without it the number of a queue's last message would be given out again.
    """
    queues = _queues_of(followers)
    for queue in () if queues is None else queues:
        first, units = queue.min_offset, queue.units(queue.min_offset, queue.max_offset)
        places = units["physical_offset"].astype(np.int64)
        for damage in damages:
            inside = np.flatnonzero((places >= damage.start) & (places < damage.end))
            if len(inside):
                following = first + int(inside[-1]) + 1
                log.raise_queue_offsets([((queue.topic, queue.queue_id), following)])
