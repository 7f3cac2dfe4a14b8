"""Topics, groups and offsets: what is kept below `config`, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.broker.broker import Broker
from rocketcompat.broker.tables import DEFAULT_TOPIC
from rocketcompat.files.broker_config import BrokerConfig, SubscriptionGroupConfig, TopicConfig
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.rocketcompat.broker.conftest import broker_over
from tubestore.clock import ManualClock
from tubestore.errors import (
    CorruptRecord,
    InvalidMessage,
    InvalidName,
    ReadOnlyStore,
    TopicExists,
    UnknownTopic,
)
from tubestore.testing import MemoryVfs


def files(vfs: MemoryVfs) -> BrokerConfig:
    return BrokerConfig(vfs, "/s")


def test_a_created_topic_is_in_the_file_at_once(broker: Broker, memory_vfs: MemoryVfs) -> None:
    broker.topics.create("orders", 4, attributes={"queue.type": "SimpleCQ"})
    row = files(memory_vfs).topics()["orders"]
    assert (row.read_queue_nums, row.write_queue_nums, row.perm) == (4, 4, 6)
    assert row.attributes == {"queue.type": "SimpleCQ"}


def test_a_topic_that_is_there_is_not_made_again(broker: Broker) -> None:
    broker.topics.create("orders", 4)
    with pytest.raises(TopicExists):
        broker.topics.create("orders", 8)
    assert broker.topics.create("orders", 8, exist_ok=True).read_queue_nums == 4


def test_a_changed_row_that_was_handed_out_changes_no_topic(broker: Broker) -> None:
    broker.topics.create("orders", 4).read_queue_nums = 9
    broker.topics.get("orders").perm = 0
    assert broker.topics.get("orders") == TopicConfig("orders", 4, 4)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "x" * 128, None, 7])
def test_a_name_that_a_real_broker_refuses_is_refused(broker: Broker, name: str) -> None:
    with pytest.raises(InvalidName):
        broker.topics.create(name)
    assert broker.topics.names() == []


BAD_TOPICS: list[dict[str, Any]] = [
    {"perm": "a b"}, {"perm": float("nan")}, {"perm": []}, {"perm": None}, {"perm": 8},
    {"perm": -1}, {"perm": "\ud800"}, {"order": "x"}, {"order": None}, {"queues": 0},
    {"queues": 1 << 31}, {"queues": 10**30}, {"queues": 2.0}, {"attributes": {"+a": None}},
    {"attributes": {7: "a"}}, {"attributes": {"+a": "\ud800"}}, {"attributes": "x"},
]  # fmt: skip


@pytest.mark.parametrize("given", BAD_TOPICS, ids=ascii)
def test_a_topic_with_values_that_no_broker_could_read_is_refused(
    broker: Broker, memory_vfs: MemoryVfs, given: dict[str, Any]
) -> None:
    broker.topics.create("kept")
    before = memory_vfs.read_file(files(memory_vfs).directory + "/topics.json")
    with pytest.raises(InvalidMessage):
        broker.topics.create("bad", **given)
    assert broker.topics.names() == ["kept"]
    assert memory_vfs.read_file(files(memory_vfs).directory + "/topics.json") == before


def test_a_changed_row_has_the_limits_of_a_new_one(broker: Broker) -> None:
    rows = [TopicConfig("T", perm=8), TopicConfig("T", 1 << 31), TopicConfig("T", 1, 1 << 31)]
    for row in rows:
        with pytest.raises(InvalidMessage, match="at most"):
            broker.topics.update(row)
    broker.topics.update(TopicConfig("T", 0, 0, perm=7))
    assert broker.topics.names() == ["T"]


def test_a_group_with_values_that_no_broker_could_read_is_refused(broker: Broker) -> None:
    with pytest.raises(InvalidMessage, match="retryMaxTimes"):
        broker.groups.update(SubscriptionGroupConfig("g", retry_max_times=1 << 31))
    assert broker.groups.names() == []


BAD_COMMITS: list[tuple[Any, ...]] = [
    ("\ud800", "T", 0, 1), ("g", "\udfff", 0, 1), (None, "T", 0, 1), ("g", 7, 0, 1),
    ("", "T", 0, 1), ("g", "", 0, 1), ("a@b", "T", 0, 1), ("g", "a@b", 0, 1),
    ("g", "T", -1, 1), ("g", "T", 1 << 31, 1), ("g", "T", "0", 1), ("g", "T", True, 1),
    ("g", "T", 0, -1), ("g", "T", 0, 1 << 63), ("g", "T", 0, 1.0), ("g", "T", 0, None),
]  # fmt: skip


@pytest.mark.parametrize("given", BAD_COMMITS, ids=ascii)
def test_a_commit_that_no_file_can_hold_is_refused_and_the_others_are_written(
    broker: Broker, memory_vfs: MemoryVfs, given: tuple[Any, ...]
) -> None:
    broker.commit_offset("g", "T", 3, 5)
    with pytest.raises((InvalidName, InvalidMessage)):
        broker.commit_offset(*given)
    broker.offsets.persist()
    assert files(memory_vfs).consumer_offsets() == {("T", "g"): {3: 5}}


def test_a_commit_may_name_what_is_not_known_yet_up_to_the_limits_of_the_file(
    broker: Broker, memory_vfs: MemoryVfs
) -> None:
    broker.commit_offset("a b", "é\n", np.int64(2**31 - 1), np.int64(2**63 - 1))  # type: ignore[arg-type]
    broker.offsets.persist()
    assert files(memory_vfs).consumer_offsets() == {("é\n", "a b"): {2**31 - 1: 2**63 - 1}}


def test_a_group_is_cloned_with_all_its_offsets(broker: Broker) -> None:
    broker.commit_offset("g", "T", 0, 5)
    broker.offsets.clone("g", "h", "T")
    assert broker.offsets.of("h", "T") == {0: 5}
    with pytest.raises(InvalidName):
        broker.offsets.clone("g", "\ud800", "T")


def test_a_deleted_topic_takes_its_offsets_along(broker: Broker) -> None:
    broker.topics.create("orders")
    broker.commit_offset("g", "orders", 0, 5)
    broker.commit_offset("g", "others", 0, 6)
    broker.delete_topic("orders")
    with pytest.raises(UnknownTopic):
        broker.topics.get("orders")
    assert broker.offsets.find("g", "orders", 0) is None
    assert broker.offsets.find("g", "others", 0) == 6


def test_a_topic_that_a_producer_names_is_made_from_the_default_topic(broker: Broker) -> None:
    broker.send(Message("new", b"x"))
    assert broker.topics.get("new") == TopicConfig("new", 4, 4, 6)


def test_the_default_topic_decides_how_many_queues_a_new_topic_has(broker: Broker) -> None:
    broker.topics.update(TopicConfig(DEFAULT_TOPIC, 2, 2, perm=7))
    broker.send(Message("new", b"x"))
    assert broker.topics.get("new").write_queue_nums == 2


def test_without_automatic_topics_an_unknown_topic_is_refused(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with (
        broker_over(store, memory_vfs, clock, auto_create_topic_enable=False) as broker,
        pytest.raises(UnknownTopic),
    ):
        broker.send(Message("new", b"x"))
    assert store.max_physical_offset == 0


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_a_producer_cannot_send_to_a_topic_of_the_broker(broker: Broker, topic: str) -> None:
    with pytest.raises(InvalidName, match="topic of the broker"):
        broker.send(Message(topic, b"x"))


def test_a_group_is_made_when_it_is_named_unless_that_is_off(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with broker_over(store, memory_vfs, clock) as broker:
        assert broker.groups.get("mailers") == SubscriptionGroupConfig("mailers")
    assert files(memory_vfs).subscription_groups().keys() == {"mailers"}
    options = {"auto_create_subscription_group": False}
    with broker_over(store, memory_vfs, clock, **options) as broker:
        assert broker.groups.get("mailers").retry_max_times == 16
        with pytest.raises(InvalidName, match="no such subscription group"):
            broker.groups.get("others")


def test_offsets_are_written_at_their_interval_and_at_the_close(
    broker: Broker, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    broker.commit_offset("g", "orders", 1, 5)
    clock.advance(9_999)
    broker.step()
    assert files(memory_vfs).consumer_offsets() == {}
    clock.advance(1)
    broker.step()
    assert files(memory_vfs).consumer_offsets() == {("orders", "g"): {1: 5}}
    broker.commit_offset("g", "orders", 1, 6)
    clock.advance(5_000)
    broker.step()
    assert files(memory_vfs).consumer_offsets() == {("orders", "g"): {1: 6}}
    broker.commit_offset("g", "orders", 1, 3)
    broker.close()
    assert files(memory_vfs).consumer_offsets() == {("orders", "g"): {1: 3}}


def test_a_group_goes_on_where_it_committed_after_a_restart(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with broker_over(store, memory_vfs, clock) as broker:
        broker.commit_offset("g", "orders", 1, 5)
    with broker_over(store, memory_vfs, clock) as broker:
        assert broker.query_offset("g", "orders", 1) == 5


def test_a_table_that_cannot_be_read_is_no_empty_table(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with broker_over(store, memory_vfs, clock) as broker:
        broker.commit_offset("g", "orders", 1, 5)
    path = files(memory_vfs).directory + "/consumerOffset.json"
    for content in (b"{half", b'{"offsetTable":{"orders@g":{"0":"x"}}}'):
        memory_vfs.replace_file(path, content)
        with pytest.raises(CorruptRecord, match=r"consumerOffset\.json"):
            broker_over(store, memory_vfs, clock)


def test_a_failed_write_of_the_offsets_is_a_problem_and_is_tried_again(
    broker: Broker, memory_vfs: MemoryVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.commit_offset("g", "orders", 1, 5)
    with monkeypatch.context() as patch:
        patch.setattr(memory_vfs, "replace_file", lambda *given: (_ for _ in ()).throw(OSError(5)))
        clock.advance(10_000)
        broker.step()
        assert ["consumer offsets" in str(problem) for problem in broker.problems] == [True]
    clock.advance(5_000)
    broker.step()
    assert files(memory_vfs).consumer_offsets() == {("orders", "g"): {1: 5}}


def test_fields_of_a_newer_broker_stay_in_the_files(broker: Broker, memory_vfs: MemoryVfs) -> None:
    broker.topics.create("orders")
    path = files(memory_vfs).directory + "/topics.json"
    content = json.loads(memory_vfs.read_file(path))
    content["topicConfigTable"]["orders"]["new"] = 7
    memory_vfs.replace_file(path, json.dumps(content).encode())
    broker.topics.reload()
    broker.topics.create("more")
    assert json.loads(memory_vfs.read_file(path))["topicConfigTable"]["orders"]["new"] == 7


def test_a_broker_over_a_reader_changes_nothing_and_learns_topics_from_the_queues(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    store.put_message(Message("orders", b"x", queue_id=2))
    store.deliver_due()
    before = sorted(memory_vfs.entries("/s"))
    with (
        rocketcompat.open("/s", "r", store.config, vfs=memory_vfs) as reader,
        broker_over(reader, memory_vfs, clock) as broker,
    ):
        assert broker.topics.get("orders").read_queue_nums == 3
        for call in (
            lambda: broker.topics.create("more"),
            lambda: broker.groups.update(SubscriptionGroupConfig("g")),
            lambda: broker.commit_offset("g", "orders", 0, 1),
            lambda: broker.send(Message("orders", b"y")),
        ):
            with pytest.raises(ReadOnlyStore):
                call()
        broker.groups.get("g")
    assert sorted(memory_vfs.entries("/s")) == before
