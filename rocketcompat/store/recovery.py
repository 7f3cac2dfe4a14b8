"""Opening for writing: find the log's end, bring every structure to it, hand over what is missing.

Everything below the marks of `progress.py` is trusted. A store without marks is trusted as a
RocketMQ broker trusts it: up to the third-last file of the log after a clean stop, up
to the checkpoint's time after a crash. Shards are not trusted at all then: no broker writes them.
From there on the log is followed record by record. The first bytes that are not a record are

- *torn*, if no sound record follows anywhere: the log is cut there (zeroed behind, later files
  removed), as in RocketMQ;
- *damaged*, if one does, or if a queue's unit points there and the machine has run since the marks
  were written: they stay, are listed in `problems`, and are passed over (D7). With
  `recovery="upstream"` the log is cut there as RocketMQ cuts it, and what follows is lost.

A file that holds the records of another place (two were swapped, or one is a copy) is damage as a
whole and stays, at the log's end too: the log goes on in a new file behind it.

A slave's log comes from its master again: it is cut at damage behind its marks, and what follows
goes to quarantine. A gap there would stay. Below the marks damage is passed over as elsewhere.

Bytes that are cut behind a mark were never synced, unless they are a sound record of another place.
Everything else that goes is kept in quarantine: whole files by a rename, tails as copies; without
room for them nothing is dropped.

Then the structures are cut at their trusted mark, or the log's end if that is lower, and everything
behind it is handed over again. A follower's *written* mark is kept for the record, but only
*synced* is trusted: what a killed process had written and not synced is not among the files that
this process syncs, so a later sync would claim it without having done it. The log's *written* mark
is trusted after a kill, since its files are synced from the *synced* mark on.

Always true: every step may be repeated; a crash in the middle, then recovery, gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rocketcompat.commitlog.appended import Appended
from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.commitlog.ending import (
    ProvedEnd,
    QueueOffsets,
    find_log_end,
    is_as_left,
    known_gaps,
    last_time,
    mended_regions,
    proof,
    start_alone,
    unmarked_start,
)
from rocketcompat.commitlog.misplaced import holds_foreign_record, lost_files
from rocketcompat.commitlog.walk import NO_GAPS, NOWHERE, Gap, Gaps, gap_of
from rocketcompat.dispatch.dispatcher import ReputMessageService
from rocketcompat.dispatch.protocols import Follower
from rocketcompat.files.checkpoint import StoreCheckpoint
from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.files.progress import Mark, Progress, ProgressFile, Trust
from rocketcompat.formats import BLANK, MAGIC_BLANK
from rocketcompat.queues.table import ConsumeQueueTable
from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.core.quarantine import Quarantine
from tubestore.errors import CorruptRecord, failed_write

_log = logger(__name__)
_NO_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RecoverResult:
    """What opening found and did; offsets are physical."""

    #: Closed cleanly: nothing was verified.
    clean: bool
    verified_from: int
    log_end: int
    #: Bytes behind the end that were zeroed or removed, and why the chain ended.
    cut_bytes: int = 0
    reason: str | None = None
    damages: Gaps = NO_GAPS
    #: Where what was dropped is kept; None if nothing was, or all of it was provably torn.
    quarantine: str | None = None
    #: True if marks prove what is before `verified_from`, and that the cut was torn.
    own: bool = False
    #: Before this offset a store without marks had synced its index, by its checkpoint.
    index_verified_from: int = 0
    #: What was cut although it is not provably torn, and where it is kept.
    dropped: tuple[CorruptRecord, ...] = ()


def recover_log(
    log: CommitLog, known: tuple[Progress, bool] | None, quarantine: Quarantine,
    checkpoint: StoreCheckpoint, *, clean_exit: bool, comes_again: bool = False,
    by_units: ProvedEnd = start_alone,
) -> RecoverResult:  # fmt: skip
    """Load the log, verify it from where it is trusted, cut a torn end; the log is usable then.

    Bytes that are cut behind a mark after a crash were never synced. Bytes that are cut elsewhere,
    or after a clean close, may be a damaged record that was acknowledged: they go to `quarantine`.
    So do sound records of another place, from a file that was swapped or copied, and what follows
    damage in a log that a master sends again (`comes_again`). `by_units` is asked for records at
    the log's end that queues have units of.
    """
    log.queue.load()
    trusted = _trusted_of(log, known, checkpoint, clean_exit=clean_exit)
    if trusted.end is not None:
        log.start_at(trusted.end, trusted.end)
        log.gaps = trusted.gaps
        return RecoverResult(True, trusted.end, trusted.end, damages=log.gaps, own=True)
    proved_end = proof(log.queue, by_units, own=trusted.own, same_boot=trusted.same_boot)
    found = _find_end(log, trusted, proved_end)
    if comes_again and trusted.own:
        found = found.before_damage(trusted.start)
    if known is not None and trusted.again:
        _lower_marks(known[0], min(start for start, _ in trusted.again))
    cut, dropped = _cut(log, found, trusted, quarantine, checkpoint, clean_exit=clean_exit)
    log.start_at(found.end, min(trusted.synced, found.end))
    log.gaps = found.gaps
    index_from = trusted.start
    if not trusted.own and not clean_exit:  # the index is synced more rarely than log and queues
        least = checkpoint.min_timestamp_index
        index_from = min(index_from, unmarked_start(log.queue, clean_exit=False, least_time=least))
    return RecoverResult(
        False, trusted.start, found.end, cut, found.reason if cut else None, found.gaps,
        quarantine.path, own=trusted.own, index_verified_from=index_from, dropped=dropped,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Trusted:
    """The part of the log that is trusted without verification."""

    #: Verification begins here; everything below is sound except for `gaps`.
    start: int
    synced: int
    #: True if marks prove what is before `start`. Before a mark that does not count another program
    #: may have written; its records are judged as RocketMQ judges them.
    own: bool
    #: Files that hold the records of another place, and those that are missing.
    misplaced: Gaps
    gaps: Gaps = NO_GAPS
    #: Parts that were gaps and begin with a sound record now.
    again: Sequence[tuple[int, int]] = ()
    #: The log's end if nothing has to be verified.
    end: int | None = None
    #: True if the machine has run since the marks were written.
    same_boot: bool = False


def _trusted_of(
    log: CommitLog, known: tuple[Progress, bool] | None, checkpoint: StoreCheckpoint,
    *, clean_exit: bool,
) -> _Trusted:  # fmt: skip
    """Return what the marks prove, or the checkpoint of a store without marks that count."""
    queue, record_crc = log.queue, log.record_crc
    misplaced = lost_files(queue)
    if known is not None:
        progress, same_boot = known
        end = progress.log.written
        gaps = known_gaps(queue, progress, record_crc=record_crc)
        again = mended_regions(queue, progress, record_crc=record_crc)
        as_left = clean_exit and progress.clean and is_as_left(queue, end)
        if as_left and not misplaced and not again:
            return _Trusted(end, end, True, misplaced, gaps, end=end)
        start = progress.trusted(progress.log, same_boot=same_boot)
        if queue.min_offset <= start <= queue.max_offset:
            return _Trusted(
                start, progress.log.synced, True, misplaced, gaps, again, same_boot=same_boot
            )
    least = checkpoint.min_timestamp
    start = unmarked_start(queue, clean_exit=clean_exit, least_time=least)
    return _Trusted(start, queue.min_offset, False, misplaced)


@dataclass(frozen=True, slots=True)
class _End:
    """Where the log ends and why, and the gaps before that."""

    end: int
    reason: str | None
    gaps: Gaps
    #: True if sound records follow the end: a master sends them again.
    is_early: bool = False

    def before_damage(self, start: int) -> _End:
        """Return an end at the first gap behind `start`; the same end if there is none."""
        first = next((gap for gap in self.gaps if gap.start >= start), None)
        if first is None:
            return self
        kept = Gaps(gap for gap in self.gaps if gap.start < first.start)
        return _End(first.start, f"{first.reason}; the master sends it again", kept, True)


def _find_end(log: CommitLog, trusted: _Trusted, proved_end: ProvedEnd) -> _End:
    """Follow the log from where it is trusted, and what was mended below that."""
    keep_good = log.config.recovery == "tubestore"
    # After a kill alone the records of a copy are whole but for the last one.
    strict = trusted.own and not (log.is_copy and trusted.same_boot)
    checks = log.checks(trusted.start if strict else NOWHERE)
    find_end = partial(
        find_log_end, log.queue, checks=checks, keep_good=keep_good, misplaced=trusted.misplaced,
        proved_end=proved_end,
    )  # fmt: skip
    end, reason, gaps = find_end(trusted.start)
    return _End(end, reason, Gaps.merged((
        *(gap for gap in trusted.gaps if gap.end <= trusted.start),
        *(gap for gap in trusted.misplaced if gap.start < end),
        *_find_ends_again(log.queue, trusted.again, find_end),
        *gaps,
    )))  # fmt: skip


def _find_ends_again(
    queue: MappedFileQueue, regions: Sequence[tuple[int, int]], find_end: Callable[..., Any]
) -> Iterator[Gap]:
    """Yield what is damaged of regions that hold sound records again."""
    for start, end in regions:
        reached, reason, gaps = find_end(start, limit=end)
        yield from gaps
        if reached < end:
            yield gap_of(queue, reached, end, reason or "no record")


def _cut(
    log: CommitLog, found: _End, trusted: _Trusted, quarantine: Quarantine,
    checkpoint: StoreCheckpoint, *, clean_exit: bool,
) -> tuple[int, tuple[CorruptRecord, ...]]:  # fmt: skip
    """Cut the log at its end; returns the bytes, and what of them is not provably torn."""
    queue, end = log.queue, found.end
    strays = [gap for gap in trusted.misplaced if gap.start >= end and gap.state != "missing"]
    # A store that this package closed cleanly has no torn end: what is there was changed since.
    torn = (
        trusted.own and not clean_exit and not strays and not found.is_early
        and not _ends_in_foreign_record(queue, end)
    )  # fmt: skip
    if not torn:
        _keep_tail(queue, end, quarantine)
    cut = queue.truncate_dirty_files(end, keeper=None if torn else quarantine)
    if not cut:
        return 0, ()
    kept = f"; kept in {quarantine.path}" if quarantine.path else ""
    _log.warning("%s: cut at %d, %d bytes (%s)%s", queue.directory, end, cut, found.reason, kept)
    if checkpoint.lower(last_time(queue, end), end):
        checkpoint.flush()
    dropped = [CorruptRecord(gap.path, 0, f"{gap.reason}{kept}") for gap in strays]
    if trusted.own and not torn and not dropped and kept:
        at = gap_of(queue, end, end, found.reason or "changed since it was closed")
        dropped = [CorruptRecord(at.path, at.position, f"cut here: {at.reason}{kept}")]
    return cut, tuple(dropped)


def _lower_marks(progress: Progress, offset: int) -> None:
    """Let the structures get everything from `offset` on again: they may lack some of it."""
    progress.places.clear()
    for name, mark in progress.followers.items():
        lower = Mark(min(mark.written, offset), min(mark.synced, offset))
        progress.followers[name] = lower


def _ends_in_foreign_record(queue: MappedFileQueue, end: int) -> bool:
    """True if a sound record of another place is behind the log's end in its file."""
    file = queue.find(end)
    return file is not None and holds_foreign_record(file, end - file.file_from_offset)


