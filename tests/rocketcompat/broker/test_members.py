"""Heartbeats, the consumer table, and locks of queues."""

from __future__ import annotations

import pytest

from rocketcompat.broker.allocation import MessageQueue
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.members import ConsumerTable, QueueLocks
from rocketcompat.broker.pulling import Subscription
from rocketcompat.files.broker_config import SubscriptionGroupConfig
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage

ORDERS = Subscription("orders")
QUEUES = [MessageQueue("orders", "b", n) for n in range(2)]


@pytest.fixture
def table(clock: ManualClock) -> ConsumerTable:
    return ConsumerTable(clock)


@pytest.fixture
def locks(clock: ManualClock) -> QueueLocks:
    return QueueLocks(clock)


def test_a_client_without_heartbeats_for_120_s_leaves(
    table: ConsumerTable, clock: ManualClock
) -> None:
    table.heartbeat("g", "a", [ORDERS])
    clock.advance(60_000)
    table.heartbeat("g", "b", [ORDERS])
    clock.advance(60_000)
    table.expire()
    assert table.client_ids("g") == ["a", "b"]
    clock.advance(1)
    table.expire()
    assert table.client_ids("g") == ["b"]
    clock.advance(60_000)
    table.expire()
    assert table.client_ids("g") == []
    assert table.subscription("g", "orders") is None


def test_all_members_are_notified_when_one_comes_or_goes(table: ConsumerTable) -> None:
    calls: list[str] = []
    for name in ("a", "b"):
        table.heartbeat("g", name, [ORDERS], notify=lambda name=name: calls.append(name))  # type: ignore[misc]
    assert calls == ["a", "a", "b"]
    table.heartbeat("g", "b", [ORDERS], notify=lambda: calls.append("again"))
    assert calls == ["a", "a", "b"]
    table.leave("g", "b")
    assert calls == ["a", "a", "b", "a"]


def test_a_topic_that_comes_or_goes_is_a_change_and_a_new_version_is_not(
    table: ConsumerTable,
) -> None:
    assert table.heartbeat("g", "a", [ORDERS])
    assert not table.heartbeat("g", "a", [Subscription("orders", "x", version=1)])
    assert table.subscription("g", "orders") == Subscription("orders", "x", version=1)
    assert not table.heartbeat("g", "a", [ORDERS])  # an older version
    assert table.subscription("g", "orders") == Subscription("orders", "x", version=1)
    assert table.heartbeat("g", "a", [Subscription("others")])
    assert table.subscription("g", "orders") is None
    assert table.groups_of("others") == ["g"]


def test_a_queue_has_one_client_until_its_lock_is_60_s_old(
    locks: QueueLocks, clock: ManualClock
) -> None:
    assert locks.lock("g", "a", QUEUES) == {*QUEUES}
    assert locks.lock("g", "b", QUEUES) == set()
    assert locks.lock("other", "b", QUEUES) == {*QUEUES}
    clock.advance(60_000)
    assert locks.lock("g", "b", QUEUES[:1]) == set()
    assert locks.lock("g", "a", QUEUES[1:]) == {QUEUES[1]}
    clock.advance(1)
    assert locks.lock("g", "b", QUEUES) == {QUEUES[0]}


def test_only_the_holder_unlocks(locks: QueueLocks) -> None:
    locks.lock("g", "a", QUEUES)
    locks.unlock("g", "b", QUEUES)
    assert locks.lock("g", "b", QUEUES) == set()
    locks.unlock("g", "a", QUEUES[:1])
    assert locks.lock("g", "b", QUEUES) == {QUEUES[0]}


def test_a_heartbeat_makes_the_group_and_its_retry_topic(broker: Broker) -> None:
    broker.heartbeat("mailers", "a", [ORDERS])
    assert broker.groups.names() == ["mailers"]
    assert broker.topics.get("%RETRY%mailers").read_queue_nums == 1
    assert broker.consumers.client_ids("mailers") == ["a"]


def test_a_group_may_be_without_notifications(broker: Broker) -> None:
    row = SubscriptionGroupConfig("mailers", notify_consumer_ids_changed_enable=False)
    broker.groups.update(row)
    broker.heartbeat("mailers", "a", [ORDERS], notify=lambda: pytest.fail("was notified"))


def test_the_broker_s_step_removes_expired_clients(broker: Broker, clock: ManualClock) -> None:
    broker.heartbeat("mailers", "a", [ORDERS])
    clock.advance(120_001)
    broker.step()
    assert broker.consumers.client_ids("mailers") == []


@pytest.mark.parametrize("given", [{"client_id": ""}, {"client_id": "a", "model": "CLUSTER"}])
def test_a_wrong_heartbeat_is_refused(broker: Broker, given: dict[str, str]) -> None:
    with pytest.raises(InvalidMessage, match=r"client_id|model"):
        broker.heartbeat("g", given.pop("client_id"), [], **given)  # type: ignore[arg-type]
