"""A consumer: what `store.consumer(…)` returns.

It reads its partitions shard by shard (`feed.py`) and goes to those shards only that may have
something new: each shard that was read to its end calls back when there is more. As a member of a
group (`member.py`) it takes part in a turn whenever it polls.

Guards: `_lock` lets one call of the consumer run at a time; `_waiter` has a lock of its own.

An interrupt (an exception out of a signal's handler) may end each call: what a poll has read by
then is read again, and the next turn in the group takes what this one has not.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from tubestore.clock import Clock, Time, checked_time_ms
from tubestore.core.doors import logger
from tubestore.core.layout import Buffer
from tubestore.errors import (
    InvalidMessage,
    MemberFenced,
    OffsetOutOfRange,
    OutputIncomplete,
    StoreClosed,
    TubeStoreError,
    UnknownTopic,
    documented,
)
from tubestore.groups.assigned import AssignedPartitions, Shard, shard_of
from tubestore.groups.assignment import Partition
from tubestore.groups.feed import ShardFeed, feeds_of
from tubestore.groups.member import GroupMember
from tubestore.groups.membership import TopicShape
from tubestore.groups.outputs import Prepared, in_files, put_aside_row
from tubestore.groups.waiter import FIND_SECONDS, Waiter
from tubestore.messages import Ack, BatchAck, Message, Polled, Removed
from tubestore.options import ENTRY_SIZE, Durability, TopicOptions
from tubestore.reading import positions as places
from tubestore.reading.sources import Filter
from tubestore.reading.view import ShardView
from tubestore.record.columns import Columns
from tubestore.values import LONG_MAX, Seconds, Size, checked_seconds, checked_size, checked_whole

log = logger(__name__)

#: A waiting consumer looks this often whether its group has changed.
GROUP_SECONDS = 0.1
DEFAULT_LIMIT = 1000
DEFAULT_BYTES = 8 << 20
#: Where a partition without a position begins; a time: the first message received from then on.
Start = Literal["earliest", "latest"]
#: What happens where retention has passed a position.
OnRemoved = Literal["earliest", "latest", "raise"]
PartitionsCall = Callable[[list[Partition]], object]


class ConsumedStore(Protocol):
    """What a consumer asks of its store."""

    @property
    def root(self) -> str:
        """The directory of the store."""

    def has_other_writer(self) -> bool:
        """Return whether another process may append; else a later view has all that there is."""

    def check_open(self) -> None:
        """Raise StoreClosed unless the store is open."""

    def shapes(self) -> Mapping[str, TopicShape]:
        """Return the partitions of every topic as they are now."""

    def topic_id(self, topic: str) -> int:
        """Return the number that distinguishes a topic from deleted ones of its name."""

    def view(self, topic: str, store_id: int) -> ShardView | None:
        """Return a shard as it is now; None if it has no message yet."""

    def call_beyond(self, topic: str, store_id: int, offset: int, call: Callable[[], None]) -> bool:
        """Call when a shard may have a message behind an offset; False if it has one now."""

    def prepare(self, data: Any) -> Prepared | None:
        """Check messages to be appended, with a column `topic`; None if there are none.

        ReadOnlyStore in mode "r".
        """

    def finish_output(self, output: Buffer) -> None:
        """Append, durably, what is not in its topics of output that was recorded."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a consumer reads and commits."""

    columns: Columns
    wanted: Filter
    start: Start | int
    on_removed: OnRemoved
    auto_commit: bool
    auto_commit_seconds: float
    durability: Durability
    max_poll_seconds: float
    on_assigned: PartitionsCall | None
    on_revoked: PartitionsCall | None
    on_lost: PartitionsCall | None


def checked_positions(positions: Any) -> Mapping[Partition, int]:
    """Return positions as users give them; InvalidMessage names what is not one."""
    if not isinstance(positions, Mapping):
        raise InvalidMessage("positions: expected {(topic, partition): offset}")
    for partition, position in positions.items():
        if not isinstance(partition, tuple) or len(partition) != 2:
            raise InvalidMessage(f"positions: {partition!r} is no (topic, partition)")
        checked_whole(f"positions[{partition!r}]", position)
    return positions


