"""The broker itself: sending, sending back, and its threads."""

from __future__ import annotations

import doctest
import threading
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.broker import allocation, pulling
from rocketcompat.broker import broker as broker_module
from rocketcompat.broker.broker import Broker, BrokerOptions
from rocketcompat.broker.pulling import PullRequest, Subscription
from rocketcompat.files.broker_config import BrokerConfig, SubscriptionGroupConfig, TopicConfig
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.rocketcompat.broker.conftest import broker_over, opened
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage, InvalidName, StoreClosed
from tubestore.testing import MemoryVfs


@pytest.mark.parametrize("module", [allocation, broker_module, pulling])
def test_the_examples_of_the_room_do_what_they_show(module: object) -> None:
    found = doctest.testmod(module)  # type: ignore[arg-type]
    assert found.attempted
    assert not found.failed


def test_messages_go_to_the_queues_in_turn(broker: Broker) -> None:
    broker.topics.create("orders", 3)
    sent = [broker.send(Message("orders", b"x")) for _ in range(5)]
    assert [result.queue.queue_id for result in sent] == [0, 1, 2, 0, 1]
    assert sent[3].put.queue_offset == 1


def test_a_key_or_a_number_chooses_the_queue(broker: Broker) -> None:
    broker.topics.update(TopicConfig("orders", read_queue_nums=6, write_queue_nums=4))
    by_key = {broker.send(Message("orders", b"x"), key="order-7").queue.queue_id for _ in range(3)}
    assert by_key == {0}
    assert broker.send(Message("orders", b"x"), queue_id=5).queue.queue_id == 5
    for wrong in (6, -1, "0", True):
        with pytest.raises(InvalidMessage, match="queue_id"):
            broker.send(Message("orders", b"x"), queue_id=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="key"):
        broker.send(Message("orders", b"x"), key=7)  # type: ignore[arg-type]


def test_a_topic_without_write_permission_or_queues_is_refused(
    broker: Broker, store: DefaultMessageStore
) -> None:
    broker.topics.update(TopicConfig("closed", perm=4))
    broker.topics.update(TopicConfig("empty", write_queue_nums=0))
    for topic in ("closed", "empty"):
        with pytest.raises(InvalidName, match=topic):
            broker.send(Message(topic, b"x"))
    assert store.max_physical_offset == 0