def _keep_tail(queue: MappedFileQueue, end: int, quarantine: Quarantine) -> None:
    """Keep the bytes behind the log's end in its file, if they are more than the filler."""
    file = queue.find(end)
    if file is None:
        return
    position = end - file.file_from_offset
    head = file.read(position, BLANK.size)
    if len(head) == BLANK.size and BLANK.unpack_from(head).magic_code == MAGIC_BLANK:
        return
    if file.has_data(position):
        quarantine.copy(file.path, position)


def recover_followers(
    log: CommitLog,
    appended: Appended,
    followers: Sequence[Follower],
    queues: ConsumeQueueTable | None,
    known: tuple[Progress, bool] | None,
    result: RecoverResult,
    clock: Clock,
    progress_file: ProgressFile,
    quarantine: Quarantine,
) -> ReputMessageService:
    """Cut every structure at what is trusted and hand over the rest; returns the dispatcher.

    `queues` are among the followers, or None. Without progress marks queues and index are trusted
    as a broker trusts them, and what is cut off goes to `quarantine`; shards are compared with the
    whole log. Afterwards every structure ends at the log's end, and the log has the next queue
    offsets.
    """
    marks = known[0].followers if known else {}
    places = known[0].places if known else {}
    if known is not None:
        numbers = known[0].next_offsets
        # Those of a clean close hold even if what they were given to is gone.
        log.keep_queue_offsets((numbers if result.clean else known[0].queues | numbers).items())
    if result.damages:
        keep_numbers(log, queues, result.damages)
    starts = []
    for follower in followers:
        mark = marks.get(follower.name)
        trust = _trust_of(log, mark, result, quarantine, places.get(follower.name))
        lower_mark = partial(_write_lower_mark, log, known, progress_file, follower.name)
        starts.append(follower.recover(log, trust, lower_mark))
    offsets = QueueOffsets(log.config.batch_topics)
    first = min([*starts, log.max_offset]) if queues is not None else log.min_offset
    service = ReputMessageService(
        log,
        appended,
        [*followers, offsets],
        clock,
        position=min([*starts, first]),
        starts=[*starts, first],
    )
    service.dispatch_pending()
    if service.full is not None:
        raise failed_write(log.queue.directory, service.full)
    log.raise_queue_offsets(offsets.table.items())
    if queues is not None:
        ends = queues.max_offsets()
        log.raise_queue_offsets(ends.items())
        log.lost_numbers = {k: n for k, n in log.lost_numbers.items() if n > ends.get(k, 0)}
    service.drop(offsets)
    for follower in followers:
        follower.replayed()
    return service


