"""Opening a store to write, and closing it: lock, recovery, dispatcher, flusher, marks.

Always true:
- the root's lock is held from before the first change to after the last;
- an `abort` file stands there, durably, until everything was handed over and synced.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rocketcompat.files.checkpoint import StoreCheckpoint
from rocketcompat.files.lock import StoreLock
from rocketcompat.files.mapped_file_queue import make_directory
from rocketcompat.files.progress import ProgressFile
from rocketcompat.files.quarantine import Quarantine
from rocketcompat.formats import (
    ABORT_FILE,
    CHECKPOINT_FILE,
    CONSUME_QUEUE_DIRECTORY,
)
from rocketcompat.staging.publish import BulkLoads
from rocketcompat.staging.roll_forward import recover_job
from rocketcompat.store.clean_service import FIRST_RUN_SECONDS, CleanService
from rocketcompat.store.flush import FlushService
from rocketcompat.store.parts import (
    Parts,
    built_without_log,
    put_aside_built,
    refuse_other_logs,
    refuse_shards,
)
from rocketcompat.store.puts import PutPath
from rocketcompat.store.recovery import recover_followers, recover_log
from rocketcompat.store.schedule import FIRST_SECONDS, ScheduleMessageService
from rocketcompat.store.structures import structures
from tubestore.core.vfs import LOST_LOCK
from tubestore.errors import NotAStore, StoreFailed, TubeStoreError, again

_log = logging.getLogger(__name__)


class Writer:
    """A store opened with mode "w"; recovered when it is made."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._vfs = parts, parts.vfs
        self._progress_file = ProgressFile(parts.vfs, parts.root)
        refuse_shards(parts)
        refuse_other_logs(parts)
        for directory in parts.read_only_directories:
            if not self._vfs.exists(directory):
                raise NotAStore(parts.root, f"has no directory {directory}")
        for directory in (*parts.log_directories, parts.path(CONSUME_QUEUE_DIRECTORY)):
            for parent in make_directory(self._vfs, directory):
                self._vfs.sync_directory(parent)
        self._lock = StoreLock(self._vfs, parts.root)
        try:
            with _no_collections():
                self._recover()
        except BaseException:
            self.give_back()
            raise
        for damage in parts.commit_log.damages:
            _log.warning("%s; a real broker would cut the log there", damage.error())

    def _recover(self) -> None:
        parts, log = self._parts, self._parts.commit_log
        for topic in sorted(parts.config.batch_topics):
            if self._vfs.entries(parts.path(CONSUME_QUEUE_DIRECTORY, topic)):
                # A real broker refuses a topic that has queues of both kinds, too (spec §2.9).
                ordinary = f"{CONSUME_QUEUE_DIRECTORY}/{topic}"
                raise NotAStore(
                    parts.root, f"{topic!r} is a topic of batches; `repair` removes {ordinary}"
                )
        clean_exit = not self._vfs.exists(parts.path(ABORT_FILE))
        quarantine = Quarantine(self._vfs, parts.root)
        if built_without_log(parts):  # accepted, or never synced: else it was refused
            put_aside_built(parts, quarantine)
        known = self._progress_file.read()
        if clean_exit:
            self._vfs.open(parts.path(ABORT_FILE), create=True).close()
        # Before the first byte is changed, and durable: a crash from here on must be seen. A
        # process that was killed may not have come to it.
        self._vfs.sync_directory(parts.root)
        if known is None:
            self._progress_file.forget()
        job = recover_job(self._vfs, parts.root)
        if job is not None:
            _log.info("%s: job %r is published now", parts.root, job.job_id)
        checkpoint = StoreCheckpoint(self._vfs, parts.path(CHECKPOINT_FILE))
        self.recovered = recover_log(
            log, known, quarantine, checkpoint, clean_exit=clean_exit and job is None
        )
        parts.problems += self.recovered.dropped
        parts.make_followers()
        parts.load(known[0].queues if known and self.recovered.clean else None)
        if parts.find_missing_queues(known[0] if known else None):
            # Without their marks they are built again.
            for structure in structures():
                if known is not None and structure.has_queues:
                    known[0].followers.pop(structure.name, None)
        self.dispatcher = recover_followers(
            log, parts.followers, parts.queues, known, self.recovered, parts.clock,
            self._progress_file, quarantine,
        )  # fmt: skip
        self.flusher = FlushService(
            log, parts.followers, self.dispatcher, self._progress_file, checkpoint, parts.clock
        )
        self.cleaner = CleanService(
            log, parts.followers, self.dispatcher, self.flusher.persist, parts.clock,
            self._vfs.modified_ms, parts.path(CONSUME_QUEUE_DIRECTORY),
        )  # fmt: skip
        self.puts = PutPath(log, self.dispatcher)
        self.loads = BulkLoads(log, parts.root, self._vfs, parts.clock)
        self.schedule = (
            None
            if parts.queues is None
            else ScheduleMessageService(
                log, parts.queues, parts.broker_config, parts.clock, self.puts.append
            )
        )
        # What stands in the log from here on is ours: the mark says so, after a reboot too.
        log.flush()
        self._progress_file.write(self.flusher.progress(), sync=True)

    def start(self, on_round: Callable[[], None]) -> None:
        """Start the threads; `on_round` is called now and then, for statistics."""
        self.dispatcher.start()

        def every_round() -> None:
            self.check_lock()
            on_round()

        self.flusher.start_with(every_round)
        self.cleaner.start(FIRST_RUN_SECONDS)
        if self.schedule is not None and self._parts.config.enable_schedule_message:
            self.schedule.start(FIRST_SECONDS)

    def check_lock(self) -> None:
        """Fail the log once the lock file was removed or replaced: another writer may be there."""
        if self._parts.commit_log.failed is None and not self._lock.is_current():
            self._parts.commit_log.fail(LOST_LOCK)
            raise StoreFailed(self._parts.root, LOST_LOCK)

    def problems(self) -> list[TubeStoreError]:
        """What the structures and services could not do."""
        services = self.dispatcher.problems + self.flusher.problems + self.cleaner.problems
        if self.schedule is not None:
            services += self.schedule.problems
        return services + [p for follower in self._parts.followers for p in follower.problems]

    def states(self) -> dict[str, Any]:
        """Return what runs and what stopped, for the statistics."""
        dispatcher = self.dispatcher
        services = {
            service.name: {"running": service.is_running, "stopped": service.stopped is not None}
            for service in (dispatcher, self.flusher, self.cleaner, self.schedule)
            if service is not None
        }
        end, failed = self._parts.commit_log.max_offset, dispatcher.failed
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
        log = self._parts.commit_log
        if log.failed is None and not self._lock.is_current():
            log.fail(LOST_LOCK)
        if log.failed is not None:
            self.dispatcher.abandon()
            self.flusher.shutdown()
            raise again(log.failed)
        log.commit()
        self.dispatcher.shutdown()
        self.flusher.shutdown()
        done = self.dispatcher.behind == 0 and not self.dispatcher.failed
        queues = self._parts.queues
        ends = queues.max_offsets() if queues is not None else {}
        starts = queues.first_files() if queues is not None else None
        self.flusher.persist(clean=done, queues=ends, starts=starts)
        if self.schedule is not None:
            self.schedule.persist()
        if done and not self.flusher.problems:
            self._vfs.remove(self._parts.path(ABORT_FILE))
            self._vfs.sync_directory(self._parts.root)

    def give_back(self) -> None:
        """Close the files and release the lock."""
        self._parts.close()
        self._lock.release()


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
