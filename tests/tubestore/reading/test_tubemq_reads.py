"""TubeMQ's own read call, against the answers of the real classes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tubestore
from tests.support.golden import TUBE_VERSION, GoldenFactory
from tubestore.clock import ManualClock
from tubestore.messages import STATE_OK
from tubestore.record.records import ENTRY_SIZE
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import Topic, shards_of

SCENARIOS = ["basic", "multistore", "rolled", "filtered", "memory", "large", "attributes"]


def entries_examined(topic: Topic, partition: int, offset: int, filtered: bool) -> int:
    """How many entries the real one examines: half of what it reads, of one file (6.4)."""
    view = shards_of(topic).shard(partition // 10_000).view()
    partitions = topic.options.partitions
    limit = min(max(1000 * partitions, 8000), 13_500) * (3 if filtered else 1)
    for source in view.sources(max(offset, view.index_start)):
        left = len(source.entries) - source.ordinal(max(offset, view.index_start))
        return -(-min(limit, left) // 2)
    return 1


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_answers_are_those_of_the_real_classes(golden: GoldenFactory, scenario: str) -> None:
    """Call by call, when ours may examine no more entries than the half that theirs does."""
    real = golden("tubemq", TUBE_VERSION, scenario)
    compared: Counter[Any] = Counter()
    with tubestore.open(real.store, mode="r") as store:
        for row in real.rows("reads"):
            call, answer = row["call"], row.get("answer", {})
            if "partitionId" not in call or "retCode" not in answer or call["minTime"]:
                continue
            topic = store.topic(call["store"].rpartition("-")[0])
            partition, offset = call["partitionId"], call["offset"]
            if not topic.options.holds(partition) or offset % ENTRY_SIZE:
                continue  # it reads from inside of an entry; ours rounds down, as its callers do
            found = topic.get_messages(
                partition,
                offset,
                filter_items=call["filter"],
                max_bytes=call["msgSizeLimit"],
                switch=call["reqSwitch"],
                max_entries=entries_examined(topic, partition, offset, bool(call["filter"])),
            )
            compared[found.code] += 1
            assert (found.success, found.code) == (answer["success"], answer["retCode"]), row
            assert found.delta == answer["lastReadOffset"], row
            assert found.table.column("msg_id").to_pylist() == answer["msgIds"], row
            if found.success:
                assert found.request_offset == answer["reqOffset"], row
                assert found.size == answer["totalMsgSize"], row
                assert found.max_offset == answer["maxOffset"], row
                assert found.last_data_offset == answer["lastRdDataOffset"], row
            else:
                assert found.max_offset == answer["maxOffset"] == -2, row
    assert compared[0] > 10
    assert compared[404] > 1
    print(dict(compared))


def test_defects_of_the_real_class_are_not_repeated(golden: GoldenFactory) -> None:
    """Without a bound a call examines all that is left (weakness 9) and crosses files."""
    real = golden("tubemq", TUBE_VERSION, "rolled")
    with tubestore.open(real.store, mode="r") as store:
        for expected in real.expected(kind="partition"):
            if expected.get("filter"):
                continue
            topic = store.topic(expected["store"].rpartition("-")[0])
            found = topic.get_messages(expected["partitionId"], 0, max_bytes=1 << 30)
            assert found.table.column("msg_id").to_pylist() == expected["msgIds"]
            assert found.request_offset + found.delta == found.max_offset


@pytest.fixture
def topic(store: MessageStoreManager, clock: ManualClock) -> Topic:
    """100 messages over 10 partitions: half in the files, half in the buffers."""
    topic = store.create_topic("t", partitions=10)
    for number in range(100):
        topic.append(
            b"%02d" % number,
            partition=number % 10,
            filter_item="odd" if number % 20 == 11 else None,
            received_time=clock.now_ms() + number,
            durability="memory",
        )
        if number < 50:
            topic.flush()
    return topic


def bodies(found: Any) -> list[bytes]:
    return found.table.column("body").to_pylist()  # type: ignore[no-any-return]


def test_buffers_are_read_unless_the_switch_allows_files_only(topic: Topic) -> None:
    assert bodies(topic.get_messages(3, 0)) == [b"%02d" % n for n in range(3, 100, 10)]
    files = topic.get_messages(3, 0, switch=101)
    assert bodies(files) == [b"%02d" % n for n in range(3, 50, 10)]
    assert files.delta == files.max_offset == 50 * ENTRY_SIZE
    assert len(topic.get_messages(3, 0, filter_items=["odd"], switch=301)) == 0
    assert len(topic.get_messages(1, 0, filter_items=["odd"], switch=303)) == 5
    beyond = topic.get_messages(3, 50 * ENTRY_SIZE, switch=101)
    assert (beyond.code, beyond.delta, len(beyond)) == (404, 0, 0)
    assert beyond.text == "current offset is exceed max file offset"
    assert topic.get_messages(3, 2800).text == "Request offset reached cache maxOffset"
    assert topic.get_messages(3, 2800, switch=201).code == 404


def test_a_failure_in_the_buffers_has_a_delta_too(topic: Topic) -> None:
    """An idle partition's consumer passes everything in one call."""
    found = topic.get_messages(0, 91 * ENTRY_SIZE)
    assert (found.success, found.code, found.delta) == (False, 404, 9 * ENTRY_SIZE)
    assert found.text == "Can't found Message by index!"


def test_a_page_ends_behind_the_record_that_reaches_the_size(topic: Topic) -> None:
    found: list[bytes] = []
    position, calls = 0, 0
    while (page := topic.get_messages(4, position, max_bytes=100)).success:
        assert page.size >= 100 or page.request_offset + page.delta == page.max_offset
        found += bodies(page)
        position = page.request_offset + page.delta
        calls += 1
    assert found == [b"%02d" % n for n in range(4, 100, 10)]
    assert calls >= 5


def test_old_messages_are_examined_and_not_returned(topic: Topic, clock: ManualClock) -> None:
    """The real one's delta stops short of them, and the next call looks at some again."""
    found = topic.get_messages(7, 0, min_time=clock.now_ms() + 60)
    assert bodies(found) == [b"67", b"77", b"87", b"97"]
    assert found.delta == 100 * ENTRY_SIZE


def test_an_unreadable_record_is_passed_over_and_does_not_count(
    topic: Topic, memory_vfs: Any
) -> None:
    memory_vfs.open(f"/store/t-0/{0:020d}.tube").pwrite(b"nope", 4)
    found = topic.get_messages(0, 0, max_bytes=54)
    assert bodies(found) == [b"10"]
    assert found.size == 54
    assert topic.read(0, limit=1).table.column("state").to_pylist() != [STATE_OK]


def test_an_offset_below_the_first_begins_there(topic: Topic) -> None:
    assert topic.get_messages(0, -28).request_offset == 0
    assert bodies(topic.get_messages(1, 40)) == [b"%02d" % n for n in range(1, 100, 10)]
