"""Queues of inner batches of a real 5.3.3 store, read (spec §2.9, §1.11)."""

from __future__ import annotations

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.batch_consume_queue import BatchConsumeQueue, batch_queues
from rocketcompat.batch_encoder import encode_columns
from rocketcompat.batches import decode_items
from rocketcompat.prepare import prepare
from tests.support.golden import GoldenFactory
from tests.support.golden_puts import body_of
from tests.support.rocket_golden import config_of, open_golden
from tubestore.errors import InvalidMessage, NotAStore
from tubestore.testing import MemoryVfs
from tubestore.vfs import OsVfs

NEWER = MessageStoreConfig(compat="5.3.3")


def test_units_are_read_as_the_real_store_shows_them(golden: GoldenFactory) -> None:
    theirs = golden("rocketmq", "5.3.3", "batchcq")
    queues = batch_queues(OsVfs(), str(theirs.store))
    shown = {
        (row["topic"], row["queueId"]): (row["minOffset"], row["maxOffset"])
        for row in theirs.expected(type="queue")
        if row["kind"] == "BatchConsumeQueue"
    }
    assert sorted(shown) == queues
    for topic, queue_id in queues:
        queue = BatchConsumeQueue(OsVfs(), str(theirs.store), topic, queue_id)
        assert (queue.min_offset, queue.max_offset) == shown[topic, queue_id]


def test_every_message_of_every_batch_is_found_by_its_queue_offset(golden: GoldenFactory) -> None:
    theirs = golden("rocketmq", "5.3.3", "batchcq")
    count = 0
    with open_golden(theirs, "r") as store:
        for row in theirs.puts():
            given, out = row["in"], row["out"]
            if given["topic"] != "BcqTopic":
                continue
            queue = BatchConsumeQueue(
                OsVfs(), str(theirs.store), given["topic"], given.get("queueId", 0)
            )
            items = given.get("inner")
            wanted = [body_of(item) for item in items] if items else [body_of(given)]
            for number, body in enumerate(wanted):
                unit = queue.find(out["logicsOffset"] + number)
                assert unit["physical_offset"] == out["wroteOffset"]
                assert unit["base_offset"] == out["logicsOffset"]
                assert unit["batch_size"] == len(wanted)
                record = store.look_message(int(unit["physical_offset"]))
                inner = decode_items(record.body)[number].body if items else record.body
                assert inner == body
                count += 1
            assert queue.find(queue.max_offset) is None
            assert queue.find(-1) is None
    assert count > 40


def test_a_store_with_batch_queues_is_not_opened_to_write(golden: GoldenFactory) -> None:
    theirs = golden("rocketmq", "5.3.3", "batchcq")
    with pytest.raises(NotAStore, match="batch queues"):
        rocketcompat.open(theirs.store, "w", config_of(theirs), background=False)


def test_as_the_newer_version_an_inner_batch_is_refused_without_batch_queues() -> None:
    with pytest.raises(InvalidMessage, match="inner batch"):
        prepare(Message("T", sys_flag=0x80, properties={"INNER_NUM": "3"}), NEWER)
    with pytest.raises(InvalidMessage, match="INNER_NUM"):
        prepare(Message("T", properties={"INNER_NUM": "3"}), NEWER)
    with pytest.raises(InvalidMessage, match="inner batch"):
        encode_columns({"topic": ["T"], "sys_flag": [0x80]}, NEWER)
    assert prepare(Message("T", tags="INNER_NUM"), NEWER).copies == ()


def test_a_queue_that_is_not_there_is_empty(memory_vfs: MemoryVfs) -> None:
    queue = BatchConsumeQueue(memory_vfs, "/s", "T", 0)
    assert (queue.min_offset, queue.max_offset, queue.find(0)) == (-1, 0, None)
    assert batch_queues(memory_vfs, "/s") == []
