"""The seeds' statements about the broker and its consumers, one test a row.

Rows DIR-05, CQ-14, CQ-15, DSP-06, POL-…, RBL-… of the inventory, with their numbers. More cases are
in `tests/rocketcompat/broker`; the real classes decide in `tests/compat/interop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rocketcompat import Message
from rocketcompat.broker.allocation import MessageQueue, allocated, average
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.pulling import (
    PULL_SUSPEND_MS,
    PUSH_SUSPEND_MS,
    HeldPull,
    PullRequest,
    PullStatus,
    Subscription,
)
from rocketcompat.broker.push import ConsumeContext, ConsumeStatus, PushConsumer, PushOptions
from rocketcompat.messages import MessageRecord
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.rocketcompat.broker.conftest import broker_over, opened
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs

ALL = Subscription("T")
FIRST = PushOptions(consume_from_where="CONSUME_FROM_FIRST_OFFSET")


@pytest.fixture
def store(memory_vfs: MemoryVfs, clock: ManualClock) -> Iterator[DefaultMessageStore]:
    with opened(memory_vfs, clock) as store:
        yield store


@pytest.fixture
def make(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> Callable[..., Broker]:
    def make(queues: int = 1, **options: Any) -> Broker:
        broker = broker_over(store, memory_vfs, clock, **options)
        broker.topics.create("T", queues, exist_ok=True)
        return broker

    return make


class Consumed:
    """A push consumer and the bodies that its listener got."""

    def __init__(self, broker: Broker, client_id: str = "a", **given: Any) -> None:
        self.bodies: list[bytes] = []
        self.broker = broker
        self.consumer = PushConsumer(
            broker, "g", {"T": "*"}, self._listen, client_id=client_id, options=FIRST, **given
        )
        self.step()

    def _listen(self, messages: Sequence[MessageRecord], context: ConsumeContext) -> ConsumeStatus:
        self.bodies += [message.body for message in messages]
        return ConsumeStatus.CONSUME_SUCCESS

    def step(self) -> None:
        self.broker.step()
        self.consumer.step()

    @property
    def queues(self) -> list[int]:
        return [queue.queue_id for queue in self.consumer.queues if queue.topic == "T"]


def held_pull(broker: Broker, suspend_ms: int, offset: int = 0) -> tuple[PullRequest, list[int]]:
    """Return a request that is held, and a list that gets an entry when it is released."""
    request = PullRequest("g", "T", 0, offset, subscription=ALL, suspend_ms=suspend_ms)
    calls: list[int] = []
    assert isinstance(broker.pull_or_hold(request, lambda: calls.append(1)), HeldPull)
    return request, calls


def advance(broker: Broker, clock: ManualClock, ms: int) -> None:
    clock.advance(ms)
    broker.step()


def test_topics_and_committed_offsets_survive_a_restart(make: Callable[..., Broker]) -> None:
    """DIR-05: run-time configuration is in `config/`."""
    with make(3) as broker:
        broker.commit_offset("g", "T", 2, 7)
    with make() as broker:
        assert broker.topics.get("T").read_queue_nums == 3
        assert broker.query_offset("g", "T", 2) == 7


def test_progress_n_means_that_all_before_n_were_consumed(make: Callable[..., Broker]) -> None:
    """CQ-14: progress is committed without holes."""
    with make() as broker:
        consumed = Consumed(broker)
        held = next(h for q, h in consumed.consumer._rebalance.queues.items() if q.topic == "T")
        for number in range(3):
            broker.send(Message("T", b"%d" % number))
        broker.step()
        consumed.consumer._round()  # pulled, and not consumed
        tasks = consumed.consumer._tasks
        first = tasks.popleft()
        while tasks:
            tasks.popleft()()
        assert held.offsets == [0]
        assert broker.offsets.find("g", "T", 0) in (None, 0)
        first()
        assert broker.offsets.find("g", "T", 0) == 3
        consumed.consumer.close()


def test_a_restarted_consumer_begins_at_the_committed_entry(make: Callable[..., Broker]) -> None:
    """CQ-15, RBL-07: progress is the logical offset."""
    with make() as broker:
        for number in range(8):
            broker.send(Message("T", b"%d" % number))
        broker.commit_offset("g", "T", 0, 5)
    with make() as broker:
        consumed = Consumed(broker)
        assert consumed.bodies == [b"5", b"6", b"7"]
        consumed.consumer.close()


def test_dispatch_wakes_a_held_pull(
    make: Callable[..., Broker], store: DefaultMessageStore
) -> None:
    """DSP-06, POL-05: the message is there as soon as it is dispatched, without a check."""
    with make() as broker:
        request, calls = held_pull(broker, PULL_SUSPEND_MS)
        broker.send(Message("T", b"x"))
        assert calls == []
        store.deliver_due()  # dispatches; no timer of the broker runs
        assert calls == [1]
        assert [message.body for message in broker.pull_now(request).messages] == [b"x"]


@pytest.mark.parametrize("arrives", [True, False])
def test_short_polling_waits_once_and_answers(
    make: Callable[..., Broker], store: DefaultMessageStore, clock: ManualClock, arrives: bool
) -> None:
    """POL-01, POL-02: 1 s, then the answer, with the message that arrived meanwhile or without."""
    with make(long_polling_enable=False) as broker:
        store.set_arrival_listener(None)
        request, calls = held_pull(broker, PULL_SUSPEND_MS)
        if arrives:
            broker.send(Message("T", b"x"))
        advance(broker, clock, 999)
        assert calls == []
        advance(broker, clock, 1)
        assert calls == [1]
        wanted = PullStatus.FOUND if arrives else PullStatus.NO_NEW_MSG
        assert broker.pull_now(request).status is wanted


def test_long_polling_holds_a_request_as_long_as_it_asks(
    make: Callable[..., Broker], clock: ManualClock
) -> None:
    """POL-03: 20 s by a pull consumer, 15 s by a push consumer."""
    with make() as broker:
        _, pull = held_pull(broker, PULL_SUSPEND_MS)
        _, push = held_pull(broker, PUSH_SUSPEND_MS)
        for _ in range(2):
            advance(broker, clock, 5_000)
        assert (pull, push) == ([], [])
        advance(broker, clock, 5_000)
        assert (pull, push) == ([], [1])
        advance(broker, clock, 5_000)
        assert (pull, push) == ([1], [1])


def test_held_requests_are_checked_every_5_s(
    make: Callable[..., Broker], store: DefaultMessageStore, clock: ManualClock
) -> None:
    """POL-04: without the wake-up a message is delivered within 5 s."""
    with make() as broker:
        store.set_arrival_listener(None)
        request, calls = held_pull(broker, PULL_SUSPEND_MS)
        broker.send(Message("T", b"x"))
        advance(broker, clock, 5_000)
        assert calls == [1]
        assert len(broker.pull_now(request).messages) == 1


def test_queues_come_from_the_topic_and_clients_from_heartbeats(
    make: Callable[..., Broker], clock: ManualClock
) -> None:
    """RBL-01, RBL-02, RBL-03: a client without heartbeats leaves the list."""
    with make(2) as broker:
        assert broker.queues("T") == [MessageQueue("T", "broker-a", n) for n in range(2)]
        broker.heartbeat("g", "b", [ALL])
        broker.heartbeat("g", "a", [ALL])
        assert sorted(broker.consumers.client_ids("g")) == ["a", "b"]
        clock.advance(100_000)
        broker.heartbeat("g", "a", [ALL])
        advance(broker, clock, 30_000)
        assert broker.consumers.client_ids("g") == ["a"]


def test_average_allocation_shares_sorted_queues_like_pages() -> None:
    """RBL-04, RBL-05: 8 queues of 3 consumers are 3, 3 and 2, whatever the order."""
    queues = [MessageQueue("T", "b", n) for n in (5, 0, 7, 2, 1, 6, 3, 4)]
    shares = [allocated(average, "g", name, queues, "bca") for name in "abc"]
    assert [[q.queue_id for q in share] for share in shares] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    few = [allocated(average, "g", name, queues[:2], "abc") for name in "abc"]
    assert [len(share) for share in few] == [1, 1, 0]


def test_only_changed_queues_start_and_stop_when_a_member_comes(
    make: Callable[..., Broker], clock: ManualClock
) -> None:
    """RBL-06: the share is compared with the table of process queues."""
    with make(4) as broker:
        first = Consumed(broker, "a")
        before = dict(first.consumer._rebalance.queues)
        second = Consumed(broker, "b")
        for _ in range(2):
            clock.advance(1_000)
            first.step()
            second.step()
        assert (first.queues, second.queues) == ([0, 1], [2, 3])
        after = first.consumer._rebalance.queues
        assert all(before[queue] is held for queue, held in after.items() if queue.topic == "T")
        assert all(before[queue].dropped for queue in before.keys() - after.keys())
        for consumed in (first, second):
            consumed.consumer.close()


def test_new_queues_get_pull_requests_that_consume(make: Callable[..., Broker]) -> None:
    """RBL-08: each new queue is pulled, from the rebalance to the listener."""
    with make(3) as broker:
        consumed = Consumed(broker)
        for number in range(6):
            broker.send(Message("T", b"%d" % number))
        consumed.step()
        assert sorted(consumed.bodies) == [b"%d" % number for number in range(6)]
        consumed.consumer.close()
