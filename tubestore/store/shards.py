"""The shards of an open store: opened when they are first used, with what the journal has of them.

Always true:
- what a killed process left in the journal is in a shard's files before anything else is
  appended to it, and in all files before the journal goes; what does not fit there is kept in
  quarantine with the whole journal;
- several shards that are looked at together show the same jobs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tubestore.core.memory_pool import MemoryPool
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.quarantine import Quarantine
from tubestore.errors import StoreFailed, TubeStoreError, documented
from tubestore.journal.journal_overlay import JournalOverlay
from tubestore.journal.journalled import JournalledAppends
from tubestore.journal.left_messages import LeftMessages
from tubestore.journal.root_journal import read_journal
from tubestore.record.names import DATA_SUFFIX, JOURNAL_FILE, parse_store_key, store_key
from tubestore.segments.file_store import MsgFileStore
from tubestore.shard.message_store import MessageStore
from tubestore.shard.reader import ShardReader
from tubestore.shard.workers import Workers
from tubestore.staging.commit_records import Horizon
from tubestore.store.bulk_loads import BulkLoads
from tubestore.store.topic_shards import Shard, TopicShards

log = logging.getLogger(__name__)


class OpenShards(BulkLoads):
    """What a store does with its shards; `MessageStoreManager` is made of it."""

    problems: list[TubeStoreError]
    #: Returns an id that no message of this store has.
    next_msg_id: Callable[[], int]
    _pool: MemoryPool
    _workers: Workers | None
    _showing: threading.RLock
    #: The last job that readers see: of the store, and of topics refreshed on their own since.
    _horizon: Horizon
    _horizons: dict[str, Horizon]
    #: What a killed process left in the journal; for a reader, what it sees of the journal.
    _left: LeftMessages
    _overlay: JournalOverlay
    #: Whether what an earlier process left in the journal is in quarantine, or goes there whole.
    _journal_is_kept = False
    _keeping: threading.Lock

    # -- the journal -------------------------------------------------------------------------

    def _take_over_journal(self) -> None:
        """See to what a killed process left in the journal.

        While the machine runs, what it had written is there: the journal goes on, and each shard
        gets its part when it is opened. Otherwise files may be torn, and all shards are opened
        and synced before anything else is done. OSError if the journal cannot be read: nothing
        may be appended behind what nobody knows.

        A journal with damage is given to all shards at once, too, and then kept in quarantine:
        nothing is written behind it.
        """
        frames = read_journal(self.vfs, self.root)
        journal = JournalledAppends(
            self.vfs, self.root, self.options, self.clock, self.next_msg_id, self._pool
        )
        damages = frames.damages if frames is not None else []
        self._journal_is_kept = bool(damages)
        for damage in damages:
            log.error("%s", damage)
            self.note_problem(damage)
        if frames is not None and frames.parts:
            self._left = LeftMessages(frames.parts, self._open_left)
            same_boot = frames.boot_id == self.vfs.boot_id()
            if same_boot and not damages and self.options.journal_size_bytes:
                journal.go_on(frames, self._left)
                self.journal = journal
                return
            if not self._give_all_shards():
                return  # the journal stays
        if damages and not self._set_journal_aside():
            return
        journal.remove_left_over()
        if self.options.journal_size_bytes:
            self.journal = journal

    def _set_journal_aside(self) -> bool:
        """Move a damaged journal into quarantine; False if that cannot be done: it stays."""
        path = join(self.root, OWN_DIRECTORY, JOURNAL_FILE)
        try:
            Quarantine(self.vfs, self.root, self.clock.now_ms()).move(path)
        except OSError as error:
            failed = StoreFailed(path, f"it cannot be moved into quarantine: {error}")
            log.error("%s", failed)
            self.note_problem(failed)
            return False
        return True

    def _keep_journal(self) -> None:
        """Copy the journal into quarantine, once; OSError if that cannot be done.

        A shard's files do not take all that the journal holds of it, and it is emptied later.
        """
        with self._keeping:
            if not self._journal_is_kept:
                path = join(self.root, OWN_DIRECTORY, JOURNAL_FILE)
                Quarantine(self.vfs, self.root, self.clock.now_ms()).copy(path)
                self._journal_is_kept = True

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

    @documented
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
            if not shard.has_all_journalled:
                try:
                    self._keep_journal()
                except OSError:
                    shard.files.close()
                    raise
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

    @documented
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

    @documented
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
