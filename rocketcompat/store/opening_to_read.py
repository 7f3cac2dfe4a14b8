"""Opening a store to read: finds where it ends and changes nothing."""

from __future__ import annotations

from functools import partial

from rocketcompat.commitlog.ending import (
    find_log_end,
    known_gaps,
    proof,
    unmarked_start,
)
from rocketcompat.commitlog.misplaced import lost_files
from rocketcompat.commitlog.walk import NOWHERE, Gaps
from rocketcompat.files.checkpoint import StoreCheckpoint
from rocketcompat.files.progress import Progress, ProgressFile
from rocketcompat.formats import ABORT_FILE, CHECKPOINT_FILE
from rocketcompat.queues.proof import proved_end
from rocketcompat.staging.pieces import LogRecords
from rocketcompat.store.parts import Parts, lost_end, refuse_other_logs, refuse_shards
from tubestore.errors import NotAStore


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
            raise NotAStore(parts.root, f"has no directory {directory}")
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
