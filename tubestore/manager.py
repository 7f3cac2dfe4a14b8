"""All topics of a store as one thing: what `tubestore.open` returns.

Lock order: the topics' lock before any of a shard's (DESIGN.md D11).

Next to read: `tubestore/__init__.py`, then `check.py` and `cli/`.
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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from operator import attrgetter
from types import TracebackType
from typing import Any, Literal

import numpy as np

from tubestore import ingest, job_recovery
from tubestore.bulk_loads import BulkLoads
from tubestore.clock import Clock, SystemClock
from tubestore.commit_records import Horizon
from tubestore.errors import (
    StoreClosed,
    StoreFailed,
    TubeStoreError,
)
from tubestore.file_store import MsgFileStore
from tubestore.filenames import DATA_SUFFIX, join, parse_store_key, store_key
from tubestore.housekeeping import Housekeeping
from tubestore.journal_overlay import JournalOverlay
from tubestore.journalled import JournalledAppends
from tubestore.left_messages import LeftMessages
from tubestore.many_topics import AddressBook
from tubestore.memory_pool import MemoryPool
from tubestore.message_store import MessageStore
from tubestore.messages import BatchAck
from tubestore.options import Durability, StoreOptions, TopicOptions
from tubestore.root_journal import read_journal
from tubestore.shard_reader import ShardReader
from tubestore.statistics import total
from tubestore.store_directory import StoreDirectory
from tubestore.topic import Topic, append_table
from tubestore.topic_registry import TopicRegistry
from tubestore.topic_shards import Shard, TopicShards
from tubestore.vfs import OsVfs, Vfs
from tubestore.workers import Workers

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]

#: Shards that are flushed when the bound on all buffers is reached.
RELIEVED_AT_ONCE = 16
#: More than there are threads.
_ID_GAP = 1 << 12
_open_stores: weakref.WeakSet[MessageStoreManager] = weakref.WeakSet()


class MessageStoreManager(BulkLoads):
    """A store: made by `tubestore.open`, closed by `close` or at the end of a `with` block.

    One writer a directory, any number of readers. All methods are thread-safe.
    """

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
        self.root, self.mode = os.path.abspath(os.fspath(root)), mode
        self.options = options or StoreOptions()
        self.clock: Clock = clock or SystemClock()
        self.vfs: Vfs = vfs or OsVfs()
        self.problems: list[TubeStoreError] = []
        self._pool = MemoryPool(self.options.memory_bound_bytes, self._relieve_memory)
        self._id_lock = threading.Lock()
        #: Returns an id that no message of this store has.
        self.next_msg_id: Callable[[], int]
        # A million ids a millisecond: whoever opens the store later begins above them.
        self._count_ids_from(self.clock.now_ms() << 20)
        self._closed: str | None = "it was never open"  # until the end of this method
        self._directory = StoreDirectory(self.vfs, self.root, mode, self.clock)
        self.uuid = self._directory.uuid
        self._showing = threading.RLock()
        #: Topics that were refreshed on their own since the whole store was.
        self._horizons: dict[str, Horizon] = {}
        try:
            if mode == "w":
                job_recovery.recover(self.vfs, self.root)
            self._horizon = Horizon(self.vfs, self.root)
            self._topics = TopicRegistry(self._directory, self.options, self._make_topic)
            if mode == "w":
                self._topics.finish_deletions()
            self._address_book = AddressBook(self._topics)
        except BaseException:
            self._directory.release()
            raise
        self._housekeeping = Housekeeping(self.vfs, self.root, self.clock, self.options)
        self._workers: Workers | None = None
        if mode == "w" and background:
            self._workers = Workers(self.options.flush_workers, self)
        #: Takes batches over many shards; None if there is none, or an old one has to stay.
        self.journal: JournalledAppends | None = None
        #: What a killed process left in the journal.
        self._left = LeftMessages()
        #: What a reader sees of it.
        self._overlay = JournalOverlay(self.vfs, self.root)
        self._closed = None
        _open_stores.add(self)
        if mode == "w":
            try:
                self._take_over_journal()
            except BaseException:
                self.close()
                raise

    # -- topics ------------------------------------------------------------------------------

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

    # -- the journal -------------------------------------------------------------------------

    def _take_over_journal(self) -> None:
        """See to what a killed process left in the journal.

        While the machine runs, what it had written is there: the journal goes on, and each shard
        gets its part when it is opened. Otherwise files may be torn, and all shards are opened
        and synced before anything else is done. OSError if the journal cannot be read: nothing
        may be appended behind what nobody knows.
        """
        frames = read_journal(self.vfs, self.root)
        journal = JournalledAppends(
            self.vfs, self.root, self.options, self.clock, self.next_msg_id, self._pool
        )
        if frames is not None and frames.parts:
            self._left = LeftMessages(frames.parts, self._open_left)
            if frames.boot_id == self.vfs.boot_id() and self.options.journal_size_bytes:
                journal.go_on(frames, self._left)
                self.journal = journal
                return
            if not self._give_all_shards():
                return  # the journal stays
        journal.remove_left_over()
        if self.options.journal_size_bytes:
            self.journal = journal

    def _give_all_shards(self) -> bool:
        """Open and sync every shard that the journal has something of; False if one cannot be."""
        names, problems = list(self._left), self._left.open_each()
        for name in names:
            if name not in self._left and (shard := self._shard_of_key(name)) is not None:
                try:
                    shard.sync()
                except TubeStoreError as error:
                    problems.append(error)
        for problem in problems:
            log.error("the journal stays: %s", problem)
            self.note_problem(problem)
        return not problems

    def _open_left(self, name: str) -> MessageStore | None:
        try:
            return self._shard_of_key(name)
        except TubeStoreError as error:
            self.note_problem(error)
            raise
        except OSError as error:
            failed = StoreFailed(join(self.root, name), str(error))
            self.note_problem(failed)
            raise failed from error

    def _shard_of_key(self, name: str) -> MessageStore | None:
        """Return a shard by its directory's name; None if there is no such topic any more."""
        key = parse_store_key(name)
        if key is None or key[0] not in self._topics:
            return None
        topic = self._topics.get(key[0])
        return topic.writable(key[1]) if key[1] < topic.options.stores else None

    # -- shards ------------------------------------------------------------------------------

    def _open_shard(self, topic: str, store_id: int) -> Shard:
        self._check_open()
        directory = join(self.root, store_key(topic, store_id))
        if self.mode == "r":
            horizon = self._horizons.get(topic, self._horizon)
            return ShardReader(
                self.vfs, directory, topic, store_id, self.options, horizon, self._overlay
            )
        key = store_key(topic, store_id)
        shard = MessageStore.open(
            MsgFileStore(self.vfs, directory, store_id, self.options),
            topic=topic,
            options=self.options,
            clock=self.clock,
            pool=self._pool,
            background=self._workers,
            journalled=self._left.of(key),
        )
        if key in self._left:
            if self.journal is not None:
                self.journal.inherit(shard)
            # Not before: without them an opening after one that failed would give offsets twice.
            self._left.was_given(key)
        self.problems += shard.recovered.problems
        return shard

    def shard_exists(self, topic: str, store_id: int) -> bool:
        """Whether the shard has a directory, or messages in the journal."""
        key = store_key(topic, store_id)
        known = self._left if self.mode == "w" else self._overlay
        return self.vfs.exists(join(self.root, key)) or key in known

    def is_in_journal(self, topic: str, store_id: int) -> bool:
        """Whether a shard gets something of the journal when it is opened."""
        return store_key(topic, store_id) in self._left

    def data_segments(self, topic: str, store_id: int) -> int:
        """Return how many data segments the shard's directory lists; opens nothing."""
        directory = join(self.root, store_key(topic, store_id))
        return sum(name.endswith(DATA_SUFFIX) for name, _, _ in self.vfs.entries(directory))

    def writing_shards(self) -> Iterator[MessageStore]:
        """Go through the shards that have been opened for writing."""
        for topic in self._topics:
            for shard in topic.opened_shards():
                if isinstance(shard, MessageStore):
                    yield shard

    def note_problem(self, problem: TubeStoreError) -> None:
        """Remember a shard that failed where nobody was waiting for it."""
        if str(problem) not in map(str, self.problems):
            self.problems.append(problem)

    def refresh(self) -> None:
        """See what a writer in another process has done since; for mode "r", else nothing to do."""
        self._check_open()
        if self.mode == "r":
            with self._topics.lock, self._showing:
                self._horizon = Horizon(self.vfs, self.root)
                self._horizons = {}
                self._overlay.refresh()
                for topic in self._topics:
                    self._refresh_shards(topic, self._horizon)
                self._topics.refresh()

    def refresh_topic(self, topic: TopicShards) -> None:
        """Refresh the shards of one topic; the others stay as they were."""
        if self.mode == "r":
            with self._showing:
                horizon = self._horizons[topic.name] = Horizon(self.vfs, self.root)
                self._overlay.refresh()
                self._refresh_shards(topic, horizon)

    @staticmethod
    def _refresh_shards(topic: TopicShards, horizon: Horizon) -> None:
        for shard in topic.opened_shards():
            if isinstance(shard, ShardReader):
                shard.refresh(horizon)

    def showing(self) -> AbstractContextManager[Any]:
        """Hold this to take views of several shards: no job appears in between."""
        return self._showing

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

    def flush(self) -> None:
        """Write all buffers to the files (page cache)."""
        self._check_open()
        for shard in list(self.writing_shards()):
            shard.flush()

    def sync(self) -> None:
        """Bring everything that was taken to stable storage."""
        self._check_open()
        for shard in list(self.writing_shards()):
            shard.sync()
        if self.journal is not None:
            self.journal.sync()

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

    def maintain(self) -> None:
        """Do what is due by time; with `background=True` a thread calls this by itself."""
        self.maintain_journal()
        for shard in list(self.writing_shards()):
            shard.maintain()
        self.keep_house(lambda seconds: False)

    def maintain_journal(self) -> None:
        """Write what has been in the journal for a while to its shards."""
        if self.journal is not None:
            self.journal.maintain()

    def keep_house(self, pause: Callable[[float], bool]) -> None:
        """Make a pass of retention, over trashes and staged files too, if it is time for one."""
        if self._housekeeping.is_due():
            self._housekeeping.run(self._topics, pause, self._clean_old_staging)

    def close(self) -> None:
        """Flush and sync everything and give the directory back; harmless when repeated.

        Every shard is closed even if one fails; the first error is raised at the end, also that
        of a shard that has failed before: what it took since may not be in the files.
        """
        with self._topics.lock:
            if self._closed is not None:
                return
            errors = self._left.open_each()  # what only the journal has, a broker would not see
            self._closed = "the store is closed"
        if self._workers is not None:
            self._workers.stop()
        for topic in self._topics:
            for shard in topic.opened_shards():
                try:
                    shard.close()
                except TubeStoreError as error:
                    errors.append(error)
        if self.journal is not None:
            try:
                self.journal.close()
            except OSError as error:
                errors.append(StoreFailed(self.root, f"journal: {error}"))
        self._directory.release()
        _open_stores.discard(self)
        if errors:
            raise errors[0]

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
                self.close()

    def __repr__(self) -> str:
        state = f", {self._closed}" if self._closed else ""
        return f"MessageStoreManager({self.root!r}, mode={self.mode!r}{state})"


def _after_fork() -> None:
    for store in list(_open_stores):
        store.abandon("opened before this process was forked; open it again here")


os.register_at_fork(after_in_child=_after_fork)
