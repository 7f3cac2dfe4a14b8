"""Deletes what is too old, and refuses writes before the disk is full; RocketMQ's two cleaners.

`CleanCommitLogService` and `CleanConsumeQueueService` in one thread: the first run after
a minute, then every `clean_resource_interval`. What goes is decided by `cleaning.py`; the log's
files go first, oldest first, then those of queues, index and shards that only know records below
the log's new begin. A kill in between leaves older entries, which every reader passes by and the
next run deletes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.dispatch.dispatcher import ReputMessageService
from rocketcompat.dispatch.protocols import Follower
from rocketcompat.store.cleaning import (
    DiskUse,
    FileVerdict,
    LogFile,
    disk_used_percent,
    least_used,
    occasion,
    plan,
)
from rocketcompat.store.service_thread import ServiceThread
from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.errors import DiskFull

_log = logger(__name__)
#: RocketMQ's figures: the first run, and how many runs a request by hand is good for.
FIRST_RUN_SECONDS = 60.0
MANUAL_RUNS = 20


class CleanService(ServiceThread):
    """One store's cleaner. `run` is one round, called by the thread or by the caller.

    Thread-safe: rounds exclude each other. `persist` brings the log and what `dispatcher` has
    handed over to stable storage. `modified_ms` gives a file's last change, `disk_used` the
    percentage of a path's disk; both are doors for tests.
    """

    def __init__(
        self,
        log: CommitLog,
        followers: Sequence[Follower],
        dispatcher: ReputMessageService,
        persist: Callable[[], None],
        clock: Clock,
        modified_ms: Callable[[str], int],
        queue_directory: str,
        disk_used: Callable[[str], int] = disk_used_percent,
    ) -> None:
        super().__init__("CleanService")
        self._log, self._clock = log, clock
        self._followers = followers
        self._dispatcher, self._persist = dispatcher, persist
        self._modified_ms, self._disk_used = modified_ms, disk_used
        self._queue_directory = queue_directory
        self._round_lock = threading.Lock()
        self._manual_runs = 0
        self._cleaned_to = -1
        #: Files deleted since the store was opened, by structure.
        self.deleted: dict[str, int] = {"commit_log": 0} | {f.name: 0 for f in followers}

    def execute_manually(self, runs: int = MANUAL_RUNS) -> None:
        """Let the next rounds delete expired files at any hour."""
        self._manual_runs = max(self._manual_runs, runs)

    def explain(self, *, manual: bool = False) -> list[FileVerdict]:
        """Return what a round would do with each file of the log now, and why; changes nothing."""
        now = self._clock.now_ms()
        when = occasion(self._log.config, now, self._disk_use(), manual=manual)
        # While dispatch waits for room, a round cannot build what is missing either.
        waits, failed = self._dispatcher.full is not None, self._dispatcher.failed
        stuck = [f for f in self._followers if waits or f.name in failed]
        keep_from = self._keep_from(stuck) if stuck else None
        return plan(self._facts(), self._log.config, now, when, keep_from=keep_from)

    def run(self) -> list[FileVerdict]:
        """Do one round: refuse or take writes, delete files; returns a verdict a file of the log.

        Deletions are durable on return. OSError passes through; the next round goes on.
        """
        with self._round_lock:
            now, config = self._clock.now_ms(), self._log.config
            manual, self._manual_runs = self._manual_runs > 0, max(0, self._manual_runs - 1)
            use = self._disk_use()
            when = occasion(config, now, use, manual=manual)
            self._refuse_or_take(use, full=when.disk_full)
            facts = self._facts()
            due = [verdict for verdict in plan(facts, config, now, when) if verdict.delete]
            if due and due[-1].start + due[-1].size > self._keep_from(self._followers):
                # Just opened, perhaps: what is not built yet would keep every file for a round.
                self._log.commit()
                self._dispatcher.dispatch_pending()
                self._persist()
            keep_from = self._keep_from(self._followers)
            verdicts = plan(facts, config, now, when, keep_from=keep_from)
            for verdict in verdicts:
                if verdict.delete:
                    self._log.queue.delete_oldest()
                    self.deleted["commit_log"] += 1
                    _log.info("deleted %s: %s", verdict.path, verdict.reason)
            self._follow()
            return verdicts

    def work(self) -> float:
        """Do a round, as the thread does it."""
        self.run()
        return self._log.config.clean_resource_interval / 1000

    def _follow(self) -> None:
        """Let queues and index follow the log's begin, if it has moved since the last round."""
        minimum = self._log.min_offset
        if minimum == self._cleaned_to:
            return
        for follower in self._followers:
            self.deleted[follower.name] += follower.expire(minimum)
        self._cleaned_to = minimum

    def _facts(self) -> list[LogFile]:
        facts = []
        for file in self._log.queue.files:
            modified = self._modified_ms(file.path)
            facts.append(LogFile(file.path, file.file_from_offset, file.file_size, modified))
        return facts

    def _keep_from(self, followers: Sequence[Follower]) -> int:
        """Return the physical offset from which on something is not durably built yet."""
        ends = [follower.ends[1] for follower in followers]
        return min([self._log.synced_offset, *ends])

    def _disk_use(self) -> DiskUse:
        queues = self._disk_used(self._queue_directory) if self._followers else 0
        log, limit = self._log.queue, self._log.config.forcible_ratio
        used, each = least_used(log.writable_directories, self._disk_used)
        log.full_directories = frozenset(name for name, use in each.items() if use > limit)
        return DiskUse(used, queues)

    def _refuse_or_take(self, use: DiskUse, *, full: bool) -> None:
        if full and self._log.refusals.too_full is None:
            cause = f"{max(use)} % used, and above {self._log.config.warning_ratio} % none is taken"
            self._log.refusals.too_full = DiskFull(self._log.queue.directory, cause)
            _log.error("%s", self._log.refusals.too_full)
        elif not full and self._log.refusals.too_full is not None:
            self._log.refusals.too_full = None
            _log.warning("%s: messages are taken again", self._log.queue.directory)
