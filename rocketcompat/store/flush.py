"""Brings files to stable storage in the background, and writes marks of how far they are.

RocketMQ's flush services in one thread: `flush_due` has the rules. A background sync
never delays a put.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.dispatch.dispatcher import ReputMessageService
from rocketcompat.dispatch.protocols import Follower
from rocketcompat.files.checkpoint import StoreCheckpoint
from rocketcompat.files.mapped_file_queue import PAGE
from rocketcompat.files.progress import Mark, Progress, ProgressFile, QueueKey
from rocketcompat.store.service_thread import ServiceThread
from tubestore.clock import Clock
from tubestore.errors import TubeStoreError

_MARKS_MS = 10_000


class FlushService(ServiceThread):
    """Syncs and writes the marks; in one thread, or in each caller of `persist`."""

    def __init__(
        self, log: CommitLog, followers: Sequence[Follower], dispatcher: ReputMessageService,
        progress_file: ProgressFile, checkpoint: StoreCheckpoint, clock: Clock,
    ) -> None:  # fmt: skip
        super().__init__("FlushService")
        self._log, self._followers, self._dispatcher = log, followers, dispatcher
        self._progress_file, self._checkpoint, self._clock = progress_file, checkpoint, clock
        self._persist_lock = threading.Lock()
        #: When the log, the queues, and everything with the marks were last synced, ms.
        self._log_at = self._queues_at = self._marks_at = clock.monotonic() * 1000
        self._commit_at = self._log_at
        #: When the log's dirty pages were last counted, ms.
        self._log_seen_at = -float(log.config.flush_interval_commit_log)
        self._on_round: Callable[[], None] = lambda: None

    def persist(
        self, *, clean: bool = False, queues: dict[QueueKey, int] | None = None,
        starts: dict[QueueKey, int] | None = None,
    ) -> None:  # fmt: skip
        """Sync the log, then the structures, then write the marks; durable on return.

        Because of this order a structure is never ahead of the log on stable storage, and
        everything below a mark was synced before it is written. A structure that cannot be synced
        is reported and keeps its mark; the log's failure is raised.
        """
        with self._persist_lock:
            self._log.flush()
            covered, timestamp = self._log.synced
            synced = True
            for follower in self._followers:
                try:
                    follower.flush(sync=True)
                except (OSError, TubeStoreError) as error:
                    problem = TubeStoreError(f"{follower.name}: sync failed: {error!r}")
                    self.report(problem, follower.name)
                    synced = False
                else:
                    self.works(follower.name)
            progress = self.progress(clean=clean and synced, queues=queues)
            progress.queue_starts = starts
            self._progress_file.write(progress, sync=True)
            self._set_checkpoint(timestamp, covered)
            if synced:
                self.works()

    def progress(
        self, *, clean: bool = False, queues: dict[QueueKey, int] | None = None
    ) -> Progress:
        """Return the marks as of now."""
        counted = [(f.name, f.ends, f.places) for f in self._followers]
        followers = {name: Mark(*ends) for name, ends, _ in counted}
        places = {name: count for name, _, count in counted if count is not None}
        log = Mark(self._log.max_offset, self._log.synced_offset)
        damages = [(gap.start, gap.end, gap.reason) for gap in self._log.gaps]
        return Progress(
            log, followers, clean, queues or {}, self._log.min_offset, damages,
            places=places, next_offsets=self._log.lost_numbers,
        )  # fmt: skip

    def start_with(self, on_round: Callable[[], None]) -> None:
        """Start the thread; `on_round` is called in every round."""
        self._on_round = on_round
        self.start(self._interval)

    def work(self) -> float:
        """Sync what is due."""
        self._on_round()
        self.flush_due()
        return self._interval

    def after_error(self) -> float:
        """Return the usual pause: what could not be synced is tried again."""
        return self._interval

    def after_success(self) -> None:
        """Do nothing: in most rounds nothing is due. A whole `persist` shows what works."""

    @property
    def _interval(self) -> float:
        config = self._log.config
        every = min(config.flush_interval_commit_log, config.flush_interval_consume_queue)
        if config.uses_transient_pool:
            every = min(every, config.commit_interval_commit_log)
        return every / 1000

    def _set_checkpoint(self, timestamp: int, covered: int) -> None:
        """Let a broker's recovery begin later, but only at what is synced everywhere."""
        checkpoint = self._checkpoint
        synced = {f.name: f.ends[1] for f in self._followers}
        if timestamp:
            checkpoint.physic_msg_timestamp = timestamp
            if synced.get("consume_queue", 0) >= covered:
                checkpoint.logics_msg_timestamp = timestamp
            if synced.get("index", 0) >= covered:
                checkpoint.index_msg_timestamp = timestamp
        try:
            checkpoint.flush()
        except OSError as error:
            self.report(TubeStoreError(f"checkpoint: {error!r}"), "checkpoint")
        else:
            self.works("checkpoint")

    def flush_due(self) -> None:
        """Sync what is due now, by the intervals and least pages of the options.

        The log when enough pages of it are dirty, or after its thorough interval; a queue when
        enough of its own are; everything, with the marks, after the thorough interval of the
        queues, and every 10 s at least, since a recovery begins at the marks.
        """
        config, log, now = self._log.config, self._log, self._clock.monotonic() * 1000
        self._commit_due(now)
        if now - self._marks_at >= min(_MARKS_MS, config.flush_consume_queue_thorough_interval):
            self._marks_at = self._log_at = self._queues_at = now
            self.persist()
            return
        if now - self._log_seen_at >= config.flush_interval_commit_log:
            self._log_seen_at = now
            thorough = now - self._log_at >= config.flush_commit_log_thorough_interval
            least = config.flush_commit_log_least_pages
            if thorough or _is_due(log.synced_offset, log.max_offset, least):
                self._log_at = now
                log.flush()
        if now - self._queues_at >= config.flush_interval_consume_queue:
            self._queues_at = now
            for follower in self._followers:
                follower.flush_due(config.flush_consume_queue_least_pages)

    def _commit_due(self, now: float) -> None:
        """Copy the transient pool's content to the page cache, and let it be handed over."""
        config, log = self._log.config, self._log
        if not log.uncommitted_bytes or now - self._commit_at < config.commit_interval_commit_log:
            return
        end, least = log.max_offset + log.uncommitted_bytes, config.commit_commit_log_least_pages
        thorough = now - self._commit_at >= config.commit_commit_log_thorough_interval
        if thorough or _is_due(log.max_offset, end, least):
            self._commit_at = now
            if log.commit():
                self._dispatcher.wake()


def _is_due(done: int, end: int, least_pages: int) -> bool:
    """True if enough pages are dirty between two offsets; with 0 if any are."""
    return end > done and end // PAGE - done // PAGE >= least_pages
