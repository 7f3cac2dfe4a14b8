"""Which queues a consumer has, where they begin, and what it may commit."""

from __future__ import annotations

import doctest

import pytest

from rocketcompat import Message
from rocketcompat.broker import rebalance as module
from rocketcompat.broker.allocation import MessageQueue
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.process_queue import ProcessQueue
from rocketcompat.broker.pulling import Subscription
from rocketcompat.broker.rebalance import Rebalance, pull_from_where
from rocketcompat.store.default_message_store import DefaultMessageStore
from tubestore.clock import ManualClock


class Member:
    """A rebalance that notes what came and what went."""

    def __init__(self, broker: Broker, client_id: str, **given: object) -> None:
        self.added: list[tuple[int, int]] = []
        self.dropped: list[int] = []
        self.keeps = False
        self.own = Rebalance(
            broker,
            "g",
            client_id,
            added=self._add,
            removed=self._remove,
            **given,  # type: ignore[arg-type]
        )
        self.own.subscriptions["orders"] = Subscription("orders")
        self.own.heartbeat(lambda: None)

    def _add(self, queue: MessageQueue, held: ProcessQueue, offset: int) -> None:
        self.added.append((queue.queue_id, offset))

    def _remove(self, queue: MessageQueue, held: ProcessQueue) -> bool:
        self.dropped.append(queue.queue_id)
        return not self.keeps

    @property
    def has(self) -> list[int]:
        return sorted(queue.queue_id for queue in self.own.queues)


def test_the_example_does_what_it_shows() -> None:
    assert doctest.testmod(module) == (0, 1)


@pytest.mark.parametrize(
    ("policy", "topic", "committed", "wanted"),
    [
        ("CONSUME_FROM_LAST_OFFSET", "orders", None, 9),
        ("CONSUME_FROM_LAST_OFFSET", "%RETRY%g", None, 0),
        ("CONSUME_FROM_FIRST_OFFSET", "orders", None, 0),
        ("CONSUME_FROM_FIRST_OFFSET", "%RETRY%g", None, 0),
        ("CONSUME_FROM_TIMESTAMP", "orders", None, 4),
        ("CONSUME_FROM_TIMESTAMP", "%RETRY%g", None, 9),
        ("CONSUME_FROM_LAST_OFFSET", "orders", 3, 3),
        ("CONSUME_FROM_FIRST_OFFSET", "orders", 3, 3),
        ("CONSUME_FROM_TIMESTAMP", "orders", 0, 0),
    ],
)
def test_a_queue_begins_where_it_was_committed_or_by_the_policy(
    policy: str, topic: str, committed: int | None, wanted: int
) -> None:
    found = pull_from_where(policy, topic, committed, lambda: 9, lambda: 4)  # type: ignore[arg-type]
    assert found == wanted


def test_only_changed_queues_come_and_go_when_a_member_joins_and_leaves(broker: Broker) -> None:
    broker.topics.create("orders", 4)
    first, second = Member(broker, "a"), Member(broker, "b")
    assert first.own.rebalance()
    assert second.own.rebalance()
    assert (first.has, second.has) == ([0, 1], [2, 3])
    assert not first.own.rebalance()
    second.own.leave()
    assert first.own.rebalance()
    assert first.has == [0, 1, 2, 3]
    assert [queue for queue, _ in first.added] == [0, 1, 2, 3]
    assert first.dropped == []


def test_a_topic_that_does_not_exist_yet_is_waited_for(broker: Broker) -> None:
    member = Member(broker, "a")
    assert not member.own.rebalance()
    broker.topics.create("orders", 1)
    assert member.own.rebalance()
    assert member.has == [0]


def test_a_queue_of_a_topic_that_is_not_wanted_any_more_goes(broker: Broker) -> None:
    broker.topics.create("orders", 1)
    member = Member(broker, "a")
    member.own.rebalance()
    member.own.subscriptions.clear()
    assert member.own.rebalance()
    assert (member.has, member.dropped) == ([], [0])


def test_a_client_that_the_broker_has_expired_keeps_no_queue(
    broker: Broker, clock: ManualClock
) -> None:
    broker.topics.create("orders", 2)
    first, second = Member(broker, "a"), Member(broker, "b")
    first.own.rebalance()
    clock.advance(120_001)
    second.own.heartbeat(lambda: None)
    broker.step()
    first.own.rebalance()
    second.own.rebalance()
    assert (first.has, second.has) == ([], [0, 1])


