"""The shards of all topics together: flushed, synced, refreshed, relieved and closed.

Lock order: the topics' lock before any of a shard's (decisions.md D11).
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from tubestore.core.layout import Buffer
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.errors import (
    CorruptRecord,
    DiskFull,
    InvalidMessage,
    StoreClosed,
    StoreFailed,
    TubeStoreError,
    UnknownTopic,
)
from tubestore.groups.admin import set_back
from tubestore.groups.assignment import Partition, Strategy, named_strategy
from tubestore.groups.consumer import Consumer, Settings
from tubestore.groups.directory import GroupDirectory, list_groups
from tubestore.groups.member import GroupMember, finish_outputs
from tubestore.groups.membership import TopicShape
from tubestore.groups.outputs import decode_output
from tubestore.groups.waiting import ReaderWaiter, Seen
from tubestore.reading.view import ShardView
from tubestore.record import ingest
from tubestore.record.names import (
    INDEX_DIRECTORY,
    LOCK_FILE,
    check_topic_name,
    parse_store_key,
    store_key,
)
from tubestore.shard.message_store import MessageStore, letting_go
from tubestore.shard.statistics import total
from tubestore.store.append import AddressBook, PreparedAppend, append_missing
from tubestore.store.context import Context
from tubestore.store.opening import ShardOpener
from tubestore.store.topics import Topics
from tubestore.values import Seconds, checked_seconds, checked_texts, checked_whole

#: Shards that are flushed when the bound on all buffers is reached.
RELIEVED_AT_ONCE = 16


class Shards:
    """The shards of a store that have been used; `opener` has the journal that they share."""

    def __init__(
        self, context: Context, opener: ShardOpener, topics: Topics, book: AddressBook
    ) -> None:
        self._context, self._opener, self._topics = context, opener, topics
        self._book = book
        #: Waits for the writer's process; idle until a consumer waits.
        own = join(context.root, OWN_DIRECTORY)
        self._waiter = ReaderWaiter(context.vfs, own, lambda: Seen(*opener.journal_now()))
        self._groups: dict[str, GroupDirectory] = {}

    def written(self) -> Iterator[MessageStore]:
        """Go through the shards that have been opened for writing."""
        for topic in self._topics.all_shards():
            yield from topic.written_shards()

    def flush(self) -> None:
        """Write all buffers to the files (page cache)."""
        self._each(MessageStore.flush)

    def sync(self) -> None:
        """Bring everything that was taken to stable storage, by earlier processes too."""
        self._each(MessageStore.sync)
        self._context.directory.sync_earlier()

    def _each(self, step: Callable[[MessageStore], object]) -> None:
        """Take a step with every shard; that of a topic deleted meanwhile has nothing to do."""
        self._context.check_open()
        for shard in list(self.written()):
            try:
                step(shard)
            except StoreClosed:
                self._context.check_open()
                if shard in self.written():
                    raise

    def relieve(self) -> None:
        """Write the oldest buffers and the largest: other shards wait for their memory (D8)."""
        if self._opener.journal is not None:
            self._opener.journal.relieve()
        dirty = [shard for shard in self.written() if shard.dirty_bytes]
        some = RELIEVED_AT_ONCE // 2
        oldest = heapq.nsmallest(some, dirty, key=attrgetter("dirty_since"))
        largest = heapq.nlargest(some, dirty, key=attrgetter("dirty_bytes"))
        for shard in dict.fromkeys((*oldest, *largest)):
            with contextlib.suppress(TubeStoreError):  # it refuses appends itself, with the reason
                shard.flush()

    def refresh(self) -> None:
        """See what a writer in another process has done since; for mode "r"."""
        self._context.check_open()
        if self._context.mode == "r":
            with self._topics.lock, self._opener.showing:
                horizon = self._opener.read_again()
                for topic in self._topics.all_shards():
                    topic.show(horizon)
                self._topics.refresh()

    def maintain_journal(self) -> None:
        """Write what has been in the journal for a while to its shards."""
        self._opener.maintain_left()
        if self._opener.journal is not None:
            self._opener.journal.maintain()

    def stats(self) -> dict[str, Any]:
        """Return what the store has done since it was opened; see `stats` of the store."""
        self._context.check_open()
        topics: dict[str, Any] = {}
        for topic in self._topics.all_shards():
            shards = {shard.store_id: shard.stats() for shard in topic.written_shards()}
            if shards:
                topics[topic.name] = {**total(shards.values()), "shards": shards}
        journals = [j for j in (self._opener.journal, self._opener.ring) if j is not None]
        pool = self._context.pool
        return {
            **total(topics.values()),
            "memory_bytes": pool.used,
            "memory_bound_bytes": pool.bound_bytes,
            "journal_bytes": sum(journal.size for journal in journals),
            "journal_syncs": sum(journal.syncs for journal in journals),
            "problems": len(self._context.problems),
            "topics": topics,
        }

    # -- for consumers -----------------------------------------------------------------------

    @property
    def root(self) -> str:
        """The directory of the store."""
        return self._context.root

    def has_other_writer(self) -> bool:
        """Return whether another process may append: it holds the lock, or that cannot be seen."""
        lock = join(self._context.root, OWN_DIRECTORY, LOCK_FILE)
        return self._context.mode == "r" and self._context.vfs.lock_owners(lock) != []

    def check_open(self) -> None:
        """Raise StoreClosed unless the store is open."""
        self._context.check_open()

    def shapes(self) -> dict[str, TopicShape]:
        """Return the partitions of every topic as they are now."""
        if self._context.mode == "r":
            self._topics.refresh()
        return {
            topic.name: TopicShape(topic.options.partitions, topic.options.stores)
            for topic in self._topics.all_shards()
        }

    def topic_id(self, topic: str) -> int:
        """Return the number that distinguishes a topic from deleted ones of its name; else 0."""
        return self._topics.get(topic).options.id if topic in self._topics else 0

    def view(self, topic: str, store_id: int) -> ShardView | None:
        """Return a shard as it is now; None if it has no message yet, or the topic is gone."""
        try:
            (shards,) = self._topics.shards_of_all([topic])
            shards.refresh()
            return shards.shard(store_id).view() if shards.exists(store_id) else None
        except UnknownTopic:
            return None
        except StoreClosed:
            self._context.check_open()
            return None  # deleted meanwhile

    def call_beyond(self, topic: str, store_id: int, offset: int, call: Callable[[], None]) -> bool:
        """Call when a shard may have a message at or behind an offset; False if it has one now."""
        context = self._context
        try:
            (shards,) = self._topics.shards_of_all([topic])
            shard = shards.shard(store_id)
            if isinstance(shard, MessageStore):
                return shard.call_beyond(offset, call)
            files = join(context.root, store_key(topic, store_id))
            # Without a directory, as before the first flush, the root gets it.
            places = join(files, INDEX_DIRECTORY), files
            directory = next(filter(context.vfs.exists, places), context.root)
            self._waiter.call_once(store_key(topic, store_id), directory, shard, call)
            context.check_open()  # else the waiter's last calls may have been made
            shards.refresh()
            return shard.view().index_end <= offset
        except (UnknownTopic, StoreClosed):
            context.check_open()
            return True  # the topic is gone: nothing comes

    def prepare(self, data: Any) -> PreparedAppend | None:
        """Check messages to be appended, with a column `topic`; None if there are none."""
        self._context.check_open(writing=True)
        table = ingest.as_table(data, with_topic=True)
        return PreparedAppend(self._opener, self._book, table) if table.num_rows else None

    def finish_output(self, output: Buffer) -> None:
        """Append, durably, what is not in its topics of output that was recorded."""
        found = decode_output(output)
        append_missing(self._opener, self._book, found, self._known_id, self.view)
        for key in found.ends:
            topic, store_id = parse_store_key(key) or ("", 0)
            if self._known_id(topic) == found.topics[topic]:
                (shards,) = self._topics.shards_of_all([topic])
                shards.writable(store_id).sync()

    def _known_id(self, topic: str) -> int | None:
        return self._topics.get(topic).options.id if topic in self._topics else None

    def recover_groups(self) -> None:
        """Go on with groups where a killed process or a power cut left them, before any append.

        Output that was recorded is appended, and positions beyond the end go back to it. What
        fails is a problem of the store; the group's next commit with output tries again.
        """
        context = self._context
        for group in list_groups(context.vfs, context.root):
            files = self.directory_of(group)
            try:
                if files.may_have_output:
                    with files.locked():
                        files.log.refresh(locked=True)
                        finish_outputs(files, self.finish_output)
                if not context.directory.was_closed:
                    for each in set_back(files, self, context.clock, self._is_synced):
                        context.note_problem(CorruptRecord(
                            files.path, 0,
                            f"group {group!r} goes on at {each.after} in partition"
                            f" {each.partition} of {each.topic!r}: it was at {each.before}, and"
                            " a kill or a power cut took the messages before that",
                        ))  # fmt: skip
            except (TubeStoreError, OSError) as error:
                context.note_problem(StoreFailed(files.path, f"group {group!r}: {error}"))

    def _is_synced(self, topic: str, store_id: int, position: int) -> bool:
        """Return whether a shard was synced up to a position, as the register has it."""
        bounds = self._context.register.bounds(store_key(topic, store_id))
        return bounds is not None and position <= bounds.index_end

    def consumer(
        self,
        group: str | None,
        topics: str | Iterable[str] | Mapping[str, Iterable[int]],
        settings: Settings,
        *,
        member: str | None,
        strategy: str | Mapping[str, Mapping[str, Iterable[int]]] | Strategy,
        session_seconds: Seconds,
        heartbeats: bool,
    ) -> Consumer:
        """Make a consumer; see `consumer` of the store."""
        by_hand: list[Partition] | None = None
        if isinstance(topics, Mapping):
            if group is not None:
                raise InvalidMessage("partitions are chosen by hand without a group: group=None")
            numbers = {t: [checked_whole(f"topics[{t!r}]", n) for n in topics[t]] for t in topics}
            by_hand = sorted({(topic, n) for topic, ids in numbers.items() for n in ids})
        names = [topics] if isinstance(topics, str) else checked_texts("topics", topics)
        for name in names:
            check_topic_name(name)
        if not names:
            raise InvalidMessage("topics: at least one is needed")
        context, joining = self._context, None
        if group is not None:
            session_ms = int(checked_seconds("session_timeout", session_seconds, 0.001) * 1000)
            if member is not None and (not isinstance(member, str) or not member):
                raise InvalidMessage(f"member {member!r}: a name is needed")
            joining = GroupMember(
                self.directory_of(group),
                name=member,
                topics=names,
                strategy=named_strategy(strategy),
                session_ms=session_ms,
                clock=context.clock,
                shapes=self.shapes,
                topic_id=self.topic_id,
            )
        return Consumer(
            self,
            settings,
            context.clock,
            member=joining,
            topics=names,
            by_hand=by_hand,
            heartbeats=heartbeats,
        )

    def directory_of(self, group: str) -> GroupDirectory:
        """Return the files of a group; all members in this process share them."""
        found = self._groups.get(group)
        if found is None:
            context = self._context
            made = GroupDirectory(context.vfs, context.root, group, context.clock)
            found = self._groups.setdefault(group, made)
        return found

    # -- the end -----------------------------------------------------------------------------

    def open_left(self) -> list[TubeStoreError]:
        """Open the shards that only the journal has messages of; returns why some are not.

        A broker that opens the store would not see these messages.
        """
        return self._opener.left.open_each()

    def close(self, *, give_up: bool) -> list[TubeStoreError]:
        """Close everything that has files, and note it; returns what was raised.

        DiskFull, and every shard is open.
        """
        directory, journal, ring = self._context.directory, self._opener.journal, self._opener.ring
        for group in self._groups.values():
            group.close()
        errors = self._close_each(give_up=give_up)
        self._waiter.close()  # after the shards: what waits is woken, and finds them closed
        # Also those that an earlier call has closed, which an interrupt ended.
        lacking = any(shard.failed or shard.has_unwritten() for shard in self.written())
        lacking = lacking or bool(self._opener.left)
        try:
            directory.sync_earlier()
        except TubeStoreError as error:
            errors.append(error)
        if journal is not None:
            try:
                journal.close(keep=bool(errors) or lacking)
            except OSError as error:
                errors.append(StoreFailed(self._context.root, f"journal: {error}"))
        self._context.register.write()
        if ring is not None:
            try:
                ring.close(keep=bool(errors) or lacking)
            except OSError as error:
                errors.append(StoreFailed(self._context.root, f"journal: {error}"))
        if self._context.mode == "w" and not errors and not lacking:
            directory.note_closed()
        return errors

    def _close_each(self, *, give_up: bool) -> list[TubeStoreError]:
        """Close all shards; returns what they raised. DiskFull, and every shard is open."""
        opened = [shard for topic in self._topics.all_shards() for shard in topic.shards_at_close()]
        shards = [s for s in opened if isinstance(s, MessageStore) and not s.is_over()]
        failed: dict[MessageStore, TubeStoreError] = {}
        with letting_go(shards):
            for shard in shards:  # all of them before one is closed: that is not taken back
                try:
                    shard.hold()
                except TubeStoreError as error:
                    failed[shard] = error
            full = next((error for error in failed.values() if isinstance(error, DiskFull)), None)
            if full is not None and not give_up:
                raise full
            for shard in shards:
                if shard in failed:
                    shard.give_up()
                else:
                    shard.close_held()
        for reader in opened:
            reader.close()
        return [error for error in failed.values() if not isinstance(error, DiskFull)]

    def refuse(self, reason: StoreClosed) -> None:
        """Refuse everything from now on; no call writes any more when this returns."""
        with self._topics.lock:  # a job or a change of settings that is under way comes first
            self._topics.release()
            if self._opener.ring is not None:
                self._opener.ring.stop(str(reason))
            for topic in self._topics.all_shards():
                topic.refuse(reason)
        if self._opener.journal is not None:
            with self._opener.journal.lock:  # the last frame
                pass

    def abandon(self, reason: StoreClosed) -> None:
        """Refuse everything from now on and write nothing more: in a forked child."""
        self._topics.abandon()
        if self._opener.journal is not None:
            self._opener.journal.abandon()
        if self._opener.ring is not None:
            self._opener.ring.abandon()
        for topic in self._topics.all_shards():
            topic.abandon(reason)
