"""A consumer that calls a listener: RocketMQ's `DefaultMQPushConsumer`, built on pulls.

    def listen(messages, context):
        ...
        return ConsumeStatus.CONSUME_SUCCESS

    with PushConsumer(broker, "mailers", {"orders": "paid || shipped"}, listen):
        ...

Each queue that the consumer has (`rebalance.py`) is pulled by one request at a time; what is pulled
waits in its process queue, and pulls pause while too much does (flow control).

- Concurrently: listeners run in `consume_thread_max` threads. A message that fails is sent back,
  and comes again from the group's retry topic, each time later, until it is a dead letter.
- Orderly (`orderly=True`): a queue is locked at the broker, and its messages are consumed one batch
  after the other. A batch that fails is tried again after `suspend_current_queue_time_millis`.
- Broadcasting: each client has all queues, and a failed message is dropped with a line in the log.

A message is consumed at least once. A listener that raises, or returns None, has failed, as in
RocketMQ. What cannot be read is passed over, and is in `problems`.

With a broker that has background threads the consumer has threads, too. Else `step` does all that
is due, listeners included, in the caller's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Self, get_args

from rocketcompat.broker.allocation import MessageQueue, Strategy, average
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.members import MessageModel
from rocketcompat.broker.process_queue import ProcessQueue
from rocketcompat.broker.pulling import (
    PUSH_SUSPEND_MS,
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
from rocketcompat.broker.timers import Timers, TimerThread
from rocketcompat.messages import MessageRecord
from rocketcompat.record.properties import PROPERTY_RETRY_TOPIC, retry_topic
from tubestore.clock import Time, checked_time_ms
from tubestore.core.doors import logger
from tubestore.errors import InvalidMessage, TubeStoreError

_log = logger(__name__)
_EXCEPTION_SECONDS, _FLOW_CONTROL_SECONDS, _PAUSE_SECONDS = 3.0, 0.05, 1.0
_MOVED_SECONDS, _AGAIN_SECONDS, _LOCK_AGAIN_SECONDS = 10.0, 5.0, 0.1
_LATE_LEVEL = 3
_ORDERLY_RUN_MS = 60_000
_SUSPEND_LEAST_MS, _SUSPEND_MOST_MS = 10, 30_000


class ConsumeStatus(Enum):
    """What a listener returns; concurrently the first two, orderly the others."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    #: Only with `auto_commit` off: end what was taken so far, or put it back.
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


@dataclass(slots=True)
class ConsumeContext:
    """What a listener may set for its batch, beside the status."""

    queue: MessageQueue
    #: Concurrently: below 0 failed messages are dead letters at once, 0 the broker chooses.
    delay_level_when_next_consume: int = 0
    #: Concurrently: the messages up to this one were consumed, the others failed.
    ack_index: int = 1 << 31
    #: Orderly: False if only `COMMIT` ends what was taken.
    auto_commit: bool = True
    #: Orderly: ms until the batch is tried again; None for the consumer's own.
    suspend_current_queue_time_millis: int | None = None