def test_broadcasting_gives_each_client_all_queues_and_offsets_of_its_own(broker: Broker) -> None:
    broker.topics.create("orders", 2)
    members = [Member(broker, name, model="BROADCASTING") for name in ("1@a", "1@b")]
    for member in members:
        member.own.rebalance()
    assert [member.has for member in members] == [[0, 1], [0, 1]]
    queue, held = next(iter(members[0].own.queues.items()))
    members[0].own.commit(queue, held, 5)
    assert broker.offsets.of("g%BROADCAST%1%a", "orders") == {queue.queue_id: 5}
    assert broker.offsets.of("g%BROADCAST%1%b", "orders") == {}


def test_a_dropped_queue_commits_nothing(broker: Broker) -> None:
    broker.topics.create("orders", 1)
    member = Member(broker, "a")
    member.own.rebalance()
    ((queue, held),) = member.own.queues.items()
    assert member.own.commit(queue, held, 5)
    held.drop()
    assert not member.own.commit(queue, held, 9)
    assert broker.query_offset("g", "orders", 0) == 5


def test_a_commit_goes_forward_unless_it_may_go_back(broker: Broker) -> None:
    broker.topics.create("orders", 1)
    member = Member(broker, "a")
    member.own.rebalance()
    ((queue, held),) = member.own.queues.items()
    for offset, forward, wanted in ((5, True, 5), (3, True, 5), (3, False, 3), (-1, False, 3)):
        member.own.commit(queue, held, offset, forward=forward)
        assert broker.query_offset("g", "orders", 0) == wanted


def test_a_member_gets_a_queue_with_its_lock_only(broker: Broker, clock: ManualClock) -> None:
    broker.topics.create("orders", 2)
    broker.locks.lock("g", "other", broker.queues("orders")[:1])
    member = Member(broker, "a")
    member.own.rebalance()
    assert member.has == [1]
    broker.locks.unlock("g", "other", broker.queues("orders"))
    member.own.rebalance()
    assert member.has == [0, 1]
    clock.advance(60_001)
    broker.locks.lock("g", "other", broker.queues("orders")[:1])
    member.own.lock_all()
    assert [held.dropped for _, held in sorted(member.own.queues.items())] == [True, False]
    member.own.rebalance()
    assert member.has == [1]
    assert member.own.waits


def test_a_member_that_was_stopped_commits_nothing_for_a_queue_that_another_has_taken(
    broker: Broker, clock: ManualClock
) -> None:
    broker.topics.create("orders", 1)
    stopped = Member(broker, "a")
    stopped.own.rebalance()
    ((queue, held),) = stopped.own.queues.items()
    clock.advance(120_001)
    other = Member(broker, "b")
    broker.step()
    other.own.rebalance()
    assert other.has == [0]
    assert not stopped.own.commit(queue, held, 5)
    assert broker.offsets.find("g", "orders", 0) is None


def test_a_queue_that_cannot_be_removed_yet_is_dropped_and_tried_again(broker: Broker) -> None:
    broker.topics.create("orders", 1)
    member = Member(broker, "b")
    member.own.rebalance()
    member.keeps = True
    other = Member(broker, "a")
    member.own.rebalance()
    assert member.has == [0]
    assert all(held.dropped for held in member.own.queues.values())
    member.keeps = False
    member.own.rebalance()
    assert (member.has, member.dropped) == ([], [0, 0])
    other.own.rebalance()
    assert other.has == [0]


def test_a_queue_without_pulls_for_120_s_begins_again_where_it_was_committed(
    broker: Broker, clock: ManualClock
) -> None:
    broker.topics.create("orders", 1)
    member = Member(broker, "a")
    member.own.rebalance()
    ((queue, held),) = member.own.queues.items()
    member.own.commit(queue, held, 7)
    clock.advance(120_001)
    member.own.rebalance()
    assert member.added == [(0, 0), (0, 7)]


def test_a_queue_begins_at_a_time(
    broker: Broker, store: DefaultMessageStore, clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    broker.topics.create("orders", 1)
    for _ in range(4):
        broker.send(Message("orders", b"x"))
        clock.advance(1_000)
    broker.step()
    monkeypatch.setattr(broker, "query_offset", lambda *given: None)
    member = Member(
        broker, "a", from_where="CONSUME_FROM_TIMESTAMP", from_time_ms=clock.now_ms() - 2_000
    )
    member.own.rebalance()
    assert member.added == [(0, 2)]
