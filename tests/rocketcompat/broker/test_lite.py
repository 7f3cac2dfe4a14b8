"""Consumers that are polled: subscribed and assigned queues, positions, commits."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.broker.allocation import MessageQueue
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.lite import LitePullConsumer
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.rocketcompat.broker.conftest import broker_over
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage, MemberFenced, OffsetOutOfRange, StoreClosed
from tubestore.testing import MemoryVfs


def lite(broker: Broker, **given: Any) -> LitePullConsumer:
    return LitePullConsumer(broker, "g", from_where="CONSUME_FROM_FIRST_OFFSET", **given)


def send(broker: Broker, *bodies: bytes, **given: Any) -> None:
    for body in bodies:
        broker.send(Message("orders", body, **given))
    broker.step()


def bodies(consumer: LitePullConsumer) -> list[bytes]:
    return [message.body for message in consumer.poll(0)]


@pytest.fixture
def orders(broker: Broker) -> list[MessageQueue]:
    broker.topics.create("orders", 2)
    return broker.queues("orders")


def test_a_member_polls_its_share_and_commits_it(
    broker: Broker, orders: list[MessageQueue]
) -> None:
    with lite(broker, auto_commit=False) as one, lite(broker, auto_commit=False) as two:
        one.subscribe("orders")
        two.subscribe("orders")
        assert bodies(one) == bodies(two) == []
        assert [*one.assignment, *two.assignment] == orders
        send(broker, b"a", b"b", b"c")
        assert (bodies(one), bodies(two)) == ([b"a", b"c"], [b"b"])
        assert one.committed(orders[0]) is None
        one.commit()
        assert (one.committed(orders[0]), one.committed(orders[1])) == (2, None)


def test_a_poll_returns_one_queue_s_messages_and_the_next_poll_another_s(
    broker: Broker, orders: list[MessageQueue]
) -> None:
    with lite(broker, pull_batch_size=2) as consumer:
        consumer.assign(orders)
        send(broker, *[b"%d" % n for n in range(6)])
        assert [bodies(consumer) for _ in range(5)] == [
            [b"0", b"2"], [b"1", b"3"], [b"4"], [b"5"], []
        ]  # fmt: skip


def test_the_left_member_s_messages_come_to_the_other_from_where_it_committed(
    broker: Broker, orders: list[MessageQueue]
) -> None:
    one, two = lite(broker), lite(broker)
    one.subscribe("orders")
    two.subscribe("orders")
    assert (bodies(one), bodies(two)) == ([], [])
    send(broker, b"a", b"b")
    assert bodies(one) + bodies(two) == [b"a", b"b"]
    two.close(commit=False)
    assert bodies(one) == [b"b"]
    one.close()
    assert broker.offsets.of("g", "orders") == {0: 1, 1: 1}


def test_an_exception_in_the_block_leaves_what_was_polled_uncommitted(
    broker: Broker, orders: list[MessageQueue]
) -> None:
    send(broker, b"a")

    def fails() -> None:
        with lite(broker) as consumer:
            consumer.subscribe("orders")
            assert bodies(consumer) == [b"a"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with lite(broker) as consumer:
        consumer.subscribe("orders")
        assert bodies(consumer) == [b"a"]
    assert broker.offsets.find("g", "orders", 0) == 1


def test_polls_commit_what_earlier_polls_returned_after_their_interval(
    broker: Broker, orders: list[MessageQueue], clock: ManualClock
) -> None:
    consumer = lite(broker)
    consumer.subscribe("orders")
    send(broker, b"a")
    assert bodies(consumer) == [b"a"]
    clock.advance(4_999)
    assert bodies(consumer) == []
    assert consumer.committed(orders[0]) is None
    clock.advance(1)
    send(broker, b"b", b"c")  # the third is in the first queue
    assert sorted(bodies(consumer) + bodies(consumer)) == [b"b", b"c"]
    assert consumer.committed(orders[0]) == 1
    consumer.close()
    assert consumer.committed(orders[0]) == 2


def test_a_position_can_be_set_within_the_queue(
    broker: Broker, orders: list[MessageQueue], clock: ManualClock
) -> None:
    with lite(broker) as consumer:
        consumer.assign(orders[:1])
        for _ in range(3):
            send(broker, b"x", b"y")
            clock.advance(1_000)
        assert len(consumer.poll(0)) == 3
        consumer.seek(orders[0], 2)
        assert [m.queue_offset for m in consumer.poll(0)] == [2]
        consumer.seek_to_begin(orders[0])
        assert [m.queue_offset for m in consumer.poll(0)] == [0, 1, 2]
        consumer.seek_to_end(orders[0])
        assert consumer.poll(0) == []
        assert consumer.offset_for_timestamp(orders[0], clock.now_ms() - 2_000) == 1
        with pytest.raises(OffsetOutOfRange):
            consumer.seek(orders[0], 4)
        with pytest.raises(InvalidMessage, match="not among"):
            consumer.seek(orders[1], 0)


def test_a_paused_queue_is_not_polled(broker: Broker, orders: list[MessageQueue]) -> None:
    with lite(broker) as consumer:
        consumer.assign(orders)
        consumer.pause(orders[:1])
        send(broker, b"a", b"b")
        assert (bodies(consumer), bodies(consumer)) == ([b"b"], [])
        consumer.resume(orders[:1])
        assert bodies(consumer) == [b"a"]


def test_tags_are_exact_and_others_are_passed_over(
    broker: Broker, orders: list[MessageQueue]
) -> None:
    with lite(broker) as consumer:
        consumer.subscribe("orders", "a")
        for tag in ("b", "b", "b", "b", "a"):
            send(broker, tag.encode(), tags=tag)
        assert (bodies(consumer), bodies(consumer)) == ([b"a"], [])
        consumer.commit()
        assert broker.offsets.of("g", "orders") == {0: 3, 1: 2}


def test_an_offset_that_the_queue_has_not_is_corrected(
    broker: Broker, orders: list[MessageQueue]
) -> None:
    broker.commit_offset("g", "orders", 0, 99)
    with lite(broker) as consumer:
        consumer.assign(orders[:1])
        send(broker, b"a")
        assert bodies(consumer) == []
        send(broker, b"other queue", b"b")
        assert bodies(consumer) == [b"b"]


def test_a_member_that_did_not_poll_for_too_long_is_fenced(
    broker: Broker, orders: list[MessageQueue], clock: ManualClock
) -> None:
    one, two = lite(broker, auto_commit=False), lite(broker, auto_commit=False)
    one.subscribe("orders")
    send(broker, b"a", b"b")
    assert bodies(one) == [b"a"]
    clock.advance(120_001)
    two.subscribe("orders")
    broker.step()
    clock.advance(1_000)
    assert (bodies(two), bodies(two)) == ([b"a"], [b"b"])
    with pytest.raises(MemberFenced, match="orders/0"):
        one.commit()
    two.commit()
    assert broker.offsets.of("g", "orders") == {0: 1, 1: 1}
    one.close()
    two.close()


def test_a_topic_is_left(broker: Broker, orders: list[MessageQueue]) -> None:
    with lite(broker) as consumer:
        consumer.subscribe("orders")
        assert consumer.assignment == orders
        consumer.unsubscribe("orders")
        assert consumer.assignment == []
        assert broker.consumers.subscription("g", "orders") is None


def test_subscribing_and_assigning_exclude_each_other(
    broker: Broker, orders: list[MessageQueue]
) -> None:
    with lite(broker) as one, lite(broker) as two:
        one.subscribe("orders")
        two.assign(orders)
        with pytest.raises(InvalidMessage, match="assigned"):
            one.assign(orders)
        with pytest.raises(InvalidMessage, match="subscribe"):
            two.subscribe("orders")
        with pytest.raises(InvalidMessage, match="not a queue"):
            two.assign([MessageQueue("orders", "elsewhere", 0)])
        assert two.assignment == orders
        two.assign(orders[1:])
        assert two.assignment == orders[1:]


def test_a_closed_consumer_refuses_its_calls(broker: Broker) -> None:
    consumer = lite(broker)
    consumer.close()
    consumer.close()
    with pytest.raises(StoreClosed):
        consumer.poll(0)


def test_a_reader_s_broker_is_polled_without_commits(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    store.put_message(Message("orders", b"a"))
    store.deliver_due()
    with (
        rocketcompat.open("/s", "r", store.config, vfs=memory_vfs, clock=clock) as reader,
        broker_over(reader, memory_vfs, clock) as broker,
        lite(broker, auto_commit=False) as consumer,
    ):
        consumer.assign(broker.queues("orders"))
        assert bodies(consumer) == [b"a"]
        store.put_message(Message("orders", b"b"))
        store.deliver_due()
        assert bodies(consumer) == [b"b"]


def test_with_threads_a_poll_waits_for_a_message(memory_vfs: MemoryVfs) -> None:
    with (
        rocketcompat.open("/s", "w", vfs=memory_vfs) as store,
        Broker(store, vfs=memory_vfs) as broker,
        lite(broker) as consumer,
    ):
        broker.topics.create("orders", 2)
        consumer.subscribe("orders")
        thread = threading.Thread(target=lambda: broker.send(Message("orders", b"a")))
        thread.start()
        found = consumer.poll(60)
        thread.join()
        assert [message.body for message in found] == [b"a"]
        assert consumer.poll(0.01) == []


def test_what_is_no_queue_is_refused_by_its_name(broker: Broker) -> None:
    value: Any
    with lite(broker) as consumer:
        for value in (None, "x", 7):
            for call in (consumer.committed, consumer.seek_to_begin, consumer.seek_to_end):
                with pytest.raises(InvalidMessage, match=r"^queue = "):
                    call(value)
            with pytest.raises(InvalidMessage, match=r"^queue = "):
                consumer.offset_for_timestamp(value, 0)
            with pytest.raises(InvalidMessage, match=r"^a queue = "):
                consumer.assign([value])
