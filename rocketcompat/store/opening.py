"""Opening a store to write, and closing it: lock, recovery, dispatcher, flusher, marks.

Always true:
- the root's lock is held from before the first change to after the last;
- an `abort` file is in the root, durably, until everything was handed over and synced.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from rocketcompat.commitlog.walk import NOWHERE, Gap, Gaps
from rocketcompat.dispatch.dispatcher import ReputMessageService
from rocketcompat.files.checkpoint import StoreCheckpoint
from rocketcompat.files.lock import StoreLock
from rocketcompat.files.mirror_file import MirrorFile
from rocketcompat.files.progress import Progress, ProgressFile
from rocketcompat.formats import (
    ABORT_FILE,
    CHECKPOINT_FILE,
    CONSUME_QUEUE_DIRECTORY,
)
from rocketcompat.queues.proof import proved_end
from rocketcompat.staging.publish import BulkLoads
from rocketcompat.staging.roll_forward import recover_job
from rocketcompat.store.clean_service import FIRST_RUN_SECONDS, CleanService
from rocketcompat.store.flush import FlushService
from rocketcompat.store.parts import (
    Parts,
    begin_log,
    built_without_log,
    lost_end,
    put_aside_built,
    refuse_lost_end,
    refuse_mirror,
    refuse_other_logs,
    refuse_shards,
)
from rocketcompat.store.puts import PutPath
from rocketcompat.store.recovery import RecoverResult, keep_numbers, recover_followers, recover_log
from rocketcompat.store.schedule import FIRST_SECONDS, ScheduleMessageService
from rocketcompat.store.structures import INDEX, structures
from tubestore.core.doors import logger
from tubestore.core.quarantine import Quarantine
from tubestore.core.trees import make_directory
from tubestore.core.vfs import LOST_LOCK
from tubestore.errors import NotAStore, StoreFailed, TubeStoreError, again

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """A store that is open for writing: its parts, its lock, its services."""

    parts: Parts
    lock: StoreLock
    recovered: RecoverResult
    dispatcher: ReputMessageService
    puts: PutPath
    loads: BulkLoads
    flusher: FlushService
    cleaner: CleanService
    #: None in a store without queues.
    schedule: ScheduleMessageService | None

    def start(self, on_round: Callable[[], None]) -> None:
        """Start the threads; `on_round` is called now and then, for statistics."""
        self.dispatcher.start()

        def every_round() -> None:
            self.check_lock()
            on_round()

        self.flusher.start_with(every_round)
        self.cleaner.start(FIRST_RUN_SECONDS)
        if self.schedule is not None and self.parts.config.enable_schedule_message:
            self.schedule.start(FIRST_SECONDS)

    def check_lock(self) -> None:
        """Fail the log once the lock file was removed or replaced: another writer may be there."""
        refusals = self.parts.commit_log.refusals
        if refusals.failed is None and not self.lock.is_current():
            refusals.fail(LOST_LOCK)
            raise StoreFailed(self.parts.root, LOST_LOCK)

    def problems(self) -> list[TubeStoreError]:
        """What the structures and services could not do."""
        services = self.dispatcher.problems + self.flusher.problems + self.cleaner.problems
        if self.schedule is not None:
            services += self.schedule.problems
        return services + [p for follower in self.parts.followers for p in follower.problems]

    def states(self) -> dict[str, Any]:
        """Return what runs and what stopped, for the statistics."""
        dispatcher = self.dispatcher
        services = {
            service.name: {"running": service.is_running, "stopped": service.stopped is not None}
            for service in (dispatcher, self.flusher, self.cleaner, self.schedule)
            if service is not None
        }
        end, failed = self.parts.commit_log.max_offset, dispatcher.failed
        structures = {
            name: {"behind_bytes": max(0, end - reached), "stopped": name in failed}
            for name, reached in dispatcher.ends.items()
        }
        return {
            "dispatch": {
                "full": dispatcher.full is not None, "stopped": dispatcher.stopped is not None
            },
            "structures": structures,
            "services": services,
        }  # fmt: skip

    def shut_down(self) -> None:
        """Everything of a close that can fail; `abort` stays if anything did."""
        self.cleaner.shutdown()
        if self.schedule is not None:
            self.schedule.shutdown()
        log = self.parts.commit_log
        if log.refusals.failed is None and not self.lock.is_current():
            log.refusals.fail(LOST_LOCK)
        if log.refusals.failed is not None:
            self.dispatcher.abandon()
            self.flusher.shutdown()
            raise again(log.refusals.failed)
        log.commit()
        self.dispatcher.shutdown()
        self.flusher.shutdown()
        done = self.dispatcher.behind == 0 and not self.dispatcher.failed
        queues = self.parts.queues
        ends = queues.max_offsets() if queues is not None else {}
        starts = queues.first_files() if queues is not None else None
        self.flusher.persist(clean=done, queues=ends, starts=starts)
        if self.schedule is not None:
            self.schedule.persist()
        if done and not self.flusher.problems:
            self.parts.vfs.remove(self.parts.path(ABORT_FILE))
            self.parts.vfs.sync_directory(self.parts.root)

    def give_back(self) -> None:
        """Close the files and release the lock."""
        self.parts.close()
        self.lock.release()


def open_to_write(parts: Parts) -> Opened:
    """Create what is missing, take the lock, recover the store; returns it with its services."""
    refuse_shards(parts)
    refuse_mirror(parts)
    refuse_other_logs(parts)
    refuse_lost_end(parts)
    for directory in parts.read_only_directories:
        if not parts.vfs.exists(directory):
            raise NotAStore(parts.root, f"has no directory {directory}")
    for directory in (*parts.log_directories, parts.path(CONSUME_QUEUE_DIRECTORY)):
        for parent in make_directory(parts.vfs, directory):
            parts.vfs.sync_directory(parent)
    lock = StoreLock(parts.vfs, parts.root)
    try:
        with _no_collections():
            opened = _recovered(parts, lock)
    except BaseException:
        parts.close()
        lock.release()
        raise
    for gap in parts.commit_log.gaps:
        _log.warning("%s; a real broker would cut the log there", gap.error())
    return opened


def _refuse_mixed_queues(parts: Parts) -> None:
    """Raise NotAStore for a topic that has queues of both kinds, as RocketMQ does."""
    for topic in sorted(parts.config.batch_topics):
        if parts.vfs.entries(parts.path(CONSUME_QUEUE_DIRECTORY, topic)):
            ordinary = f"{CONSUME_QUEUE_DIRECTORY}/{topic}"
            raise NotAStore(
                parts.root, f"{topic!r} is a topic of batches; `repair` removes {ordinary}"
            )


def _begin(
    parts: Parts, marks: ProgressFile, quarantine: Quarantine
) -> tuple[tuple[Progress, bool] | None, bool]:
    """Note durably that the store is open; returns the marks that count, and if it was closed.

    A crash from here on must be seen. What was built from a log that is not there goes first.
    """
    abort = parts.path(ABORT_FILE)
    clean_exit = not parts.vfs.exists(abort)
    if built_without_log(parts):  # accepted, or never synced: else it was refused
        put_aside_built(parts, quarantine)
    known = marks.read()
    if clean_exit:
        parts.vfs.open(abort, create=True).close()
    # Also if the file was there: a process that was killed may not have come to it.
    parts.vfs.sync_directory(parts.root)
    if known is None:
        marks.forget()
    return known, clean_exit


def _recovered(parts: Parts, lock: StoreLock) -> Opened:
    """Recover log and structures, and make the services."""
    log, vfs, clock = parts.commit_log, parts.vfs, parts.clock
    _refuse_mixed_queues(parts)
    marks, quarantine = ProgressFile(vfs, parts.root), Quarantine(vfs, parts.root)
    if parts.follows is not None:
        if parts.follows.begin is not None:
            begin_log(parts, parts.follows.begin)
        MirrorFile(vfs, parts.root).write(parts.follows.master)
    known, clean_exit = _begin(parts, marks, quarantine)
    job = recover_job(vfs, parts.root, lock.writer)
    if job is not None:
        _log.info("%s: job %r is published now", parts.root, job.job_id)
    lost = lost_end(parts, known)
    checkpoint = StoreCheckpoint(vfs, parts.path(CHECKPOINT_FILE))
    recovered = recover_log(
        log, known, quarantine, checkpoint, clean_exit=clean_exit and job is None,
        comes_again=parts.follows is not None and parts.follows.comes_again,
        by_units=partial(proved_end, vfs, parts.root, parts.config),
    )  # fmt: skip
    parts.problems += recovered.dropped
    parts.find_missing_begin(known[0] if known is not None and clean_exit else None)
    parts.make_followers()
    parts.load(known[0].queues if known and recovered.clean else None)
    if lost is not None and known is not None:
        _log.warning("%s", lost)
        parts.problems.append(lost)
        keep_numbers(
            log,
            parts.queues,
            Gaps([Gap(log.max_offset, NOWHERE - 1, "missing", lost.reason, lost.path, 0)]),
        )
    if parts.find_missing_index(known) and known is not None:
        known[0].followers.pop(INDEX.name, None)  # without its mark it is built again
    if parts.find_missing_queues(known[0] if known else None):
        # Without their marks they are built again.
        for structure in structures():
            if known is not None and structure.has_queues:
                known[0].followers.pop(structure.name, None)
    followers = parts.followers
    dispatcher = recover_followers(
        log, parts.appended, followers, parts.queues, known, recovered, clock, marks, quarantine
    )
    flusher = FlushService(log, followers, dispatcher, marks, checkpoint, clock)
    puts, schedule = PutPath(log, dispatcher, clock), None
    if parts.queues is not None:
        schedule = ScheduleMessageService(
            log, parts.queues, parts.broker_config, clock, partial(puts.append, replicates=False)
        )
    # From here on only this package writes the log: the mark records that, after a reboot too.
    log.flush()
    marks.write(flusher.progress(), sync=True)
    queue_directory = parts.path(CONSUME_QUEUE_DIRECTORY)
    cleaner = CleanService(
        log, followers, dispatcher, flusher.persist, clock, vfs.modified_ms, queue_directory
    )
    loads = BulkLoads(log, parts.appended, parts.root, vfs, clock, lock.writer)
    return Opened(parts, lock, recovered, dispatcher, puts, loads, flusher, cleaner, schedule)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Look for no garbage while objects are made that stay: a fifth of opening 10,000 queues."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