def _write_lower_mark(
    log: CommitLog,
    known: tuple[Progress, bool] | None,
    progress_file: ProgressFile,
    name: str,
    offset: int,
) -> None:
    """Write marks that trust one structure below `offset` only, durably.

    The file gets this boot's name, so its marks may be no higher than what is synced.
    """
    marks = known[0].followers if known else {}
    followers = {name: Mark(mark.synced, mark.synced) for name, mark in marks.items()}
    followers[name] = Mark(offset, offset)
    synced = Mark(log.synced_offset, log.synced_offset)
    damages = [(gap.start, gap.end, gap.reason) for gap in log.gaps]
    progress = Progress(
        synced, followers, log_minimum=log.min_offset, damages=damages,
        next_offsets=log.lost_numbers,
    )  # fmt: skip
    progress_file.write(progress, sync=True)


def _trust_of(
    log: CommitLog, mark: Mark | None, result: RecoverResult, keeper: Quarantine, places: int | None
) -> Trust:
    """Return what may be trusted of a structure with this mark, and so many places below it."""
    end = log.max_offset
    trusted = min(mark.synced, end) if mark is not None else None
    if trusted is not None and trusted < log.min_offset:
        trusted = None
    return Trust(
        trusted, result.clean and mark is not None and mark.synced == end, result.own,
        result.verified_from, result.index_verified_from,
        places if mark is not None and trusted == mark.synced else None, keeper,
    )  # fmt: skip


def keep_numbers(log: CommitLog, queues: ConsumeQueueTable | None, gaps: Gaps) -> None:
    """Note the queue offsets of damaged records while their units contain them.

    Without it the number of a queue's last message would be given out again.
    """
    for queue in () if queues is None else queues:
        first, units = queue.min_offset, queue.units(queue.min_offset, queue.max_offset)
        places = units["physical_offset"].astype(np.int64)
        for gap in gaps:
            inside = np.flatnonzero((places >= gap.start) & (places < gap.end))
            if len(inside):
                following = first + int(inside[-1]) + 1
                log.keep_queue_offsets([((queue.topic, queue.queue_id), following)])
    for of_batches in () if queues is None else queues.batches or ():
        stored = of_batches.units()
        places = stored["physical_offset"].astype(np.int64)
        for gap in gaps:
            inside = np.flatnonzero((places >= gap.start) & (places < gap.end))
            if len(inside):
                unit = stored[inside[-1]]
                following = int(unit["base_offset"]) + int(unit["batch_size"])
                log.keep_queue_offsets([((of_batches.topic, of_batches.queue_id), following)])
