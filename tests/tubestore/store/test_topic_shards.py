"""The shards of one topic: made, written in turns, gone with it."""

from __future__ import annotations

import pytest

from tests.support.engine.topics import bodies
from tubestore.errors import (
    InvalidMessage,
)
from tubestore.shard.message_store import MessageStore
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import shards_of


@pytest.mark.parametrize("call", ["sync", "flush"])
def test_a_topic_that_is_deleted_meanwhile_does_not_end_a_call_over_all_shards(
    store: MessageStoreManager, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    names = ["a", "b", "c"]
    for name in names:
        store.create_topic(name).append(b"x", durability="memory")
    shards = {name: shards_of(store[name]).writable(0) for name in names}
    step, done = getattr(MessageStore, call), []

    def deleting(shard: MessageStore) -> object:
        if "b" in store:
            store.delete_topic("b")
        found = step(shard)
        done.append(shard)
        return found

    monkeypatch.setattr(MessageStore, call, deleting)
    getattr(store, call)()
    assert done == [shards["a"], shards["c"]]


def test_new_partitions_and_shards_can_be_written_at_once(store: MessageStoreManager) -> None:
    topic = store.create_topic("t")
    for partition in (1, 10_000, 10_001):
        with pytest.raises(InvalidMessage):
            topic.append(b"x", partition=partition)
    store.change_topic("t", partitions=2, stores=2)
    for partition in (0, 1, 10_000, 10_001):
        topic.append(b"%d" % partition, partition=partition)
        assert bodies(topic, partition) == [b"%d" % partition]
    assert topic.partition_ids == [0, 1, 10_000, 10_001]
    for partition in (2, 9_999, 10_002, 20_000, -1):
        with pytest.raises(InvalidMessage):
            topic.append(b"x", partition=partition)


@pytest.mark.parametrize("too_many", [{"partitions": 10_001}, {"stores": 10_001}])
def test_no_change_reaches_into_the_numbers_of_the_next_shard(
    store: MessageStoreManager, too_many: dict[str, int]
) -> None:
    store.create_topic("t")
    with pytest.raises(InvalidMessage, match="1 to 10000"):
        store.change_topic("t", **too_many)
