"""A RocketMQ broker in the process, without a network, over an open store.

    with rocketcompat.open("/store", mode="w") as store, Broker(store) as broker:
        broker.topics.create("orders", queues=4)
        broker.send(Message("orders", b"..."), key="order-7")
        broker.pull(PullRequest("mailers", "orders", 0, 0, subscription=Subscription("orders")))

It keeps the tables of a real broker below the root's `config`, holds pulls until a message comes,
and has the members of consumer groups. Consumers (`push.py`, `lite.py`) and transactions
(`transactions.py`) are built on it.

With `background` a thread does what is due, and held pulls wait in their callers' threads. Without
it, `step` does what is due by the store's clock, and no call waits.

A broker over a store with mode "r" sees what another process appends, also a real broker, and
changes nothing: sends, commits and new topics are ReadOnlyStore. Close the broker before its store.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple, Self

from rocketcompat.broker.allocation import MessageQueue, queue_by_hash
from rocketcompat.broker.members import ConsumerTable, QueueLocks
from rocketcompat.broker.pulling import (
    HOLD_CHECK_SECONDS,
    HeldPull,
    HoldService,
    PullRequest,
    PullResult,
    PullStatus,
    Subscription,
    as_sent,
    of_type,
    result_of,
    whole,
)
from rocketcompat.broker.tables import (
    PERM_READ,
    PERM_WRITE,
    Groups,
    Offsets,
    Topics,
)
from rocketcompat.broker.timers import Timers, TimerThread
from rocketcompat.files.broker_config import BrokerConfig, TopicConfig
from rocketcompat.formats import PROPERTY_UNIQ_KEY, encode_host, parse_properties
from rocketcompat.messages import Message, MessageRecord, PutResult
from rocketcompat.reading.pull import physical_memory_bytes
from rocketcompat.record.batches import is_wrapped, unwrapped
from rocketcompat.record.properties import (
    PROPERTY_DELAY,
    dead_letter_topic,
    retry_topic,
)
from rocketcompat.store.default_message_store import DefaultMessageStore
from rocketcompat.store.puts import Durability
from rocketcompat.store.reader import StoreReader
from tubestore.clock import Clock, SystemClock
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.errors import (
    InvalidMessage,
    InvalidName,
    ReadOnlyStore,
    StoreClosed,
    TubeStoreError,
)

#: Offsets are written for the first time so long after the broker opens.
_FIRST_PERSIST_SECONDS = 10.0
_SCAN_SECONDS = 10.0
#: The properties that put a message into the timer wheel of 5.x.
_TIMER_PROPERTIES = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
#: How often a broker over a reader looks for what the writer has appended, while pulls wait.
_FOLLOW_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """A broker's options, under RocketMQ's names in snake_case; times are ms."""

    broker_name: str = "broker-a"
    long_polling_enable: bool = True
    short_polling_time_mills: int = 1000
    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = 8
    auto_create_subscription_group: bool = True
    flush_consumer_offset_interval: int = 5000
    #: A half message is checked when it is older, every interval, so many times at most.
    transaction_time_out: int = 6000
    transaction_check_interval: int = 60_000
    transaction_check_max: int = 15

    def __post_init__(self) -> None:
        if not self.broker_name:
            raise InvalidMessage("broker_name: is empty")
        for name, least in (
            ("short_polling_time_mills", 1), ("default_topic_queue_nums", 1),
            ("flush_consumer_offset_interval", 1), ("transaction_time_out", 0),
            ("transaction_check_interval", 1), ("transaction_check_max", 1),
        ):  # fmt: skip
            whole(name, getattr(self, name), least=least)


class SendResult(NamedTuple):
    """Where a message went."""

    queue: MessageQueue
    put: PutResult
    #: The id that a producer gives its message (UNIQ_KEY), by which it can be queried.
    msg_id: str


class Broker:
    """A broker over an open store; all methods are thread-safe.

    >>> import tempfile, rocketcompat
    >>> with tempfile.TemporaryDirectory() as root, rocketcompat.open(root, mode="w") as store:
    ...     with Broker(store) as broker:
    ...         _ = broker.topics.create("orders", queues=4)
    ...         sent = broker.send(rocketcompat.Message("orders", b"hello"), key="order-7")
    ...         queue, wanted = sent.queue, Subscription("orders")
    ...         request = PullRequest("mailers", "orders", queue.queue_id, 0, subscription=wanted,
    ...                               suspend_ms=5000)
    ...         print(queue.queue_id, [m.body for m in broker.pull(request).messages])
    0 [b'hello']
    """

    def __init__(
        self, store: StoreReader, *, store_host: str | None = None,
        options: BrokerOptions | None = None, background: bool = True, vfs: Vfs | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """`vfs` and `clock` are those of the store, if it was opened with others than usual.

        Raises CorruptRecord for a table that cannot be read, nor its backup.
        """
        self.store, self.options = store, options or BrokerOptions()
        self.clock, self.background = clock or SystemClock(), background
        self._writer = store if isinstance(store, DefaultMessageStore) else None
        self.store_host = store_host or store.config.store_host
        try:
            self._host = encode_host(self.store_host)
        except ValueError as error:
            raise InvalidMessage(f"store_host: {error}") from None
        files = BrokerConfig(vfs or OsVfs(), store.root, compat=store.config.compat)
        writable = self._writer is not None
        self.topics = Topics(
            files, self.clock, default_queues=self.options.default_topic_queue_nums,
            auto_create=self.options.auto_create_topic_enable,
            queues=None if writable else self._queues_of_store,
        )  # fmt: skip
        self.groups = Groups(
            files, self.clock, auto_create=self.options.auto_create_subscription_group,
            writable=writable,
        )  # fmt: skip
        self._pop = files.pop_groups()
        self.offsets = Offsets(files, self.clock, writable=writable)
        self.consumers, self.locks = ConsumerTable(self.clock), QueueLocks(self.clock)
        self.timers = Timers(self.clock)
        self._held = HoldService(self.clock, store.max_offset_in_queue)
        self._turns: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = False
        self._clients = itertools.count(1)
        self._ids = _UniqueIds(self.clock)
        self._schedule()
        if self._writer is not None:
            self._writer.set_arrival_listener(self._held.arrived)
        self._thread = (
            TimerThread(self.timers, self.timers.run_due, "BrokerTimers") if background else None
        )

    def _schedule(self) -> None:
        every = self.timers.every
        seconds = HOLD_CHECK_SECONDS
        if not self.options.long_polling_enable:
            seconds = self.options.short_polling_time_mills / 1000
        every(seconds if self._writer else _FOLLOW_SECONDS, "PullRequestHoldService", self._check)
        every(_SCAN_SECONDS, "scan of consumers", self.consumers.expire)
        if self._writer is not None:
            interval = self.options.flush_consumer_offset_interval / 1000
            every(interval, "consumer offsets", self.offsets.persist, _FIRST_PERSIST_SECONDS)

    # -- topics and queues

    @property
    def name(self) -> str:
        """The broker's name in its queues."""
        return self.options.broker_name

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that consumers read; UnknownTopic without the topic."""
        found = self.topics.get(topic)
        count = found.read_queue_nums if found.perm & PERM_READ else 0
        return [MessageQueue(topic, self.name, queue_id) for queue_id in range(count)]

    def delete_topic(self, topic: str) -> None:
        """Remove a topic, and its consumers' offsets; its messages expire with the log."""
        self._check_open()
        self.topics.delete(topic)
        self.offsets.remove(topic=topic)
        self.offsets.persist()

    def delete_group(self, group: str) -> None:
        """Remove a subscription group with its offsets."""
        self._check_open()
        self.groups.delete(group)
        self.offsets.remove(group=group)
        self.offsets.persist()

    def _queues_of_store(self) -> dict[str, int]:
        """Return how many queues each topic of the store has."""
        found: dict[str, int] = {}
        for row in self.store.queue_table().to_pylist():
            found[row["topic"]] = max(found.get(row["topic"], 0), row["queue_id"] + 1)
        return found

    # -- producers

    def send(
        self, message: Message, *, key: str | None = None, queue_id: int | None = None,
        durability: Durability | None = None,
    ) -> SendResult:  # fmt: skip
        """Put a message into a queue of its topic, and return its place.

        The queue is `queue_id`, or by the hash of `key` as RocketMQ chooses it, or the next in
        turn; `message.queue_id` has no effect. A topic that is not there is made from the default
        topic, unless `auto_create_topic_enable` is off (UnknownTopic). Raises as
        `DefaultMessageStore.put_message` does; InvalidName for a topic that takes no messages.
        """
        writer = self._check_writable()
        of_type("message", message, Message)
        queue = self.queue_for(message.topic, key=key, queue_id=queue_id)
        message, msg_id = self.prepared(message, queue.queue_id)
        return SendResult(queue, writer.put_message(message, durability=durability), msg_id)

    def put(self, message: Message) -> PutResult:
        """Put a message as it is, for parts of the broker that have chosen its queue."""
        return self._check_writable().put_message(message)

    def queue_for(
        self, topic: str, *, key: str | None = None, queue_id: int | None = None
    ) -> MessageQueue:
        """Return the queue that `send` puts a message of a topic into."""
        self._check_writable()
        row = self.topics.for_producer(topic)
        if not row.perm & PERM_WRITE:
            raise InvalidName(topic, f"takes no messages: its perm is {row.perm}")
        return MessageQueue(row.topic_name, self.name, self._choose(row, key, queue_id))

    def _choose(self, topic: TopicConfig, key: str | None, queue_id: int | None) -> int:
        if queue_id is not None:
            whole("queue_id", queue_id)
            count = max(topic.write_queue_nums, topic.read_queue_nums)
            if queue_id >= count:
                raise InvalidMessage(f"queue_id: {topic.topic_name!r} has {count} queues")
            return queue_id
        if not topic.write_queue_nums:
            raise InvalidName(topic.topic_name, "has no queue to write to")
        if key is not None:
            if not isinstance(key, str):
                raise InvalidMessage(f"key: {key!r} is not a text")
            return queue_by_hash(key, topic.write_queue_nums)
        with self._lock:
            turn = self._turns[topic.topic_name]
            self._turns[topic.topic_name] += 1
        return turn % topic.write_queue_nums

    def new_client_id(self) -> str:
        """Return an id for a consumer in this process, as RocketMQ's clients make it."""
        return f"127.0.0.1@{os.getpid()}#{next(self._clients)}"

    def prepared(self, message: Message, queue_id: int) -> tuple[Message, str]:
        """Return a message as it is put: with its queue, the broker's host, and a unique id."""
        given = message.properties
        pairs = parse_properties(given) if isinstance(given, str) else dict(given or {})
        msg_id = pairs.get(PROPERTY_UNIQ_KEY, "")
        if not msg_id and not isinstance(given, str):
            pairs[PROPERTY_UNIQ_KEY] = msg_id = self._ids.next()
            given = pairs
        timer = next((name for name in _TIMER_PROPERTIES if name in pairs), None)
        if timer is not None:
            raise InvalidMessage(
                f"{timer}: this broker has no timer wheel of 5.x: give a delay_level"
            )
        level = message.delay_level
        if not level and pairs.get(PROPERTY_DELAY, "").isdecimal():
            level = int(pairs[PROPERTY_DELAY])  # 5.x: the broker, not the store, delays
        return replace(
            message, properties=given, queue_id=queue_id, delay_level=level,
            store_host=message.store_host or self.store_host,
        ), msg_id  # fmt: skip

    def send_back(
        self, group: str, record: MessageRecord, *, delay_level: int = 0,
        times_max: int | None = None,
    ) -> PutResult | None:  # fmt: skip
        """Put a message that a group could not consume into its retry topic, delayed.

        After `times_max` rounds (None: the group's `retry_max_times`), or with a `delay_level`
        below 0, it goes to the dead letters. None for a group with `retry_queue_nums` 0: such a
        message is dropped, as RocketMQ drops it. The stored record is sent back, with its body as
        it is in the log; of an inner batch the one message.
        """
        writer = self._check_writable()
        of_type("record", record, MessageRecord)
        row = self.groups.get(group)
        if row.retry_queue_nums <= 0:
            return None
        self.topics.for_group(retry_topic(group), row.retry_queue_nums)
        times = row.retry_max_times if times_max is None else times_max
        stored = self.store.look_message(record.physical_offset)
        if is_wrapped(stored) and not is_wrapped(record):
            stored = unwrapped(as_sent(stored))[record.queue_offset - stored.queue_offset]
        if delay_level < 0 or stored.reconsume_times >= times:
            self.topics.for_group(dead_letter_topic(group), 1)
        return writer.send_back(stored, group, delay_level=delay_level, times_max=times)

    # -- consumers

    def heartbeat(
        self, group: str, client_id: str, subscriptions: list[Subscription], *,
        model: str = "CLUSTERING", notify: Callable[[], None] | None = None,
    ) -> bool:  # fmt: skip
        """Take note that a consumer is alive; returns True if its group has changed.

        `notify` is called when the members of the group change, unless the group's row has
        `notify_consumer_ids_changed_enable` off. The group's retry topic is made.
        """
        self._check_open()
        if model not in ("CLUSTERING", "BROADCASTING"):
            raise InvalidMessage(f"model: {model!r} is neither 'CLUSTERING' nor 'BROADCASTING'")
        if not isinstance(client_id, str) or not client_id:
            raise InvalidMessage(f"client_id: {client_id!r} is not a text, or empty")
        wanted = [of_type("a subscription", found, Subscription) for found in subscriptions]
        for topic in (subscription.topic for subscription in wanted):
            if (topic, group) in self._pop:
                raise InvalidName(
                    group, f"consumes {topic!r} by pop (messageRequestMode.json), as 5.x can; this"
                    " broker has no pop: set the mode to PULL",
                )  # fmt: skip
        row = self.groups.get(group)
        if self._writer is not None:
            self.topics.for_group(retry_topic(group), row.retry_queue_nums)
        call = notify if row.notify_consumer_ids_changed_enable else None
        is_broadcast = model == "BROADCASTING"
        return self.consumers.heartbeat(
            group, client_id, wanted, "BROADCASTING" if is_broadcast else "CLUSTERING", call
        )

    def query_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where a group goes on in a queue; None if it has not begun.

        As in RocketMQ a group that has not begun is at 0 if the queue begins there and its first
        message is young enough to be in memory.
        """
        found = self.offsets.find(group, topic, queue_id)
        if found is not None and found >= 0:
            return found
        if self.store.min_offset_in_queue(topic, queue_id) > 0:
            return None
        first = self.store.get_message(topic, queue_id, 0, 1).physical_offsets
        ratio = self.store.config.access_message_in_memory_max_ratio
        in_memory = physical_memory_bytes() * ratio // 100
        is_old = bool(first) and self.store.max_physical_offset - first[0] > in_memory
        return None if is_old else 0

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set where a group goes on in a queue; on the disk some seconds later, or at the close.

        The last commit counts, whichever consumer it comes from. The topic need not be known, as
        in RocketMQ. InvalidName and InvalidMessage for what the file cannot hold.
        """
        self._check_open()
        self.offsets.commit(group, topic, queue_id, offset)

    def pull(self, request: PullRequest) -> PullResult:
        """Return messages of a queue; wait for one if the request may be held.

        Raises UnknownTopic, InvalidName (a group that may not consume), InvalidMessage (a queue
        that the topic has not, a group that has no subscription to the topic).
        """
        if request.suspend_ms and not self.background:
            raise InvalidMessage("suspend_ms: without background threads no pull is held here")
        event = threading.Event()
        found = self.pull_or_hold(request, event.set)
        if isinstance(found, HeldPull):
            event.wait()
            found = self.pull_now(request)
        return found

    def pull_now(self, request: PullRequest) -> PullResult:
        """As `pull`, without waiting and without a commit."""
        found = self._pull(request, self._wanted(request))
        return found

    def pull_or_hold(
        self, request: PullRequest, ready: Callable[[], None]
    ) -> PullResult | HeldPull:
        """As `pull`, for a caller that does not wait: a pull that finds nothing is held.

        `ready` is called once, in any thread, when `pull_now` is to be called for the answer.
        """
        wanted = self._wanted(request)
        found = self._pull(request, wanted)
        if request.commit_offset is not None:
            self.commit_offset(
                request.group, request.topic, request.queue_id, request.commit_offset
            )
        if found.status is not PullStatus.NO_NEW_MSG or not request.suspend_ms:
            return found
        suspend = request.suspend_ms
        if not self.options.long_polling_enable:
            suspend = self.options.short_polling_time_mills
        held = HeldPull(request.offset, wanted, self.clock.now_ms() + suspend, ready)
        self._held.hold(request.topic, request.queue_id, held)
        if self._closed:
            self._held.release_all()
        return held

    def stop_holding(self, pull: HeldPull) -> None:
        """Forget a held pull; its `ready` is not called any more."""
        self._held.release(pull)

    def _pull(self, request: PullRequest, wanted: Subscription) -> PullResult:
        if self._writer is None:
            self.store.refresh()
        tags = None if wanted.codes is None else " || ".join(sorted(wanted.tags))
        found = self.store.get_message(
            request.topic, request.queue_id, request.offset, request.max_count, tags,
            where=wanted.where,
        )  # fmt: skip
        return result_of(found, request, wanted)

    def _wanted(self, request: PullRequest) -> Subscription:
        """Return what the consumer wants; raises if it may not have it."""
        self._check_open()
        row = self.groups.get(request.group)
        if not row.consume_enable:
            raise InvalidName(request.group, "this group may not consume (consumeEnable)")
        topic = self.topics.find(request.topic)
        if topic is None and self._writer is None:
            self.store.refresh()
            self.topics.reload()
        topic = topic or self.topics.get(request.topic)
        if not topic.perm & PERM_READ:
            raise InvalidName(request.topic, f"gives no messages: its perm is {topic.perm}")
        if not 0 <= request.queue_id < topic.read_queue_nums:
            raise InvalidMessage(
                f"queue_id {request.queue_id}: {request.topic!r} has {topic.read_queue_nums}"
            )
        if request.subscription is not None:
            return request.subscription
        is_broadcast = self.consumers.model(request.group) == "BROADCASTING"
        if is_broadcast and not row.consume_broadcast_enable:
            raise InvalidName(request.group, "this group may not consume by broadcasting")
        found = self.consumers.subscription(request.group, request.topic)
        if found is None:
            raise InvalidMessage(
                f"{request.group!r} has no subscription to {request.topic!r}: give one with the"
                " request, or send a heartbeat"
            )
        return found

    def _check(self) -> None:
        """Check the held pulls, as the hold service does at its interval."""
        if self._writer is None and len(self._held):
            self.store.refresh()
        self._held.check()

    # -- the broker itself

    def step(self) -> None:
        """Do what is due: dispatch and deliver messages, check held pulls, write offsets.

        For a broker without background threads, or with a clock that the caller sets.
        """
        self._check_open()
        if self._writer is not None:
            self._writer.deliver_due()
        self.timers.run_due()

    @property
    def problems(self) -> list[TubeStoreError]:
        """What went wrong and was not raised."""
        return list(self.timers.problems)

    def close(self) -> None:
        """Answer the held pulls, and write the offsets; harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        if self._writer is not None:
            self._writer.set_arrival_listener(None)
        if self._thread is not None:
            self._thread.stop()
        self._held.release_all()
        if self._writer is not None:
            self.offsets.persist()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.store.root}: the broker is closed")

    def _check_writable(self) -> DefaultMessageStore:
        """Return the store to write to."""
        self._check_open()
        if self._writer is None:
            raise ReadOnlyStore(f"{self.store.root}: was opened with mode='r'")
        return self._writer


class _UniqueIds:
    """Ids of messages in the form of RocketMQ's `MessageClientIDSetter`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        process = os.getpid() & 0xFFFF
        self._fixed = f"7F000001{process:04X}{secrets.token_hex(4).upper()}"
        self._numbers = itertools.count()

    def next(self) -> str:
        """Return the next id: host, process, ms since the month began, a number."""
        now = self._clock.now_ms()
        moment = datetime.fromtimestamp(now / 1000, UTC)
        month = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        since = now - int(month.timestamp()) * 1000
        return f"{self._fixed}{since & 0xFFFFFFFF:08X}{next(self._numbers) & 0xFFFF:04X}"