def test_message_ids_have_the_broker_s_host_and_unique_ids_find_messages(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with Broker(
        store, store_host="10.1.2.3:4567", background=False, vfs=memory_vfs, clock=clock
    ) as broker:
        sent = [broker.send(Message("orders", b"%d" % n)) for n in range(3)]
        store.deliver_due()
        record = store.look_message_by_id(sent[1].put.msg_id)
        assert record.store_host == "10.1.2.3:4567"
        assert len({result.msg_id for result in sent}) == 3
        assert all(len(result.msg_id) == 32 for result in sent)
        found = store.query_message("orders", sent[2].msg_id)
        assert [message.body for message in found] == [b"2"]


def test_an_id_that_the_producer_gave_stays(broker: Broker, store: DefaultMessageStore) -> None:
    sent = broker.send(Message("orders", b"x", properties={"UNIQ_KEY": "mine"}))
    assert sent.msg_id == "mine"
    text = broker.send(Message("orders", b"x", properties="A\x01b"))
    assert store.look_message(text.put.physical_offset).properties_text == "A\x01b"


def test_a_delay_among_the_properties_delays_in_both_versions(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with (
        opened(memory_vfs, clock, compat="5.3.3") as store,
        broker_over(store, memory_vfs, clock) as broker,
    ):
        sent = broker.send(Message("orders", b"x", properties={"DELAY": "1"}))
        assert store.look_message(sent.put.physical_offset).topic == "SCHEDULE_TOPIC_XXXX"
        broker.step()
        assert store.max_offset_in_queue("orders", sent.queue.queue_id) == 0
        clock.advance(1_000)
        broker.step()
        broker.step()
        assert store.max_offset_in_queue("orders", sent.queue.queue_id) == 1


def test_what_a_group_sends_back_comes_again_and_ends_in_its_dead_letters(
    broker: Broker, store: DefaultMessageStore, clock: ManualClock
) -> None:
    broker.groups.update(SubscriptionGroupConfig("g", retry_max_times=1))
    sent = broker.send(Message("orders", b"x"))
    record = store.look_message(sent.put.physical_offset)
    broker.send_back("g", record)
    clock.advance(10_000)
    for _ in range(2):
        broker.step()
    (again,) = store.get_message("%RETRY%g", 0, 0).messages
    assert again.reconsume_times == 1
    assert again.properties["RETRY_TOPIC"] == "orders"
    assert again.properties["ORIGIN_MESSAGE_ID"] == record.msg_id
    broker.send_back("g", again)
    broker.step()
    (dead,) = store.get_message("%DLQ%g", 0, 0).messages
    assert dead.body == b"x"
    assert {"%RETRY%g", "%DLQ%g"} <= {*broker.topics.names()}


def test_a_group_without_retry_queues_drops_what_it_sends_back(
    broker: Broker, store: DefaultMessageStore
) -> None:
    broker.groups.update(SubscriptionGroupConfig("g", retry_queue_nums=0))
    sent = broker.send(Message("orders", b"x"))
    assert broker.send_back("g", store.look_message(sent.put.physical_offset)) is None


def test_a_group_that_has_not_begun_is_at_0_while_the_queue_s_begin_is_in_memory(
    broker: Broker, store: DefaultMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.topics.create("orders", 1)
    assert broker.query_offset("g", "orders", 0) == 0
    for _ in range(9):
        broker.send(Message("orders", b"x"))
    broker.step()
    assert broker.query_offset("g", "orders", 0) == 0
    monkeypatch.setattr(broker_module, "physical_memory_bytes", lambda: 250)
    assert broker.query_offset("g", "orders", 0) is None
    broker.commit_offset("g", "orders", 0, 3)
    assert broker.query_offset("g", "orders", 0) == 3


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_message_for_the_timer_wheel_is_refused_and_not_delivered_at_once(
    broker: Broker, store: DefaultMessageStore, name: str
) -> None:
    for given in ({name: "5"}, f"{name}\x015"):
        with pytest.raises(InvalidMessage, match=f"{name}: .* no timer wheel"):
            broker.send(Message("orders", b"x", properties=given))
    assert store.max_physical_offset == 0


def test_a_group_that_consumes_by_pop_is_refused(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    modes = {"orders": {"g": {"mode": "POP"}, "h": {"mode": "PULL"}}}
    files = BrokerConfig(memory_vfs, "/s")
    files.write("messageRequestMode.json", {"messageRequestModeMap": modes})
    with broker_over(store, memory_vfs, clock) as broker:
        with pytest.raises(InvalidName, match="by pop"):
            broker.heartbeat("g", "me", [Subscription("orders")])
        broker.heartbeat("g", "me", [Subscription("others")])
        broker.heartbeat("h", "me", [Subscription("orders")])


@pytest.mark.parametrize(
    "options",
    [
        {"broker_name": ""},
        {"short_polling_time_mills": 0},
        {"default_topic_queue_nums": 0},
        {"flush_consumer_offset_interval": "5"},
        {"transaction_check_max": True},
    ],
)
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, object]) -> None:
    with pytest.raises(InvalidMessage, match=next(iter(options))):
        BrokerOptions(**options)  # type: ignore[arg-type]


def test_a_wrong_host_is_refused(store: DefaultMessageStore) -> None:
    with pytest.raises(InvalidMessage, match="store_host"):
        Broker(store, store_host="nowhere", background=False)


def test_a_closed_broker_refuses_its_calls(broker: Broker) -> None:
    broker.close()
    broker.close()
    for call in (
        lambda: broker.send(Message("orders", b"x")),
        lambda: broker.commit_offset("g", "orders", 0, 1),
        lambda: broker.heartbeat("g", "me", []),
        broker.step,
    ):
        with pytest.raises(StoreClosed):
            call()


def test_with_threads_a_pull_is_answered_by_the_message_it_waits_for(
    memory_vfs: MemoryVfs,
) -> None:
    with (
        rocketcompat.open("/s", "w", vfs=memory_vfs) as store,
        Broker(store, vfs=memory_vfs) as broker,
    ):
        broker.topics.create("orders", 1)
        request = PullRequest(
            "g", "orders", 0, 0, subscription=Subscription("orders"), suspend_ms=60_000
        )
        found: list[bytes] = []
        thread = threading.Thread(
            target=lambda: found.extend(m.body for m in broker.pull(request).messages)
        )
        thread.start()
        broker.send(Message("orders", b"hello"))
        thread.join(30)
        assert found == [b"hello"]


@pytest.mark.parametrize("value", [None, 1, "x", b"x", [7], 1.5], ids=ascii)
def test_an_argument_of_another_class_is_refused_by_its_name(broker: Broker, value: Any) -> None:
    broker.topics.create("orders", 1)
    with pytest.raises(InvalidMessage, match=r"^message = "):
        broker.send(value)
    with pytest.raises(InvalidMessage, match=r"^record = "):
        broker.send_back("g", value)
    with pytest.raises(InvalidMessage, match=r"^a subscription = "):
        broker.heartbeat("g", "client", [value])
    if value is not None:  # what the group subscribed to
        with pytest.raises(InvalidMessage, match=r"^subscription = "):
            PullRequest("g", "orders", 0, 0, subscription=value)
    assert broker.groups.names() == []
