"""All topics of a store as one thing: what `tubestore.open` returns.

Lock order: the topics' lock before any of a shard's (decisions.md D11).
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from operator import attrgetter
from types import TracebackType
from typing import Any, Literal

import numpy as np

from tubestore.clock import Clock, SystemClock
from tubestore.core.memory_pool import MemoryPool
from tubestore.core.paths import checked_root
from tubestore.core.statistics import total
from tubestore.core.vfs import LOST_LOCK, OsVfs, Vfs
from tubestore.errors import (
    DiskFull,
    StoreClosed,
    StoreFailed,
    TubeStoreError,
    documented,
)
from tubestore.journal.journal_overlay import JournalOverlay
from tubestore.journal.journalled import JournalledAppends
from tubestore.journal.left_messages import LeftMessages
from tubestore.messages import BatchAck
from tubestore.options import Durability, StoreOptions, TopicOptions
from tubestore.record import ingest
from tubestore.shard.message_store import MessageStore
from tubestore.shard.workers import Workers
from tubestore.staging import roll_forward as job_recovery
from tubestore.staging.commit_records import Horizon
from tubestore.store.directory import StoreDirectory
from tubestore.store.housekeeping import Housekeeping
from tubestore.store.many_topics import AddressBook
from tubestore.store.shards import OpenShards
from tubestore.store.topic import Topic, append_table
from tubestore.store.topics import TopicRegistry

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]

#: Shards that are flushed when the bound on all buffers is reached.
RELIEVED_AT_ONCE = 16
#: More than there are threads.
_ID_GAP = 1 << 12
_open_stores: weakref.WeakSet[MessageStoreManager] = weakref.WeakSet()


class MessageStoreManager(OpenShards):
    """A store: made by `tubestore.open`, closed by `close` or at the end of a `with` block.

    One writer a directory, any number of readers. All methods are thread-safe.
    """

    @documented
    def __init__(
        self,
        root: str | os.PathLike[str],
        mode: Literal["w", "r"] = "w",
        *,
        options: StoreOptions | None = None,
        vfs: Vfs | None = None,
        clock: Clock | None = None,
        background: bool = True,
    ) -> None:
        if mode not in ("w", "r"):
            raise ValueError(f"mode {mode!r}: 'w' to write (made if missing) or 'r' to read")
        self.root, self.mode = os.path.abspath(checked_root(root)), mode
        self.options = options or StoreOptions()
        self.clock: Clock = clock or SystemClock()
        self.vfs: Vfs = vfs or OsVfs()
        self.problems = []
        self._pool = MemoryPool(self.options.memory_bound_bytes, self._relieve_memory)
        self._id_lock = threading.Lock()
        # A million ids a millisecond: whoever opens the store later begins above them.
        self._count_ids_from(self.clock.now_ms() << 20)
        self._closed: str | None = "it was never open"  # until the end of this method
        if mode == "w":
            self._close_earlier()
        #: Whether a full disk has kept it from closing.
        self._kept_open = False
        self._directory = StoreDirectory(self.vfs, self.root, mode, self.clock)
        self.uuid = self._directory.uuid
        self._showing = threading.RLock()
        self._horizons = {}
        try:
            self._find_topics()
        except BaseException:
            self._directory.release()
            raise
        self._housekeeping = Housekeeping(self.vfs, self.root, self.clock, self.options)
        self._workers = None
        if mode == "w" and background:
            self._workers = Workers(self.options.flush_workers, self)
        #: Takes batches over many shards; None if there is none, or an old one has to stay.
        self.journal: JournalledAppends | None = None
        self._left, self._keeping = LeftMessages(), threading.Lock()
        self._overlay = JournalOverlay(self.vfs, self.root, self.note_problem)
        if mode == "r":
            self._overlay.look_for_damage()
        self._closed = None
        _open_stores.add(self)
        if mode == "w":
            try:
                self._take_over_journal()
            except BaseException:
                self.close()
                raise

    def _close_earlier(self) -> None:
        """Close the store here that a full disk has kept from closing; DiskFull as long as it does.

        Its caller wanted it closed, and may not have kept it.
        """
        for store in list(_open_stores):
            same_disk = store.vfs is self.vfs or (
                isinstance(store.vfs, OsVfs) and isinstance(self.vfs, OsVfs)
            )
            if store._kept_open and store.root == self.root and same_disk:
                store.close()

    def _find_topics(self) -> None:
        """Finish what a crash left of jobs and deletions, and take in the topics."""
        if self.mode == "w":
            job_recovery.recover(self.vfs, self.root)
        self._horizon = Horizon(self.vfs, self.root)
        self._topics = TopicRegistry(self._directory, self.options, self._make_topic)
        if self.mode == "w":
            self._topics.finish_deletions()
        self._address_book = AddressBook(self._topics)

    # -- topics ------------------------------------------------------------------------------

    @documented
    def append_batch(self, data: Any, *, durability: Durability | None = None) -> BatchAck:
        """Append messages of many topics at once: a table with a column `topic`.

        Otherwise as `Topic.append_batch`; a durable prefix per shard, not atomic across shards.
        """
        self._check_open(writing=True)
        table = ingest.as_table(data, with_topic=True)
        if table.num_rows == 0:
            return append_table(self, table, [], np.empty(0, np.int64), durability)
        to, codes = self._address_book.of(table)
        return append_table(self, table, to.topics, codes, durability, to)

    def _make_topic(self, name: str, options: TopicOptions) -> Topic:
        return Topic(self, name, options, self._open_shard)

    # -- ids, states -------------------------------------------------------------------------

    def _count_ids_from(self, first: int) -> None:
        self.next_msg_id = itertools.count(first).__next__  # atomic, and a quarter of a lock's time

    def next_msg_ids(self, count: int) -> Array:
        """Reserve `count` ids in a row (int64)."""
        with self._id_lock:
            # With a gap: other threads may be about to take one from the counter that was.
            first = self.next_msg_id() + _ID_GAP
            self._count_ids_from(first + count)
        return np.arange(first, first + count, dtype=np.int64)

    def _relieve_memory(self) -> None:
        """Write the oldest buffers and the largest: they hold what the others wait for (D8)."""
        if self.journal is not None:
            self.journal.relieve()
        dirty = [shard for shard in self.writing_shards() if shard.dirty_bytes]
        some = RELIEVED_AT_ONCE // 2
        oldest = heapq.nsmallest(some, dirty, key=attrgetter("dirty_since"))
        largest = heapq.nlargest(some, dirty, key=attrgetter("dirty_bytes"))
        for shard in dict.fromkeys((*oldest, *largest)):
            with contextlib.suppress(TubeStoreError):  # it refuses appends itself, and says why
                shard.flush()

    @documented
    def flush(self) -> None:
        """Write all buffers to the files (page cache)."""
        self._check_open()
        for shard in list(self.writing_shards()):
            shard.flush()

    @documented
    def sync(self) -> None:
        """Bring everything that was taken to stable storage, by earlier processes too.

        What those left in shards that this one has not opened is synced with one call, once.
        """
        self._check_open()
        for shard in list(self.writing_shards()):
            shard.sync()
        self.sync_earlier()

    def sync_earlier(self) -> None:
        """Bring what earlier processes left unsynced to stable storage; see `sync`."""
        self._directory.sync_earlier()

    def stats(self) -> dict[str, Any]:
        """Return what the store has done since it was opened, and how it stands.

        Sums at the top, the same for each topic in `topics` and for each of its shards that has
        been written to or read in `shards`, by store id. Bytes and seconds as the names say;
        `tubestore.metrics` has the table, and the same for Prometheus.
        """
        self._check_open()
        topics: dict[str, Any] = {}
        for topic in self._topics:
            shards = {
                shard.store_id: shard.stats()
                for shard in topic.opened_shards()
                if isinstance(shard, MessageStore)
            }
            if shards:
                topics[topic.name] = {**total(shards.values()), "shards": shards}
        return {
            **total(topics.values()),
            "memory_bytes": self._pool.used,
            "memory_bound_bytes": self._pool.bound_bytes,
            "journal_bytes": self.journal.size if self.journal is not None else 0,
            "problems": len(self.problems),
            "topics": topics,
        }

    @documented
    def maintain(self) -> None:
        """Do what is due by time; with `background=True` a thread calls this by itself."""
        if not self.check_lock():
            return
        self.maintain_journal()
        for shard in list(self.writing_shards()):
            shard.maintain()
        self.keep_house(lambda seconds: False)

    def check_lock(self) -> bool:
        """Stop writing once the lock file was removed or replaced; whether the lock still holds.

        Another process may write to the directory then, and two writers would spoil its files.
        """
        if self._closed is not None or self._directory.is_locked():
            return self._closed != LOST_LOCK
        self.note_problem(StoreFailed(self.root, LOST_LOCK))
        self.abandon(LOST_LOCK)
        if self._workers is not None:
            self._workers.stop()
        self._directory.release()
        return False

    def maintain_journal(self) -> None:
        """Write what has been in the journal for a while to its shards."""
        if self.journal is not None:
            self.journal.maintain()

    def keep_house(self, pause: Callable[[float], bool]) -> None:
        """Make a pass of retention, over trashes and staged files too, if it is time for one."""
        if self._housekeeping.is_due():
            self._housekeeping.run(self._topics, pause, self._clean_old_staging)

    @documented
    def close(self, *, give_up: bool = False) -> None:
        """Flush and sync everything and give the directory back; harmless when repeated.

        After DiskFull the store is open, with all that it has taken: make room and close it again,
        or `give_up` what cannot be written. Every shard is closed even if another one fails; the
        first error is raised at the end, also that of a shard that has failed before: what it took
        since may not be in the files. After an interrupt the store is open, except for shards that
        were closed before it: close it again.
        """
        if not self.check_lock():
            raise StoreFailed(self.root, LOST_LOCK)
        with self._topics.lock:
            if self._closed is not None:
                return
            errors = self._left.open_each()  # what only the journal has, a broker would not see
            self._closed = "the store is closed"
        try:
            if self._workers is not None:
                self._workers.stop()
            errors += self._close_files(give_up=give_up)
        except BaseException:  # a full disk, or an interrupt
            self._closed, self._kept_open = None, True
            if self._workers is not None:
                self._workers.stop()  # the interrupt may have come before they had ended
                self._workers.start()
            raise
        self._directory.release()
        _open_stores.discard(self)
        if errors:
            raise errors[0]

    def _close_files(self, *, give_up: bool) -> list[TubeStoreError]:
        """Close everything that has files, and note it; returns what was raised.

        DiskFull, and every shard is open.
        """
        errors = self._close_shards(give_up=give_up)
        # Also those that an earlier call has closed, which an interrupt ended.
        lacking = any(shard.failed or shard.has_unwritten() for shard in self.writing_shards())
        try:
            self._directory.sync_earlier()
        except TubeStoreError as error:
            errors.append(error)
        if self.journal is not None:
            try:
                self.journal.close(keep=bool(errors) or lacking)
            except OSError as error:
                errors.append(StoreFailed(self.root, f"journal: {error}"))
        if self.mode == "w" and not errors and not lacking:
            self._directory.note_closed()
        return errors

    def _close_shards(self, *, give_up: bool) -> list[TubeStoreError]:
        """Close all shards; returns what they raised. DiskFull, and every shard is open."""
        opened = [shard for topic in self._topics for shard in topic.shards_at_close()]
        shards = [s for s in opened if isinstance(s, MessageStore) and not s.is_over()]
        held: set[MessageStore] = set()
        errors: list[TubeStoreError] = []
        try:
            for shard in shards:  # all of them before one is closed: that is not taken back
                try:
                    shard.hold()
                    held.add(shard)
                except TubeStoreError as error:
                    errors.append(error)
            full = next((error for error in errors if isinstance(error, DiskFull)), None)
            if full is not None and not give_up:
                raise full
            for shard in shards:
                if shard in held:
                    shard.close_held()
                else:
                    shard.give_up()
        except BaseException:
            for shard in held:
                if not shard.is_over():
                    shard.let_go()
            raise
        for reader in opened:
            reader.close()
        return [error for error in errors if not isinstance(error, DiskFull)]

    def abandon(self, reason: str) -> None:
        """Stop without writing anything: what a forked child does with its parent's stores."""
        self._closed = reason
        self._topics.abandon()
        if self.journal is not None:
            self.journal.abandon()
        for topic in self._topics:
            topic.abandon(StoreClosed(f"{self.root}: {reason}"))

    def __enter__(self) -> MessageStoreManager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except TubeStoreError as failure:
            if error is None:
                raise
            log.error("%s", failure)  # what is on its way out came first

    def __reduce__(self) -> Any:
        raise TypeError("an open store cannot be pickled; open it in the other process (mode='r')")

    def __del__(self) -> None:
        if getattr(self, "_closed", "never opened") is None:
            text = f"store {self.root} was not closed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            with contextlib.suppress(Exception):
                self.close(give_up=True)

    def __repr__(self) -> str:
        state = f", {self._closed}" if self._closed else ""
        return f"MessageStoreManager({self.root!r}, mode={self.mode!r}{state})"


def _after_fork() -> None:
    for store in list(_open_stores):
        store.abandon("opened before this process was forked; open it again here")


os.register_at_fork(after_in_child=_after_fork)