Listener = Callable[[Sequence[MessageRecord], ConsumeContext], ConsumeStatus | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """A push consumer's options, under RocketMQ's names in snake_case."""

    consume_from_where: FromWhere = "CONSUME_FROM_LAST_OFFSET"
    #: For CONSUME_FROM_TIMESTAMP: an aware datetime, ISO text, an age like "2h", or ms.
    consume_timestamp: Time = 0
    pull_batch_size: int = 32
    #: ms between pulls.
    pull_interval: int = 0
    consume_message_batch_max_size: int = 1
    consume_thread_max: int = 20
    #: Minutes after which a message that its listener still has is sent back.
    consume_timeout: int = 15
    #: Pulls pause above so many messages, MiB, or offsets between first and last, of a queue.
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_for_queue: int = 100
    consume_concurrently_max_span: int = 2000
    #: The first two for a consumer's queues together; -1: no such limit.
    pull_threshold_for_topic: int = -1
    pull_threshold_size_for_topic: int = -1
    suspend_current_queue_time_millis: int = 1000
    #: Rounds until a message is a dead letter; -1: the group's `retry_max_times`, orderly no limit.
    max_reconsume_times: int = -1

    def __post_init__(self) -> None:
        if self.consume_from_where not in get_args(FromWhere):
            raise InvalidMessage(f"consume_from_where: {self.consume_from_where!r} is no policy")
        try:
            checked_time_ms(self.consume_timestamp, "consume_timestamp")
        except (TypeError, ValueError) as error:
            raise InvalidMessage(str(error)) from None
        for name, least in _LEAST.items():
            whole(name, getattr(self, name), least)


_LEAST = {
    "pull_batch_size": 1, "pull_interval": 0, "consume_message_batch_max_size": 1,
    "consume_thread_max": 1, "consume_timeout": 1, "pull_threshold_for_queue": 1,
    "pull_threshold_size_for_queue": 1, "consume_concurrently_max_span": 1,
    "pull_threshold_for_topic": -1, "pull_threshold_size_for_topic": -1,
    "suspend_current_queue_time_millis": 0, "max_reconsume_times": -1,
}  # fmt: skip


@dataclass(slots=True, eq=False)
class _Pull:
    """The pull request of one queue: it waits, is held, or is under way."""

    queue: MessageQueue
    held: ProcessQueue
    next_offset: int
    #: True once an ordered consumer has computed the offset under its lock.
    was_locked: bool = False
    #: What was held, once the broker has released it: the answer is fetched at once.
    released: PullRequest | None = None


class PushConsumer:
    """A member of a group that calls a listener; all methods are thread-safe."""

    def __init__(
        self, broker: Broker, group: str, subscriptions: Mapping[str, str | Subscription],
        listener: Listener, *, orderly: bool = False, model: MessageModel = "CLUSTERING",
        strategy: Strategy = average, client_id: str | None = None,
        options: PushOptions | None = None,
    ) -> None:  # fmt: skip
        """`subscriptions`: topics, each with its tags ("*" for all) or a `Subscription`."""
        checked_group(group)
        if model not in get_args(MessageModel):
            raise InvalidMessage(f"model: {model!r} is neither 'CLUSTERING' nor 'BROADCASTING'")
        if not callable(listener):
            raise InvalidMessage(f"listener: {listener!r} is not a function")
        self.broker, self.group, self.options = broker, group, options or PushOptions()
        self.client_id = client_id or broker.new_client_id()
        self._listener, self._orderly = listener, orderly
        self.timers = Timers(broker.clock)
        self._rebalance = Rebalance(
            broker, group, self.client_id, added=self._add, removed=self._removed, model=model,
            strategy=strategy, from_where=self.options.consume_from_where,
            from_time_ms=checked_time_ms(self.options.consume_timestamp, clock=broker.clock),
        )  # fmt: skip
        self._is_clustering = model == "CLUSTERING"
        for topic, wanted in of_type("subscriptions", subscriptions, Mapping).items():
            self._rebalance.subscribe(topic, wanted)
        if self._is_clustering:
            retry = retry_topic(group)
            self._rebalance.subscriptions[retry] = Subscription(retry)
        self._lock = threading.Lock()
        #: Held while the table of queues changes, or is walked.
        self._table_lock = threading.RLock()
        self._pulls: deque[_Pull] = deque()
        #: The pulls that the broker holds.
        self._waiting: dict[MessageQueue, HeldPull] = {}
        self._tasks: deque[Callable[[], None]] = deque()
        self._threshold = self.options.pull_threshold_for_queue
        self._threshold_size = self.options.pull_threshold_size_for_queue
        self._paused = self._closed = False
        self.problems: list[TubeStoreError] = []
        self._executor = (
            ThreadPoolExecutor(self.options.consume_thread_max, f"ConsumeMessageThread_{group}")
            if broker.background
            else None
        )
        self._start()
        self._thread = (
            TimerThread(self.timers, self._round, f"PullMessageService_{group}")
            if broker.background
            else None
        )

    def _start(self) -> None:
        every = self.timers.every
        self._heartbeat()
        every(HEARTBEAT_SECONDS, "heartbeat", self._heartbeat)
        every(REBALANCE_SECONDS, "rebalance", self._do_rebalance, first=0.0)
        every(LOCK_SECONDS, "locks", self._lock_all, first=1.0)
        if not self._orderly:
            minutes = self.options.consume_timeout
            every(minutes * 60.0, "consumeTimeout", self._send_late_back)

    # -- what a caller does

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that the consumer has now, sorted."""
        with self._table_lock:
            return sorted(self._rebalance.queues)

    def pause(self) -> None:
        """Pull no more until `resume`; what was pulled is consumed."""
        self._paused = True

    def resume(self) -> None:
        """Go on pulling, a second later at the latest."""
        self._paused = False

    def step(self) -> None:
        """Do all that is due by the clock, listeners included, in this thread.

        For a broker without background threads.
        """
        self._round()
        while self._tasks:
            self._tasks.popleft()()
            self._round()

    def close(self) -> None:
        """Wait for the listeners, and leave the group; harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._thread.stop()
        if self._executor is not None:
            self._executor.shutdown()
        with self._table_lock:
            for pull in self._held_pulls():
                self.broker.stop_holding(pull)
            self._rebalance.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- queues come and go

    def _held_pulls(self) -> list[HeldPull]:
        with self._lock:
            return list(self._waiting.values())

    def _heartbeat(self) -> None:
        self._rebalance.heartbeat(self._members_changed)

    def _members_changed(self) -> None:
        if not self._closed:
            self.timers.after(0, "rebalance", self._do_rebalance)

    def _do_rebalance(self) -> None:
        if self._closed:
            return
        with self._table_lock:
            changed = self._rebalance.rebalance()
            count = len(self._rebalance.queues)
        if self._rebalance.waits:
            self.timers.after(RETRY_SECONDS, "rebalance", self._do_rebalance)
        options = self.options
        if changed and count:
            if options.pull_threshold_for_topic != -1:
                self._threshold = max(1, options.pull_threshold_for_topic // count)
            if options.pull_threshold_size_for_topic != -1:
                self._threshold_size = max(1, options.pull_threshold_size_for_topic // count)

    def _add(self, queue: MessageQueue, held: ProcessQueue, offset: int) -> None:
        self._pull_soon(_Pull(queue, held, offset))

    def _removed(self, queue: MessageQueue, held: ProcessQueue) -> bool:
        with self._lock:
            waiting = self._waiting.pop(queue, None)
        if waiting is not None:
            self.broker.stop_holding(waiting)
        # In order, the next member begins when no listener of this one runs any more.
        return not self._orderly or not held.consume_lock.locked()

    def _lock_all(self) -> None:
        with self._table_lock:
            self._rebalance.lock_all()

    # -- pulling

    def _round(self) -> None:
        """Make the calls that are due, then the pulls that wait."""
        self.timers.run_due()
        while self._pulls and not self._closed:
            pull = self._pulls.popleft()
            try:
                self._pull(pull)
            except Exception as error:
                self.timers.report(f"pull of {pull.queue}", error)
                self._pull_later(pull, _EXCEPTION_SECONDS)

    def _pull_soon(self, pull: _Pull) -> None:
        self._pulls.append(pull)
        self.timers.wake()

    def _pull_later(self, pull: _Pull, seconds: float) -> None:
        self.timers.after(seconds, "pull", partial(self._pull_soon, pull))

    def _pull(self, pull: _Pull) -> None:
        if pull.held.dropped:
            return
        pull.held.pulled_ms = self.broker.clock.now_ms()
        if pull.released is not None:
            request, pull.released = pull.released, None
            self._take(pull, self.broker.pull_now(request))
            return
        pause = self._seconds_to_wait(pull)
        if pause:
            self._pull_later(pull, pause)
            return
        wanted = self._rebalance.subscriptions.get(pull.queue.topic)
        if wanted is None:
            return
        request = PullRequest(
            self.group, pull.queue.topic, pull.queue.queue_id, pull.next_offset,
            self.options.pull_batch_size, wanted, PUSH_SUSPEND_MS,
        )  # fmt: skip
        with self._lock:
            found = self.broker.pull_or_hold(request, partial(self._released, pull, request))
            if isinstance(found, HeldPull):
                if pull.released is None:
                    self._waiting[pull.queue] = found
                return
        self._take(pull, found)

    def _released(self, pull: _Pull, request: PullRequest) -> None:
        """Ask again for a held pull; called by the broker, in any thread."""
        pull.released = request
        self._waiting.pop(pull.queue, None)
        self._pull_soon(pull)

    def _seconds_to_wait(self, pull: _Pull) -> float:
        """Return the seconds until a pull may be made; 0 for at once."""
        held = pull.held
        if self._paused:
            return _PAUSE_SECONDS
        if held.count > self._threshold or held.size >> 20 > self._threshold_size:
            return _FLOW_CONTROL_SECONDS
        if not self._orderly:
            is_wide = held.span > self.options.consume_concurrently_max_span
            return _FLOW_CONTROL_SECONDS if is_wide else 0
        if not pull.was_locked:
            pull.next_offset = self._rebalance.start_of(pull.queue)
            pull.was_locked = True
        return 0

    def _take(self, pull: _Pull, found: PullResult) -> None:
        """Go on after the answer of a pull."""
        for problem in found.problems:
            _log.warning("%s; passed over", problem)
            self.problems.append(problem)
        pull.next_offset = found.next_begin_offset
        if found.status is PullStatus.OFFSET_ILLEGAL:
            _log.warning(
                "%s has no such offset: %s goes on at %d", pull.queue, self.group, pull.next_offset
            )
            self.timers.after(_MOVED_SECONDS, "moved offset", partial(self._moved, pull))
            return
        if found.messages:
            starts = pull.held.put(found.messages)
            if self._orderly:
                if starts:
                    self._submit(partial(self._consume_orderly, pull.queue, pull.held))
            else:
                self._submit_batches(pull.queue, pull.held, found.messages)
        elif pull.held.count == 0:
            self._rebalance.commit(pull.queue, pull.held, pull.next_offset)
        if found.status is PullStatus.FOUND and self.options.pull_interval:
            self._pull_later(pull, self.options.pull_interval / 1000)
        else:
            self._pull_soon(pull)

    def _moved(self, pull: _Pull) -> None:
        """Commit the corrected offset of a queue, and begin it again with the next rebalance."""
        with self._table_lock:
            if self._rebalance.queues.get(pull.queue) is pull.held:
                self._rebalance.commit(pull.queue, pull.held, pull.next_offset, forward=False)
                self._rebalance.remove(pull.queue)
                self._do_rebalance()

    # -- consuming

    def _submit(self, task: Callable[[], None]) -> None:
        if self._executor is None:
            self._tasks.append(task)
        elif not self._closed:
            self._executor.submit(self._guarded, task)

    def _guarded(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:
            self.timers.report("consuming", error)

    def _submit_later(self, seconds: float, task: Callable[[], None]) -> None:
        self.timers.after(seconds, "consuming", partial(self._submit, task))

    def _submit_batches(
        self, queue: MessageQueue, held: ProcessQueue, messages: list[MessageRecord]
    ) -> None:
        size = self.options.consume_message_batch_max_size
        for first in range(0, len(messages), size):
            batch = messages[first : first + size]
            self._submit(partial(self._consume, queue, held, batch))

    def _listen(
        self, messages: list[MessageRecord], context: ConsumeContext
    ) -> ConsumeStatus | None:
        """Call the listener; None if it failed. Messages of the retry topic get their own back."""
        retry = retry_topic(self.group)
        shown = [
            replace(message, topic=message.properties[PROPERTY_RETRY_TOPIC])
            if message.topic == retry and PROPERTY_RETRY_TOPIC in message.properties
            else message
            for message in messages
        ]
        try:
            status = self._listener(shown, context)
        except Exception:
            _log.warning("%s: the listener failed for %s", self.group, context.queue, exc_info=True)
            return None
        if not isinstance(status, ConsumeStatus):
            _log.warning(
                "%s: the listener returned %r, not a ConsumeStatus: its messages come again",
                self.group, status,
            )  # fmt: skip
            return None
        return status

    def _consume(
        self, queue: MessageQueue, held: ProcessQueue, messages: list[MessageRecord]
    ) -> None:
        """Let the listener consume a batch, and commit what is consumed."""
        if held.dropped or self._closed:
            return
        context = ConsumeContext(queue)
        held.start(messages)
        status = self._listen(messages, context)
        if held.dropped:
            return
        succeeded = status in (ConsumeStatus.CONSUME_SUCCESS, ConsumeStatus.SUCCESS)
        consumed = max(0, context.ack_index + 1) if succeeded else 0
        left = []
        for message in messages[consumed:]:
            if not self._is_clustering:
                _log.warning("%s: message %s failed, and is dropped", self.group, message.msg_id)
            elif not self._send_back(message, context.delay_level_when_next_consume):
                left.append(message)
        done = [message for message in messages if message not in left] if left else messages
        self._rebalance.commit(queue, held, held.remove(done))
        if left:
            again = [replace(m, reconsume_times=m.reconsume_times + 1) for m in left]
            self._submit_later(_AGAIN_SECONDS, partial(self._consume, queue, held, again))

    def _send_back(self, message: MessageRecord, delay_level: int) -> bool:
        times = self.options.max_reconsume_times
        try:
            self.broker.send_back(
                self.group, message, delay_level=delay_level, times_max=None if times < 0 else times
            )
        except (TubeStoreError, OSError) as error:
            self.timers.report(f"{self.group}: sending a message back", error)
            return False
        return True

    def _send_late_back(self) -> None:
        """Send messages back that their listener has had for too long."""
        with self._table_lock:
            queues = list(self._rebalance.queues.items())
        timeout_ms = self.options.consume_timeout * 60_000
        for queue, held in queues:
            for _ in range(16):
                late = held.first_late(timeout_ms)
                if late is None or held.dropped or not self._send_back(late, _LATE_LEVEL):
                    break
                self._rebalance.commit(queue, held, held.remove([late]))

    def _consume_orderly(self, queue: MessageQueue, held: ProcessQueue) -> None:
        """Let the listener consume a queue in order, until it is empty or a batch fails."""
        begin = self.broker.clock.now_ms()
        while not held.dropped and not self._closed:
            task = partial(self._consume_orderly, queue, held)
            if self._is_clustering and not held.holds_lock:
                self._submit_later(_LOCK_AGAIN_SECONDS, task)  # renewed, or dropped, until then
                return
            if self.broker.clock.now_ms() - begin > _ORDERLY_RUN_MS:
                self._submit_later(_SUSPEND_LEAST_MS / 1000, task)
                return
            messages = held.take(self.options.consume_message_batch_max_size)
            if not messages:
                return
            context = ConsumeContext(queue)
            with held.consume_lock:
                if held.dropped:
                    return
                status = self._listen(messages, context)
            if not self._ended_orderly(queue, held, messages, status, context):
                suspend = context.suspend_current_queue_time_millis
                ms = self.options.suspend_current_queue_time_millis if suspend is None else suspend
                ms = min(max(ms, _SUSPEND_LEAST_MS), _SUSPEND_MOST_MS)
                self._submit_later(ms / 1000, task)
                return

    def _ended_orderly(
        self, queue: MessageQueue, held: ProcessQueue, messages: list[MessageRecord],
        status: ConsumeStatus | None, context: ConsumeContext,
    ) -> bool:  # fmt: skip
        """Do what a batch's status asks for; returns False if the queue has to wait."""
        if status is None or status in (
            ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, ConsumeStatus.RECONSUME_LATER
        ):  # fmt: skip
            if self._waits(messages):
                held.again(messages, counted=True)
                return False
            if context.auto_commit:
                self._rebalance.commit(queue, held, held.commit(), forward=False)
            return True
        if status is ConsumeStatus.ROLLBACK and not context.auto_commit:
            held.rollback()
            return False
        if context.auto_commit or status is ConsumeStatus.COMMIT:
            self._rebalance.commit(queue, held, held.commit(), forward=False)
        return True

    def _waits(self, messages: list[MessageRecord]) -> bool:
        """Return True if a failed batch is to be tried again; else it is among the dead letters."""
        limit = self.options.max_reconsume_times
        waits = False
        for message in messages:
            given_up = 0 <= limit <= message.reconsume_times and self._send_back(message, -1)
            waits = waits or not given_up
        return waits