def check_within(source: ConsumedStore, positions: Mapping[Partition, int]) -> None:
    """Raise OffsetOutOfRange for a position beyond the end: the group would pass new messages."""
    for (topic, store_id), numbers in feeds_of(positions).items():
        view = source.view(topic, store_id)
        first, end = (0, 0) if view is None else (view.index_start, view.index_end)
        for number in numbers:
            if positions[topic, number] > end:
                raise OffsetOutOfRange(positions[topic, number], first, end)


class Consumer:
    """Reads partitions that it shares with the other members of its group; a context manager.

    Thread-safe: one call at a time. With `auto_commit` what a poll returned counts as processed at
    the next poll, and is committed now and then, when partitions move, and at `close`.

    >>> import tempfile, tubestore
    >>> with tempfile.TemporaryDirectory() as root, tubestore.open(root) as store:
    ...     ack = store.create_topic("logs").append(b"hello")
    ...     with store.consumer("mailers", "logs") as consumer:
    ...         [message.body for message in consumer.poll(timeout=1)]
    [b'hello']
    """

    def __init__(
        self,
        source: ConsumedStore,
        settings: Settings,
        clock: Clock,
        *,
        member: GroupMember | None,
        topics: Sequence[str],
        by_hand: Sequence[Partition] | None,
        heartbeats: bool,
    ) -> None:
        self._source, self._settings, self._clock = source, settings, clock
        self._member, self._topics = member, tuple(topics)
        self._by_hand = by_hand
        self._lock = threading.RLock()
        self._waiter = Waiter(source.call_beyond)
        self._assigned = AssignedPartitions(settings.wanted)
        #: Shards that may have something new, in the order of their turns.
        self._ready: dict[Shard, None] = {}
        #: Shards without any message, and when they are looked for again.
        self._absent: set[Shard] = set()
        #: Of the partitions in the last answer: where it began, and where they go on behind it.
        self._begun: dict[Partition, int] = {}
        self._handed: dict[Partition, int] = {}
        #: Topic, and by partition the beginning, of what is being read, and not in `_begun` yet.
        self._reading: tuple[str, dict[int, int]] = "", {}
        #: What is left of an answer that is gone through message by message.
        self._batch: dict[Partition, int] = {}
        #: Positions that the caller has processed and that are not committed.
        self._processed: dict[Partition, int] = {}
        self._removed: list[Removed] = []
        self._committed_at = self._polled_at = self._seen_at = clock.monotonic()
        self._closed = self._evicted = False
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if member is not None:
            member.join()
            if heartbeats:
                self._thread = threading.Thread(
                    target=self._beat, name="tubestore-heartbeat", daemon=True
                )
                self._thread.start()
        else:
            self._take(self._wanted_without_group(), {})

    @property
    def root(self) -> str:
        """The directory of the store."""
        return self._source.root

    @property
    def group(self) -> str | None:
        """The name of the group; None for a follower without one."""
        return self._member.files.group if self._member is not None else None

    @property
    def member(self) -> str | None:
        """The id of this member of the group; None without a group."""
        return self._member.id if self._member is not None else None

    @property
    def assignment(self) -> list[Partition]:
        """The partitions that this consumer has: (topic, partition id), sorted."""
        with self._lock:
            return self._assigned.partitions()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self.assignment)} partitions"
        return f"Consumer(group={self.group!r}, topics={list(self._topics)}, {state})"

    # -- messages ----------------------------------------------------------------------------

    @documented
    def poll(
        self,
        limit: int = DEFAULT_LIMIT,
        *,
        max_bytes: Size = DEFAULT_BYTES,
        timeout: Seconds = 0.0,
    ) -> Polled:
        """Return up to `limit` messages; waits up to `timeout` for the first one.

        `timeout`: seconds, a timedelta, or a text such as "500ms". `max_bytes` (a number, or a text
        such as "1MB") counts whole records; the first message comes even if it is larger. Takes
        part in the group: partitions come and go in here, and the callbacks are called. What the
        poll before returned counts as processed. Empty when the time is over or after `interrupt`.
        """
        checked_whole("limit", limit, least=1, most=LONG_MAX)
        room = checked_size("max_bytes", max_bytes, least=1)
        deadline = time.monotonic() + checked_seconds("timeout", timeout)
        with self._lock:
            self._note_processed()
        try:
            while True:
                with self._lock:
                    self._check_open()
                    self._take_turn()
                    self._commit_if_due()
                    polled = self._read(limit, room)
                left = deadline - time.monotonic()
                if len(polled) or polled.removed or left <= 0 or self._wait(left):
                    return polled
        except BaseException:
            with self._lock:
                self._take_back()
            raise

    def _note_processed(self) -> None:
        """Count the last answer as processed."""
        self._processed.update(self._handed)
        self._handed.clear()
        self._begun = {p: self._begun[p] for p in self._batch if p in self._begun}

    def _take_back(self) -> None:
        """Read again what no caller has got."""
        topic, starts = self._reading
        for number, position in starts.items():
            self._begun.setdefault((topic, number), position)
        for partition, position in self._begun.items():
            self._note_ready(self._assigned.move(partition, position))
        self._reading = "", {}
        self._begun.clear()
        self._handed.clear()
        # A shard that was about to be read is not announced again.
        self._ready.update(dict.fromkeys(map(shard_of, self.assignment)))

    def _leave_batch(self) -> None:
        """Read again what is left of an answer that the caller stopped to go through."""
        for partition in list(self._batch):
            position = self._begun.pop(partition, None)
            if position is not None:
                self._note_ready(self._assigned.move(partition, position))
        self._batch.clear()

    def _read(self, limit: int, max_bytes: int) -> Polled:
        """Read shards in turn until there is enough or nothing more."""
        columns = self._settings.columns
        batches: list[pa.RecordBatch] = []
        self._ready.update(dict.fromkeys(self._waiter.take()))
        while self._ready and limit > 0 and max_bytes > 0:
            key = next(iter(self._ready))
            del self._ready[key]
            feed = self._assigned.feed(key)
            if feed is None:
                continue
            view = self._source.view(*key)
            if view is None:
                self._absent.add(key)
                continue
            if not self._skip_removed(feed, view, raising=not batches):
                break  # the next poll raises it: this one has something to return
            starts: dict[int, int] = {}
            self._reading = key[0], starts
            taken = feed.read(view, limit, max_bytes, starts)
            for number, position in taken.positions.items():
                partition = key[0], number
                self._begun.setdefault(partition, starts[number])
                self._handed[partition] = position
            self._reading = "", {}
            batches += view.batches_of(taken.rows, columns)
            limit -= taken.messages
            max_bytes -= taken.data_bytes
            if taken.more or not self._waiter.ask(key, view.index_end):
                self._ready[key] = None
        polled = Polled(batches, columns.schema, self._removed)
        self._removed = []
        return polled

    def _skip_removed(self, feed: ShardFeed, view: ShardView, *, raising: bool) -> bool:
        """Pass what retention has removed; False if that is an error to be raised later."""
        policy = self._settings.on_removed
        removed = feed.skip_removed(view.index_start)
        for number, position in removed.items():
            if policy == "raise":
                feed.add(number, position)
                self._ready[feed.topic, feed.store_id] = None
                if not raising:
                    return False
                raise OffsetOutOfRange(position, view.index_start, view.index_end)
            if policy == "latest":
                feed.add(number, view.index_end)
            gone = Removed(feed.topic, number, position, feed.position(number))
            log.warning("%s: %s", self.root, gone)
            self._removed.append(gone)
        return True

    def _wait(self, seconds: float) -> bool:
        """Wait for something to do; True after `interrupt`."""
        now = self._clock.monotonic()
        if self._absent and now - self._seen_at >= GROUP_SECONDS:
            with self._lock:
                self._seen_at = now
                self._ready.update(dict.fromkeys(self._absent))
                self._absent.clear()
                return False
        if self._absent or self._member is not None or self._by_hand is None:
            seconds = min(seconds, GROUP_SECONDS)
        return self._waiter.wait(seconds)

    def interrupt(self) -> None:
        """Let a poll that waits return at once; from any thread."""
        self._waiter.interrupt()

    def messages(self, *, idle_timeout: Seconds | None = None) -> Iterator[Message]:
        """Go through the messages one by one, and wait for more.

        A message counts as processed when the next one is asked for. Ends after
        `idle_timeout` without one (seconds, a timedelta, or "1s"), or after `interrupt`. After a
        `break` the message that was the last comes again, and then what follows it.
        """
        timeout = 3600.0 if idle_timeout is None else checked_seconds("idle_timeout", idle_timeout)
        while True:
            try:
                polled = self._poll_batch(timeout)
                if not len(polled) and not polled.removed:
                    if idle_timeout is not None or self._closed:
                        return
                    continue
                for message in polled:
                    yield message
                    with self._lock:
                        key = message.topic, message.partition
                        if key in self._batch:  # else it was sought, or is another member's by now
                            self._processed[key] = self._begun[key] = message.offset + ENTRY_SIZE
                with self._lock:
                    self._processed.update(self._batch)
                    self._batch.clear()
                    self._begun.clear()
            finally:
                with self._lock:
                    self._leave_batch()

    def _poll_batch(self, timeout: float) -> Polled:
        """Poll what is gone through message by message."""
        try:
            polled = self.poll(timeout=timeout)
            with self._lock:
                self._batch, self._handed = self._handed, {}
            return polled
        except BaseException:
            with self._lock:
                self._take_back()
            raise

    __iter__ = messages

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Go through the messages one by one, without keeping the event loop from its work."""
        import asyncio  # here: it takes longer to import than all of this package

        rows = self.messages(idle_timeout=GROUP_SECONDS)
        while not self._closed:
            message = await asyncio.to_thread(next, rows, None)
            if message is not None:
                yield message
            else:
                rows = self.messages(idle_timeout=GROUP_SECONDS)

    # -- partitions --------------------------------------------------------------------------

    def _wanted_without_group(self) -> list[Partition]:
        shapes = self._source.shapes()
        if self._by_hand is not None:
            for topic, number in self._by_hand:
                if topic not in shapes:
                    raise UnknownTopic(topic)
                if shapes[topic].places(np.array([number]))[0] < 0:
                    shape = TopicOptions(shapes[topic].partitions, shapes[topic].stores)
                    text = f"partition {number}: topic {topic!r} has {shape.partition_names()}"
                    raise InvalidMessage(text)
            return list(self._by_hand)
        return [
            (topic, number)
            for topic in self._topics
            if topic in shapes
            for number in shapes[topic].ids().tolist()
        ]

    def _take_turn(self) -> None:
        """Take part in the group; of a follower: find new partitions."""
        self._polled_at = self._clock.monotonic()
        if self._member is None:
            self._find_new()
            return
        try:
            self._evicted = False
            turn = self._member.turn(self._assigned.partitions)
            if turn.lost:
                self._lose(self.assignment)
                turn = self._member.turn()
            if turn.leaving:
                self._give_up(turn.leaving)
            if turn.held is not None:
                self._lose(set(self.assignment).difference(turn.held))
            if turn.coming:
                topics = {topic for topic, _ in turn.coming}
                known = {topic: self._member.committed(topic) for topic in topics}
                self._take(turn.coming, known)
        except BaseException:
            self._member.take_turn_again()
            raise

    def _find_new(self) -> None:
        """Find new topics and partitions; not more often than a group would be asked."""
        now = self._clock.monotonic()
        if self._by_hand is None and now - self._committed_at >= FIND_SECONDS:
            self._committed_at = now
            mine = set(self.assignment)
            self._lose(mine.difference(wanted := self._wanted_without_group()))
            new = [partition for partition in wanted if partition not in mine]
            if new:
                # What appears later is new: nothing of it was there when the consumer began.
                self._take(new, {}, start="earliest")

    def _take(
        self,
        coming: Iterable[Partition],
        known: Mapping[str, Mapping[int, int]],
        start: Start | int | None = None,
    ) -> None:
        """Begin to read partitions at their positions."""
        coming = list(coming)
        begun: dict[Partition, int] = {}
        ends_count = bool(known) and not self._source.has_other_writer()
        try:
            for key, numbers in feeds_of(coming).items():
                view = self._source.view(*key)
                for number in numbers:
                    position = known.get(key[0], {}).get(number)
                    if position is None:
                        position = begun[key[0], number] = self._begin(view, number, start)
                    elif ends_count:
                        position = self._within(view, key[0], number, position)
                    self._note_ready(self._assigned.add((key[0], number), position))
            if begun and self._member is not None:
                # Else the next owner would begin where "latest" is by then.
                self._member.commit(begun, self._settings.durability)
        except BaseException:
            for partition in coming:  # the next turn takes them
                self._remove(partition)
            raise
        if self._settings.on_assigned is not None and coming:
            self._settings.on_assigned(sorted(coming))

    def _within(self, view: ShardView | None, topic: str, number: int, position: int) -> int:
        """Return a position, or the end if it is beyond: a power cut took what was there."""
        end = 0 if view is None else view.index_end
        if position <= end:
            return position
        gone = Removed(topic, number, position, end)
        log.warning("%s: beyond the end: %s", self.root, gone)
        self._removed.append(gone)
        return end

    def _begin(self, view: ShardView | None, number: int, start: Start | int | None) -> int:
        """Return where a partition without a position begins."""
        start = self._settings.start if start is None else start
        if view is None:
            return 0
        if start == "earliest":
            return view.index_start
        if start == "latest":
            return view.index_end
        assert isinstance(start, int)
        found = places.first_from(view.sources(view.index_start), number, view.index_start, start)
        return view.index_end if found is None else found.offset

    def _remove(self, partition: Partition) -> None:
        self._assigned.remove(partition)
        for each in (self._handed, self._begun, self._batch, self._processed):
            each.pop(partition, None)

    def _give_up(self, leaving: list[Partition]) -> None:
        """Finish with partitions, commit them, and let other members have them."""
        assert self._member is not None
        if self._settings.on_revoked is not None:
            self._settings.on_revoked(leaving)
        if self._settings.auto_commit:
            self._commit(self._all_positions(leaving))
        for partition in leaving:
            self._remove(partition)
        self._member.release(leaving)

    def _lose(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that the group has given away, or that are gone with their topic."""
        lost = sorted(partitions)
        for partition in lost:
            self._remove(partition)
        if lost and self._settings.on_lost is not None:
            self._settings.on_lost(lost)

    # -- positions ---------------------------------------------------------------------------

    @documented
    def commit(self, positions: Mapping[Partition, int] | None = None) -> None:
        """Record where the group goes on: behind all that was polled, or at given positions.

        MemberFenced, and nothing is recorded, for a partition that is another member's by now;
        OffsetOutOfRange for a position beyond the end.
        """
        with self._lock:
            self._check_open()
            self._commit(self._to_commit(positions))

    def _to_commit(self, positions: Mapping[Partition, int] | None) -> Mapping[Partition, int]:
        """Return the positions to be committed: those that are given, or behind all polled."""
        if self._member is None:
            raise InvalidMessage("this consumer has no group to commit to")
        if positions is None:
            self._note_processed()
            return dict(self._processed)
        mine = set(self.assignment)  # others are another member's, and refused as such
        given = checked_positions(positions)
        check_within(self._source, {at: given[at] for at in given if at in mine})
        return given

    @documented
    def commit_with(
        self, output: Any, positions: Mapping[Partition, int] | None = None
    ) -> BatchAck:
        """As `commit`, with messages that are appended exactly once for these positions.

        `output`: as for `store.append_batch`, with a column `topic`. Positions and output are
        recorded in one write, and then the output is appended to its topics; after a crash the
        next opening for writing appends what is missing. At `durability="fsync"` that holds after
        a power cut, else after a kill. Needs `auto_commit=False`, a group, and the process that
        writes the store (else ReadOnlyStore).

        MemberFenced and whatever an append raises before anything is recorded: nothing has
        changed. OutputIncomplete with `taken` "yes": both are recorded, and the rest of the
        output follows; do not repeat it. With "no" the output of an earlier call cannot be
        appended yet, and nothing of this one was recorded.
        """
        with self._lock:
            self._check_open()
            positions = self._to_commit(positions)
            if self._settings.auto_commit:
                raise InvalidMessage("commit_with needs a consumer with auto_commit=False")
            assert self._member is not None
            prepared = self._source.prepare(output)
            level = self._settings.durability
            if prepared is None:
                self._commit(positions)
                return BatchAck(pa.array([], pa.int32()), pa.array([], pa.int64()), in_files(level))
            self._committed_at = self._clock.monotonic()
            try:
                ack = self._member.commit_output(
                    positions, level, prepared, self._source.finish_output
                )
            except OutputIncomplete as error:
                if error.taken == "yes":
                    self._note_committed(positions)
                raise
            self._note_committed(positions)
            return ack

    @documented
    def put_aside(self, message: Message, topic: str, reason: str) -> Ack:
        """Append a message that cannot be processed to another topic, with where it comes from.

        It keeps body, filter item and attributes, and gets `origin-topic`, `origin-partition`,
        `origin-offset`, `origin-time`, `origin-group`, which it keeps when it is put aside again,
        and `reason` (in which "," and "=" become ";" and ":"). It is appended at the consumer's
        `durability` when this returns; the position is committed as that of any message, so a
        kill in between puts it aside twice. Needs the process that writes the store
        (else ReadOnlyStore). InvalidMessage for a message without a body: its record is damaged.
        """
        with self._lock:
            self._check_open()
            row = put_aside_row(message, topic, reason, self.group)
            prepared = self._source.prepare([row])
            assert prepared is not None
            ack = prepared.append(in_files(self._settings.durability))
        return next(iter(ack))

    def _commit(self, positions: Mapping[Partition, int]) -> None:
        assert self._member is not None
        self._committed_at = self._clock.monotonic()
        self._member.commit(positions, self._settings.durability)
        self._note_committed(positions)

    def _note_committed(self, positions: Mapping[Partition, int]) -> None:
        for partition, position in positions.items():
            if self._processed.get(partition) == position:
                del self._processed[partition]

    def _commit_if_due(self) -> None:
        settings = self._settings
        if self._member is None or not settings.auto_commit or not self._processed:
            return
        if self._clock.monotonic() - self._committed_at >= settings.auto_commit_seconds:
            try:
                self._commit(dict(self._processed))
            except MemberFenced as error:
                log.warning("%s", error)  # the next turn has the partitions that are left
                self._processed.clear()

    def _all_positions(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return how far partitions are processed, those too that were idle."""
        return {p: at for p in partitions if (at := self._position(p)) is not None}

    def _position(self, partition: Partition) -> int | None:
        """Return how far a partition is processed; None if it is not this consumer's."""
        if partition in self._begun:
            return self._begun[partition]
        if partition in self._processed:
            return self._processed[partition]
        return self._assigned.position(partition)

    def positions(self) -> dict[Partition, int]:
        """Return from where each partition is read next."""
        with self._lock:
            return self._assigned.positions()

    def pause(self, partitions: Iterable[Partition] | None = None) -> None:
        """Leave partitions out of the polls, all by default; they stay with this member."""
        with self._lock:
            for partition in self._chosen(partitions):
                self._assigned.pause(partition)

    def resume(self, partitions: Iterable[Partition] | None = None) -> None:
        """Read paused partitions again, all by default."""
        with self._lock:
            paused = list(self._assigned.paused)
            for partition in paused if partitions is None else self._chosen(partitions):
                self._note_ready(self._assigned.resume(partition))

    @property
    def paused(self) -> list[Partition]:
        """The partitions that are paused, sorted."""
        with self._lock:
            return sorted(self._assigned.paused)

    def _note_ready(self, shard: Shard | None) -> None:
        if shard is not None:
            self._ready[shard] = None

    def _chosen(self, partitions: Iterable[Partition] | None) -> list[Partition]:
        mine = self.assignment
        if partitions is None:
            return mine
        chosen, known = list(partitions), set(mine)
        for partition in chosen:
            if partition not in known:
                raise InvalidMessage(f"partition {partition!r} is not one of this consumer's")
        return chosen

    @documented
    def seek(
        self,
        to: int | Literal["first", "last"],
        partitions: Iterable[Partition] | None = None,
    ) -> None:
        """Go on elsewhere: at an offset, at the "first" message, behind the "last"; all by default.

        `seek_time` goes to a time. The next commit records it. OffsetOutOfRange, and nothing has
        changed, for an offset that is not there.
        """
        with self._lock:
            self._check_open()
            wanted = {p: self._place(p, to) for p in self._chosen(partitions)}
            self._go_to(wanted)

    @documented
    def seek_time(self, time: Time, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the first message that was received at or after a time; all by default."""
        at = checked_time_ms(time, clock=self._clock)
        with self._lock:
            self._check_open()
            wanted = {}
            for topic, number in self._chosen(partitions):
                view = self._source.view(*shard_of((topic, number)))
                wanted[topic, number] = self._begin(view, number, at)
            self._go_to(wanted)

    @documented
    def rewind(self, count: int, partitions: Iterable[Partition] | None = None) -> None:
        """Go back by so many messages in each partition, or to its first one; all by default."""
        checked_whole("count", count)
        with self._lock:
            self._check_open()
            wanted, now = {}, self.positions()
            for topic, number in self._chosen(partitions):
                view = self._source.view(*shard_of((topic, number)))
                at = now[topic, number]
                if view is not None and count:
                    found = places.back(view.backwards(), number, view.index_start, at, count)
                    at = view.index_start if found is None else found
                wanted[topic, number] = at
            self._go_to(wanted)

    def _place(self, partition: Partition, to: int | str) -> int:
        view = self._source.view(*shard_of(partition))
        if to in ("first", "last"):
            if view is None:
                return 0
            return view.index_start if to == "first" else view.index_end
        if isinstance(to, str):
            raise ValueError(f"to {to!r}: an offset, 'first' or 'last'")
        offset = checked_whole("to", to)
        first, end = (0, 0) if view is None else (view.index_start, view.index_end)
        if not first <= offset <= end:
            raise OffsetOutOfRange(offset, first, end)
        return offset

    def _go_to(self, wanted: Mapping[Partition, int]) -> None:
        for partition, position in wanted.items():
            for each in (self._handed, self._begun, self._batch):
                each.pop(partition, None)
            self._processed[partition] = position
            self._note_ready(self._assigned.move(partition, position))

    @documented
    def unread(self) -> dict[Partition, int]:
        """Return how many messages each partition has that this consumer has not read.

        A group's lag (`store.describe_group`) counts those that it has not committed.
        """
        with self._lock:
            self._check_open()
            return self._assigned.unread(self._source.view)

    # -- life --------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Send heartbeats, and leave the group once the caller has not polled for too long."""
        member = self._member
        assert member is not None
        while not self._ended.wait(member.beat_seconds):
            try:
                self._leave_if_idle(member)
                if not self._evicted:
                    member.beat()
            except (TubeStoreError, OSError) as error:
                log.warning("group %r, member %r: no heartbeat: %s", self.group, member.id, error)

    def _leave_if_idle(self, member: GroupMember) -> None:
        """Leave the group if the caller has not polled for too long; its next poll joins again."""
        if self._clock.monotonic() - self._polled_at <= self._settings.max_poll_seconds:
            return
        if not self._lock.acquire(blocking=False):
            return  # a call of the caller's is running
        try:
            idle = self._clock.monotonic() - self._polled_at
            if idle > self._settings.max_poll_seconds and not (self._evicted or self._closed):
                self._evicted = True
                log.warning(
                    "group %r, member %r: no poll for %.0f s, its partitions go to others",
                    self.group, member.id, idle,
                )  # fmt: skip
                member.leave()
        finally:
            self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the consumer is closed")
        self._source.check_open()

    @documented
    def close(self) -> None:
        """Commit what was processed, with `auto_commit`, and leave the group; may be repeated.

        What the last poll returned counts as processed.
        """
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.interrupt()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            member = self._member
            if member is None or os.getpid() != self._pid:
                return
            self._leave_batch()
            self._note_processed()
            try:
                if self._settings.auto_commit and not self._evicted:
                    with contextlib.suppress(MemberFenced):  # the others read it again
                        self._commit(self._all_positions(self.assignment))
            finally:
                member.leave()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            with self._lock:
                self._take_back()  # what failed is read again
        self.close()
