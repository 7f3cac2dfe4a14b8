"""A consumer that a caller polls: RocketMQ's `DefaultLitePullConsumer`.

    with LitePullConsumer(broker, "mailers") as consumer:
        consumer.subscribe("orders", "paid || shipped")  # shares the queues with its group
        for message in consumer.poll(timeout=1.0):
            ...
        consumer.commit()

With `subscribe` the group's members share the queues; with `assign` the caller names them, and the
consumer is no member. A poll returns messages of one queue, and the next poll goes on with the next
queue that has some. With `auto_commit` a poll commits what earlier polls returned, every
`auto_commit_interval_millis` at most, and so does the close: a message is consumed at least once.

All calls are thread-safe, and one poll runs at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Self

from rocketcompat.broker.allocation import MessageQueue, Strategy, average
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.process_queue import ProcessQueue
from rocketcompat.broker.pulling import (
    HeldPull,
    PullRequest,
    PullResult,
    PullStatus,
    Subscription,
    of_type,
    whole,
)
from rocketcompat.broker.rebalance import (
    HEARTBEAT_SECONDS,
    LOCK_SECONDS,
    REBALANCE_SECONDS,
    RETRY_SECONDS,
    FromWhere,
    Rebalance,
)
from rocketcompat.broker.tables import checked_group
from rocketcompat.broker.timers import Timers
from rocketcompat.messages import MessageRecord
from tubestore.clock import Time, checked_time_ms
from tubestore.core.doors import logger
from tubestore.errors import (
    InvalidMessage,
    MemberFenced,
    OffsetOutOfRange,
    StoreClosed,
    TubeStoreError,
)
from tubestore.values import Seconds, checked_seconds

_log = logger(__name__)


class LitePullConsumer:
    """A consumer that is polled; use either `subscribe` or `assign`."""

    def __init__(
        self, broker: Broker, group: str, *, client_id: str | None = None,
        strategy: Strategy = average, from_where: FromWhere = "CONSUME_FROM_LAST_OFFSET",
        from_time: Time = 0, pull_batch_size: int = 10, auto_commit: bool = True,
        auto_commit_interval_millis: int = 5000,
    ) -> None:  # fmt: skip
        self.broker, self.group = broker, checked_group(group)
        self.client_id = client_id or broker.new_client_id()
        self._batch = whole("pull_batch_size", pull_batch_size, 1)
        self._auto_commit = auto_commit
        interval = whole("auto_commit_interval_millis", auto_commit_interval_millis, 1)
        self._interval = interval / 1000
        self.timers = Timers(broker.clock)
        self._rebalance = Rebalance(
            broker, group, self.client_id, added=self._add, removed=self._remove,
            strategy=strategy, from_where=from_where,
            from_time_ms=checked_time_ms(from_time, "from_time", broker.clock),
        )  # fmt: skip
        self._assigned: dict[MessageQueue, ProcessQueue] = {}
        self._wanted: dict[str, Subscription] = {}
        self._lock = threading.RLock()
        #: Set when a queue may have a message, or the members have changed.
        self._event = threading.Event()
        #: Where the next pull of each queue begins, and up to where polls have returned messages.
        self._next: dict[MessageQueue, int] = {}
        self._returned: dict[MessageQueue, int] = {}
        self._paused: set[MessageQueue] = set()
        self._turn = 0
        self._closed = self._is_member = False
        self._committed_at = broker.clock.monotonic()
        #: What could not be read, and was passed over.
        self.problems: list[TubeStoreError] = []

    # -- which queues

    def subscribe(self, topic: str, expression: str | Subscription = "*") -> None:
        """Consume a topic as a member of the group; again for another expression."""
        with self._open():
            if self._assigned:
                raise InvalidMessage("the consumer has assigned queues: it cannot subscribe, too")
            self._rebalance.subscribe(topic, expression)
            if not self._is_member:
                self._is_member = True
                self.timers.every(HEARTBEAT_SECONDS, "heartbeat", self._heartbeat)
                self.timers.every(REBALANCE_SECONDS, "rebalance", self._do_rebalance)
                self.timers.every(LOCK_SECONDS, "locks", self._rebalance.lock_all)
            self._heartbeat()
            self._do_rebalance()

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more."""
        with self._open():
            self._rebalance.subscriptions.pop(topic, None)
            if self._is_member:
                self._heartbeat()
                self._do_rebalance()

    def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Consume these queues, whatever other members of the group do."""
        with self._open():
            if self._is_member:
                raise InvalidMessage("the consumer has subscribed: no queues can be assigned, too")
            wanted = [of_type("a queue", queue, MessageQueue) for queue in queues]
            for queue in wanted:
                if queue not in self.broker.queues(queue.topic):
                    raise InvalidMessage(f"{queue} is not a queue of this broker")
            self._wanted = {q.topic: Subscription(q.topic, expression) for q in wanted}
            for queue in [q for q in self._assigned if q not in wanted]:
                del self._assigned[queue]
                self._remove(queue, None)
            for queue in wanted:
                if queue not in self._assigned:
                    self._assigned[queue] = held = ProcessQueue(self.broker.clock)
                    self._add(queue, held, self._rebalance.start_of(queue))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are polled now, sorted."""
        with self._lock:
            return sorted(self._queues())

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Poll these queues no more until `resume`."""
        with self._lock:
            self._paused |= set(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Poll these queues again."""
        with self._lock:
            self._paused -= set(queues)
            self._event.set()

    def _queues(self) -> dict[MessageQueue, ProcessQueue]:
        return self._rebalance.queues if self._is_member else self._assigned

    def _add(self, queue: MessageQueue, held: ProcessQueue, offset: int) -> None:
        self._next[queue] = offset

    def _remove(self, queue: MessageQueue, held: ProcessQueue | None) -> bool:
        self._next.pop(queue, None)
        self._returned.pop(queue, None)
        return True

    def _heartbeat(self) -> None:
        self._rebalance.heartbeat(self._members_changed)

    def _members_changed(self) -> None:
        if not self._closed:
            self.timers.after(0, "rebalance", self._do_rebalance)
            self._event.set()

    def _do_rebalance(self) -> None:
        with self._lock:
            if not self._closed:
                self._rebalance.rebalance()
                if self._rebalance.waits:
                    self.timers.after(RETRY_SECONDS, "rebalance", self._do_rebalance)

    # -- messages and positions

    def poll(self, timeout: Seconds = 5.0) -> list[MessageRecord]:
        """Return messages of one queue; wait up to `timeout` for one, [] without.

        `timeout`: seconds, a timedelta, or a text such as "500ms". With a broker without background
        threads it does not wait.
        """
        seconds = checked_seconds("timeout", timeout)
        clock = self.broker.clock
        deadline = clock.monotonic() + (seconds if self.broker.background else 0)
        while True:
            self._event.clear()
            with self._open():
                self.timers.run_due()
                if self._auto_commit and clock.monotonic() - self._committed_at >= self._interval:
                    self._commit()
                found = self._found()
                left = deadline - clock.monotonic()
                if found or left <= 0:
                    return found
                held = self._hold(left)
            due = self.timers.seconds_left()
            self._event.wait(left if due is None else min(left, max(due, 0.001)))
            for pull in held:
                self.broker.stop_holding(pull)

    def _found(self) -> list[MessageRecord]:
        """Return the messages of the first queue in turn that has some."""
        queues = sorted(
            queue for queue, held in self._queues().items()
            if queue not in self._paused and not held.dropped
        )  # fmt: skip
        for step in range(len(queues)):
            queue = queues[(self._turn + step) % len(queues)]
            messages = self._pull(queue)
            if messages:
                self._turn = (self._turn + step + 1) % len(queues)
                return messages
        return []

    def _pull(self, queue: MessageQueue) -> list[MessageRecord]:
        """Pull a queue until messages are found, or its end; go on where it continues."""
        self._queues()[queue].pulled_ms = self.broker.clock.now_ms()
        while True:
            before = self._next[queue]
            found = self.broker.pull_now(self._request(queue, before))
            self.problems += found.problems
            self._next[queue] = self._returned[queue] = found.next_begin_offset
            if found.messages:
                return found.messages
            has_ended = found.status in (PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL)
            if has_ended and found.next_begin_offset == before:
                return []

    def _request(self, queue: MessageQueue, offset: int, suspend_ms: int = 0) -> PullRequest:
        wanted = self._rebalance.subscriptions if self._is_member else self._wanted
        return PullRequest(
            self.group, queue.topic, queue.queue_id, offset, self._batch, wanted[queue.topic],
            suspend_ms,
        )  # fmt: skip

    def _hold(self, seconds: float) -> list[HeldPull]:
        """Let the broker hold a pull of each queue; an answer at once sets the event."""
        held = []
        for queue in [q for q in self._queues() if q not in self._paused]:
            request = self._request(queue, self._next[queue], max(1, int(seconds * 1000)))
            found: HeldPull | PullResult = self.broker.pull_or_hold(request, self._event.set)
            if isinstance(found, HeldPull):
                held.append(found)
            else:
                self._event.set()
        return held

    def commit(self) -> None:
        """Commit what polls have returned.

        MemberFenced if another member has a queue meanwhile: nothing is committed for that queue,
        and its messages go to the other member.
        """
        with self._open():
            lost = self._commit()
        if lost:
            names = ", ".join(f"{queue.topic}/{queue.queue_id}" for queue in lost)
            raise MemberFenced(self.group, self.client_id, f"another member has {names}")

    def _commit(self) -> list[MessageQueue]:
        """Commit; returns the queues that this consumer has lost."""
        self._committed_at = self.broker.clock.monotonic()
        lost = []
        for queue, offset in list(self._returned.items()):
            held = self._queues().get(queue)
            if not self._is_member:
                self.broker.commit_offset(self.group, queue.topic, queue.queue_id, offset)
            elif held is None or not self._rebalance.commit(queue, held, offset, forward=False):
                lost.append(queue)
        for queue in lost:
            _log.warning("%s: %s is another member's: not committed", self.group, queue)
            self._returned.pop(queue, None)
        return lost

    def committed(self, queue: MessageQueue) -> int | None:
        """Return what the group has committed in a queue; None if nothing."""
        of_type("queue", queue, MessageQueue)
        return self.broker.offsets.find(self.group, queue.topic, queue.queue_id)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset with the next poll; OffsetOutOfRange outside the queue."""
        with self._open():
            self._check_has(queue)
            whole("offset", offset)
            store = self.broker.store
            first = store.min_offset_in_queue(queue.topic, queue.queue_id)
            end = store.max_offset_in_queue(queue.topic, queue.queue_id)
            if not first <= offset <= end:
                raise OffsetOutOfRange(offset, first, end)
            self._next[queue] = self._returned[queue] = offset

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the first message of a queue."""
        of_type("queue", queue, MessageQueue)
        self.seek(queue, self.broker.store.min_offset_in_queue(queue.topic, queue.queue_id))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on behind the last message of a queue."""
        of_type("queue", queue, MessageQueue)
        self.seek(queue, self.broker.store.max_offset_in_queue(queue.topic, queue.queue_id))

    def offset_for_timestamp(self, queue: MessageQueue, time: Time) -> int:
        """Return the offset of a store time in a queue."""
        of_type("queue", queue, MessageQueue)
        store = self.broker.store
        return store.offset_in_queue_by_time(queue.topic, queue.queue_id, time)

    def _check_has(self, queue: MessageQueue) -> None:
        if queue not in self._queues():
            raise InvalidMessage(f"{queue} is not among this consumer's queues")

    # -- the consumer itself

    def close(self, *, commit: bool = True) -> None:
        """Commit, with `auto_commit`, and leave the group; harmless when repeated.

        Without `commit` what was returned since the last commit comes again; so it is when a `with`
        block ends with an exception.
        """
        with self._lock:
            if self._closed:
                return
            if self._auto_commit and commit:
                self._commit()
            self._closed = True
            self._event.set()
            if self._is_member:
                self._rebalance.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.close(commit=kind is None)

    def _open(self) -> threading.RLock:
        """Return the lock; StoreClosed after the close."""
        if self._closed:
            raise StoreClosed(f"{self.group}: the consumer is closed")
        return self._lock
