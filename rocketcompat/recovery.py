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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rocketcompat.columns import decode_columns
from rocketcompat.commit_log import CommitLog
from rocketcompat.consume_queue import ConsumeQueue
from rocketcompat.consume_queue_table import ConsumeQueueTable
from rocketcompat.dispatch import ReputMessageService
from rocketcompat.follower import Follower
from rocketcompat.formats import CQ_PRE_FILL_SIZE
from rocketcompat.index_service import IndexService
from rocketcompat.log_end import QueueOffsets, find_log_end, is_as_left, known_damages
from rocketcompat.log_scan import Damage, Piece, scan
from rocketcompat.multi_dispatch import copies_of_one
from rocketcompat.progress import Mark, Progress, ProgressFile, QueueKey
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
    # Before a mark somebody else may have written, whose records are judged as a real broker's.
    own = known is not None and minimum <= trusted <= limit
    if not minimum <= trusted <= limit:
        trusted, synced, old = minimum, minimum, ()
    keep_good = log.config.recovery == "tubestore"
    end, reason, damages = find_log_end(
        queue,
        trusted,
        check_crc=log.config.check_crc_on_recover,
        keep_good=keep_good,
        own=own,
        record_crc=log.config.force_verify_prop_crc,
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
    progress_file: ProgressFile,
) -> ReputMessageService:
    """Cut every structure at what is trusted and hand over the rest; returns the dispatcher.

    Afterwards all of them stand at the log's end, and the log knows the next queue offsets.
    """
    lower = partial(_lower_index_mark, log, known, progress_file)
    marks = known[0].followers if known else {}
    if result.damages:
        _keep_numbers(log, followers, result.damages)
    starts = [
        _recover_follower(log, follower, marks.get(follower.name), result, lower)
        for follower in followers
    ]
    offsets = QueueOffsets(log.config.batch_topics)
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


def _lower_index_mark(
    log: CommitLog,
    known: tuple[Progress, bool] | None,
    progress_file: ProgressFile,
    offset: int,
) -> None:
    """Write marks that vouch for the index below `offset` only, durably.

    The file gets this boot's name, so it may say of nothing more than what is synced.
    """
    marks = known[0].followers if known else {}
    followers = {name: Mark(mark.synced, mark.synced) for name, mark in marks.items()}
    followers[IndexService.name] = Mark(offset, offset)
    synced = Mark(log.synced_offset, log.synced_offset)
    damages = [(damage.start, damage.end, damage.reason) for damage in log.damages]
    progress = Progress(synced, followers, log_minimum=log.min_offset, damages=damages)
    progress_file.write(progress, sync=True)


def _recover_follower(
    log: CommitLog,
    follower: Follower,
    mark: Mark | None,
    result: RecoverResult,
    lower_index_mark: Callable[[int], None],
) -> int:
    """Bring one structure to a state that the log vouches for; returns from where to hand over."""
    end = log.max_offset
    whole = not isinstance(follower, IndexService) or follower.is_whole
    if result.clean and mark is not None and mark.synced == end and whole:
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
    if isinstance(follower, IndexService):
        limit = log.min_offset if trusted is None else end
        start = follower.recover(limit, trusted, lower_index_mark)
    else:
        start = follower.recover(end, trusted)
    start = min(max(start, log.min_offset), end)
    follower.mark(start, start)
    return start


def _recover_queues(log: CommitLog, queues: ConsumeQueueTable, start: int, *, known: bool) -> None:
    """Cut the queues at `start`, but those that the log will not fill again only at its end.

    Such are queues whose directories somebody made by hand, or whose records are gone. Which
    they are only the log says, unless the store is known to be ours.
    """
    seen: set[QueueKey] | None = None
    if not known and len(queues):
        offsets = QueueOffsets(log.config.batch_topics)
        for piece in sound_pieces(log, start, log.max_offset):
            offsets.put_records(decode_columns(piece.data, piece.starts, piece.base))
        seen = set(offsets.table)
    for queue in queues:
        key = (queue.topic, queue.queue_id)
        filled = seen is None or key in seen
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
            places = [
                ((record.topic, record.queue_id), record.queue_offset),
                *copies_of_one(record.properties, record.queue_id),
            ]
            if record.size == size and ((queue.topic, queue.queue_id), end - 1) in places:
                return
        except (CorruptRecord, OffsetOutOfRange):
            pass
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
    for of_batches in () if queues is None else queues.batches or ():
        stored = of_batches.units()
        places = stored["physical_offset"].astype(np.int64)
        for damage in damages:
            inside = np.flatnonzero((places >= damage.start) & (places < damage.end))
            if len(inside):
                unit = stored[inside[-1]]
                following = int(unit["base_offset"]) + int(unit["batch_size"])
                log.raise_queue_offsets([((of_batches.topic, of_batches.queue_id), following)])
