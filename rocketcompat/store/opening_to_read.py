"""Opening a store to read: finds where it ends and changes nothing."""

from __future__ import annotations

from functools import partial

from rocketcompat.commitlog.ending import (
    QueueOffsets,
    find_log_end,
    known_gaps,
    proof,
    unmarked_start,
)
from rocketcompat.commitlog.misplaced import lost_files
from rocketcompat.commitlog.walk import NOWHERE, Gaps
from rocketcompat.files.checkpoint import StoreCheckpoint
from rocketcompat.files.progress import Progress, ProgressFile
from rocketcompat.formats import (
    ABORT_FILE,
    CHECKPOINT_FILE,
    CONSUME_QUEUE_DIRECTORY,
    HOLDER_FILE,
    LOCK_FILE,
    OWN_DIRECTORY,
)
from rocketcompat.queues.proof import proved_end
from rocketcompat.queues.recovery import sound_pieces
from rocketcompat.record.columns import decode_columns
from rocketcompat.staging.pieces import LogRecords
from rocketcompat.store.parts import Parts, lost_end, refuse_other_logs, refuse_shards
from rocketcompat.store.structures import QUEUES
from tubestore.errors import CorruptRecord, NotAStore


def open_to_read(parts: Parts) -> None:
    """Find where the log ends and take in the structures; creates, locks and writes nothing."""
    try:
        _open(parts)
    except BaseException:
        parts.close()
        raise


def _open(parts: Parts) -> None:
    refuse_shards(parts)
    for directory in (*parts.log_directories, *parts.read_only_directories):
        if not parts.vfs.exists(directory):
            raise NotAStore(parts.root, _what_is_missing(parts, directory))
    refuse_other_logs(parts)
    known = ProgressFile(parts.vfs, parts.root).read()
    lost = lost_end(parts, known)
    if lost is not None:
        parts.problems.append(lost)
    clean_exit = not parts.vfs.exists(parts.path(ABORT_FILE))
    _find_end(parts, None, known, own=known is not None, clean_exit=clean_exit)
    parts.make_followers()
    closed = known[0] if known is not None and known[0].clean and clean_exit else None
    parts.find_missing_begin(closed)
    parts.load(closed.queues if closed is not None else None)
    parts.find_missing_index(known)
    if closed is not None:
        parts.find_missing_queues(closed)
    elif not clean_exit:
        _find_messages_without_units(parts, known)


def _what_is_missing(parts: Parts, directory: str) -> str:
    """Return why there is no store to read, and how one is made where nothing is."""
    if not parts.vfs.exists(parts.root):
        return "no such directory; mode='w' makes a store"
    if not parts.vfs.entries(parts.root):
        return "is empty; mode='w' makes a store"
    return f"has no directory {directory}"


def _find_messages_without_units(parts: Parts, known: tuple[Progress, bool] | None) -> None:
    """Put it into `problems` if the log has messages that a writer did not live to add to queues.

    The log is read from the mark of the queues on. A writer that is at work adds them soon.
    """
    log, queues = parts.commit_log, parts.queues
    if queues is None or _has_writer(parts):
        return
    mark = known[0].followers.get(QUEUES.name) if known is not None else None
    if known is not None and mark is not None:
        start = known[0].trusted(mark, same_boot=known[1])
    else:
        checkpoint = StoreCheckpoint(parts.vfs, parts.path(CHECKPOINT_FILE))
        least = checkpoint.min_timestamp
        start = unmarked_start(log.queue, clean_exit=False, least_time=least)
    found = QueueOffsets(parts.config.batch_topics)
    for piece in sound_pieces(log, max(start, log.min_offset), log.max_offset):
        found.put_records(decode_columns(piece.data, piece.starts, piece.base))
    lacking = {}
    for (topic, queue_id), end in found.table.items():
        queue = queues.find(topic, queue_id)
        there = 0 if queue is None else queue.max_offset
        if there < end:
            lacking[topic, queue_id] = end - there
    if lacking:
        topic, queue_id = min(lacking)
        parts.problems.append(CorruptRecord(
            parts.path(CONSUME_QUEUE_DIRECTORY), 0,
            f"{len(lacking)} queues, the first is {topic}/{queue_id}, lack the newest"
            f" {sum(lacking.values())} messages, which the log has: the writer ended before it had"
            " added them, and the next opening for writing adds them",
        ))  # fmt: skip


def _has_writer(parts: Parts) -> bool:
    """True if a process is at work on the store, as far as that is known."""
    note = parts.path(OWN_DIRECTORY, HOLDER_FILE)
    return bool(parts.vfs.lock_holder(note) or parts.vfs.lock_owners(parts.path(LOCK_FILE)))


def refresh(parts: Parts) -> None:
    """See what a writer has appended since."""
    own = ProgressFile(parts.vfs, parts.root).read() is not None
    _find_end(parts, parts.commit_log.max_offset, None, own=own)
    if parts.queues is not None:
        for queue in parts.queues.all_queues():
            queue.reload()
    parts.load(None)


def _find_end(
    parts: Parts, start: int | None, known: tuple[Progress, bool] | None,
    *, own: bool, clean_exit: bool = False,
) -> None:  # fmt: skip
    """Find where the log ends, changing nothing; from the trusted mark or `start` on.

    Without both from where a broker begins. `own`: only this package has written there, as
    recovery has it.
    """
    log, jobs = parts.commit_log, LogRecords(parts.vfs, parts.root)
    finished = jobs.finished()
    log.queue.load()
    hidden = jobs.hidden_from(finished)
    if hidden is not None:
        log.queue.hide_from(hidden)
    refreshes = start is not None
    if start is None:
        checkpoint = StoreCheckpoint(parts.vfs, parts.path(CHECKPOINT_FILE))
        start = unmarked_start(
            log.queue, clean_exit=clean_exit, least_time=checkpoint.min_timestamp
        )
    begin = max(start, log.queue.min_offset)
    if known is not None:
        progress, same_boot = known
        mark = progress.trusted(progress.log, same_boot=same_boot)
        own = begin <= mark <= log.queue.max_offset
        if own:
            begin = mark
            log.gaps = known_gaps(log.queue, progress, record_crc=log.record_crc)
    by_units = partial(proved_end, parts.vfs, parts.root, parts.config)
    on_this_boot = known is not None and known[1]
    misplaced = lost_files(log.queue, start if refreshes else 0)
    end, _, gaps = find_log_end(
        log.queue, begin, checks=log.checks(begin if own and not log.is_copy else NOWHERE),
        keep_good=log.config.recovery == "tubestore", misplaced=misplaced,
        proved_end=proof(log.queue, by_units, own=own, same_boot=on_this_boot),
    )  # fmt: skip
    log.start_at(end, 0)
    kept = (gap for gap in misplaced if gap.start < end)
    log.gaps = Gaps.merged((*log.gaps, *kept, *gaps))
    strays = [gap.error() for gap in misplaced if gap.start >= end and gap.state != "missing"]
    known_texts = set(map(str, parts.problems))
    parts.problems += [error for error in strays if str(error) not in known_texts]
