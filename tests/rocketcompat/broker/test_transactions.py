"""Half messages, commits, rollbacks, and what the broker asks about later."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from rocketcompat import Message
from rocketcompat.broker import transactions as module
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.tables import CHECK_TIMES_TOPIC, HALF_TOPIC, OP_TOPIC
from rocketcompat.broker.transactions import (
    COMMIT,
    ROLLBACK,
    SYSTEM_GROUP,
    UNKNOWN,
    HalfMessage,
    Transactions,
    TransactionState,
)
from rocketcompat.formats import TRANSACTION_COMMIT
from rocketcompat.messages import MessageRecord
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.rocketcompat.broker.conftest import broker_over
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage
from tubestore.testing import MemoryVfs

MINUTE = 60_000


class Producer:
    """A producer group with a checker that notes what it was asked."""

    def __init__(self, broker: Broker, answer: Any = UNKNOWN) -> None:
        self.broker, self.answer = broker, answer
        self.asked: list[MessageRecord] = []
        self.transactions = Transactions(broker)
        self.transactions.register("payments", self.check)
        broker.topics.create("orders", 1, exist_ok=True)

    def check(self, message: MessageRecord) -> TransactionState:
        self.asked.append(message)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def prepare(self, body: bytes = b"x", **given: Any) -> HalfMessage:
        half = self.transactions.prepare("payments", Message("orders", body, **given))
        self.broker.step()
        return half

    def end(self, half: HalfMessage, state: TransactionState, group: str = "payments") -> Any:
        put = self.transactions.end(group, half.put.physical_offset, half.put.queue_offset, state)
        self.broker.step()
        return put

    def round(self, clock: ManualClock, ms: int = MINUTE) -> None:
        """Let a check come."""
        clock.advance(ms)
        self.broker.step()
        self.broker.step()


@pytest.fixture
def producer(broker: Broker) -> Producer:
    return Producer(broker)


def found(store: DefaultMessageStore, topic: str = "orders") -> list[MessageRecord]:
    return store.get_message(topic, 0, 0).messages


def test_the_example_does_what_it_shows() -> None:
    assert not doctest.testmod(module).failed


def test_a_half_message_is_seen_only_once_it_is_committed(
    producer: Producer, store: DefaultMessageStore
) -> None:
    half = producer.prepare(b"paid", tags="t", keys="k")
    assert found(store) == []
    producer.end(half, COMMIT)
    (message,) = found(store)
    assert (message.body, message.properties["TAGS"]) == (b"paid", "t")
    assert message.sys_flag & TRANSACTION_COMMIT == TRANSACTION_COMMIT
    assert message.prepared_transaction_offset == half.put.physical_offset
    assert message.properties["UNIQ_KEY"] == half.msg_id
    assert [m.body for m in store.query_message("orders", "k")] == [b"paid"]


def test_a_rolled_back_message_is_never_seen_nor_asked_about(
    producer: Producer, store: DefaultMessageStore, clock: ManualClock
) -> None:
    producer.end(producer.prepare(), ROLLBACK)
    producer.round(clock)
    assert (found(store), producer.asked) == ([], [])
    assert [op.body for op in found(store, OP_TOPIC)] == [b"0"]
    assert found(store, OP_TOPIC)[0].properties["TAGS"] == "d"


def test_records_are_those_of_a_real_broker(producer: Producer, store: DefaultMessageStore) -> None:
    producer.prepare(b"x", properties={"a": "b"}, sys_flag=4)
    (half,) = found(store, HALF_TOPIC)
    wanted = {"a": "b", "TRAN_MSG": "true", "PGROUP": "payments", "REAL_TOPIC": "orders",
              "REAL_QID": "0"}  # fmt: skip
    assert wanted.items() <= half.properties.items()
    assert half.sys_flag & 12 == 0
    assert half.queue_id == 0


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_a_producer_is_asked_about_an_open_message_and_its_answer_counts(
    producer: Producer, store: DefaultMessageStore, clock: ManualClock, state: TransactionState
) -> None:
    producer.answer = state
    producer.prepare(b"open")
    producer.round(clock)
    assert [(m.topic, m.body) for m in producer.asked] == [("orders", b"open")]
    assert [m.body for m in found(store)] == ([b"open"] if state is COMMIT else [])
    producer.round(clock)
    assert len(producer.asked) == 1


@pytest.mark.parametrize("answer", [UNKNOWN, ValueError("no"), None])
def test_a_message_without_an_answer_is_asked_about_until_its_limit(
    producer: Producer, store: DefaultMessageStore, clock: ManualClock, answer: Any
) -> None:
    producer.answer = answer
    producer.prepare(b"open")
    for _ in range(20):
        producer.round(clock)
    assert len(producer.asked) == producer.broker.options.transaction_check_max == 15
    assert [m.body for m in found(store, CHECK_TIMES_TOPIC)] == [b"open"]
    assert found(store) == []


def test_a_young_message_is_left_alone(producer: Producer, clock: ManualClock) -> None:
    clock.advance(MINUTE - 5_999)
    producer.broker.step()
    producer.prepare()
    producer.round(clock, 5_999)
    assert producer.asked == []
    producer.round(clock)
    assert len(producer.asked) == 1


def test_an_own_immunity_counts_and_the_message_behind_it_is_not_held_up(
    producer: Producer, store: DefaultMessageStore, clock: ManualClock
) -> None:
    immune = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"}
    first = producer.prepare(b"immune", properties=immune)
    producer.prepare(b"plain")
    producer.round(clock)
    assert [m.body for m in producer.asked] == [b"plain"]
    producer.end(first, COMMIT)  # by the place that the producer has: the message was put again
    producer.round(clock)
    assert {m.body for m in producer.asked} == {b"plain"}
    assert [m.body for m in found(store)] == [b"immune"]


def test_a_message_older_than_the_log_keeps_is_put_aside_without_a_question(
    producer: Producer, store: DefaultMessageStore, clock: ManualClock
) -> None:
    producer.prepare(b"old")
    producer.round(clock, (72 * 3600 + 1) * 1000)
    assert producer.asked == []
    assert [m.body for m in found(store, CHECK_TIMES_TOPIC)] == [b"old"]


def test_the_checks_go_on_where_they_were_after_a_restart(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with broker_over(store, memory_vfs, clock) as broker:
        producer = Producer(broker)
        for number in range(40):
            producer.end(producer.prepare(b"%d" % number), ROLLBACK)
        producer.prepare(b"open")
        producer.round(clock)
        assert broker.offsets.find(SYSTEM_GROUP, HALF_TOPIC, 0) == 41
        assert broker.offsets.find(SYSTEM_GROUP, OP_TOPIC, 0) == 40
    with broker_over(store, memory_vfs, clock) as broker:
        producer = Producer(broker, answer=COMMIT)
        producer.round(clock)
        assert [m.body for m in producer.asked] == [b"open"]
        assert [m.body for m in found(store)] == [b"open"]


def test_an_op_message_of_a_newer_broker_ends_several(
    producer: Producer, store: DefaultMessageStore, clock: ManualClock
) -> None:
    producer.prepare(b"a")
    producer.prepare(b"b")
    producer.broker.topics.for_group(OP_TOPIC, 1)
    store.put_message(Message(OP_TOPIC, b"0,1,", tags="d"))
    producer.broker.step()
    producer.round(clock)
    assert producer.asked == []


def test_only_its_own_group_ends_a_message_at_its_place(producer: Producer) -> None:
    half = producer.prepare()
    sent = producer.broker.send(Message("orders", b"x"))
    for group, physical, offset in (
        ("others", half.put.physical_offset, 0),
        ("payments", half.put.physical_offset, 1),
        ("payments", sent.put.physical_offset, 0),
    ):
        with pytest.raises(InvalidMessage, match="is not the half message"):
            producer.transactions.end(group, physical, offset, COMMIT)


def test_a_transaction_whose_code_fails_is_asked_about(
    producer: Producer, store: DefaultMessageStore, clock: ManualClock
) -> None:
    producer.answer = COMMIT

    def failing(half: HalfMessage) -> TransactionState:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        producer.transactions.send("payments", Message("orders", b"x"), failing)
    with pytest.raises(InvalidMessage, match="execute"):
        producer.transactions.send("payments", Message("orders", b"y"), lambda half: None)  # type: ignore[arg-type,return-value]
    producer.broker.step()
    producer.round(clock)
    assert [m.body for m in found(store)] == [b"x", b"y"]


def test_a_delayed_transactional_message_is_refused(
    producer: Producer, store: DefaultMessageStore
) -> None:
    for given in ({"delay_level": 1}, {"properties": {"DELAY": "3"}}):
        with pytest.raises(InvalidMessage, match="delay"):
            producer.transactions.prepare("payments", Message("orders", b"x", **given))  # type: ignore[arg-type]
    assert store.max_physical_offset == 0


def test_a_group_without_a_checker_keeps_its_messages_for_later(
    broker: Broker, store: DefaultMessageStore, clock: ManualClock
) -> None:
    producer = Producer(broker, answer=COMMIT)
    producer.transactions._checkers.clear()
    producer.prepare(b"x")
    producer.round(clock)
    producer.transactions.register("payments", producer.check)
    producer.round(clock)
    assert [m.body for m in found(store)] == [b"x"]


def test_a_half_message_of_another_class_is_refused(broker: Broker) -> None:
    value: Any = None
    with pytest.raises(InvalidMessage, match=r"^message = "):
        Transactions(broker).prepare("g", value)
