"""Retention: what goes, what stays and why."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.retained import HOUR, fill, gone, numbers, open_small
from tests.support.retained import small as small
from tubestore.clock import ManualClock
from tubestore.errors import (
    InvalidMessage,
    ReadOnlyStore,
    StoreLocked,
    UnknownTopic,
)
from tubestore.offline.check import check
from tubestore.record.records import ENTRY_SIZE
from tubestore.store.manager import MessageStoreManager
from tubestore.store.retention import SegmentRow
from tubestore.testing import MemoryVfs

# -- by age ----------------------------------------------------------------------------------


def test_files_go_when_their_newest_message_is_too_old(
    small: MessageStoreManager, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)  # files of messages 0-4, 5-9, 10-14, 15-19, and 20-22
    assert topic.retain(max_age="18h") == []  # message 4 is 18 hours old, not older
    rows = topic.retain(max_age=f"{18 * HOUR - 1}ms")
    assert gone(rows) == [0]
    assert numbers(topic) == list(range(5, 23))
    assert gone(topic.retain(max_age=timedelta(hours=7.5))) == [760, 1520]
    assert numbers(topic) == list(range(15, 23))
    assert topic.read(0).table.column("offset")[0].as_py() == 15 * ENTRY_SIZE


def test_data_and_index_go_together(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)
    rows = topic.retain(max_age="7h")  # messages 0-14 and the entries 0-13
    assert gone(rows) == [0, 760, 1520]
    assert gone(rows, "index") == [0, 7 * ENTRY_SIZE]
    files = [path.split("/t-0/")[1] for path in memory_vfs.tree() if "/t-0/" in path]
    assert [name for name in files if not name.startswith(".")] == [
        f"{2280:020d}.tube",
        f"{3040:020d}.tube",
        f"index/{14 * ENTRY_SIZE:020d}.index",
        f"index/{21 * ENTRY_SIZE:020d}.index",
    ]
    assert list(check("/s", vfs=memory_vfs)) == []


def test_a_quiet_topic_does_not_keep_its_last_file_for_ever(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t", max_age="24h")
    fill(topic, clock, count=3)
    clock.advance(24 * HOUR)
    assert topic.retain() == [], "the newest is not older than a day"
    clock.advance(1)
    assert len(topic.retain()) == 2
    assert numbers(topic) == []
    assert topic.append(b"1" * 100).offset == 3 * ENTRY_SIZE
    assert topic.retain() == []
    small.close()
    with open_small(memory_vfs, clock) as again:
        assert numbers(again["t"]) == [int(b"1" * 100)]
        row = again["t"].partitions().to_pylist()[0]
        assert (row["first"], row["next"], row["count"]) == (3 * ENTRY_SIZE, 4 * ENTRY_SIZE, 1)


def test_messages_in_memory_keep_the_file_that_is_written_to(
    small: MessageStoreManager, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock, count=3)
    topic.append(b"7" * 100, durability="memory")
    clock.advance(48 * HOUR)
    assert topic.retain(max_age="24h") == []
    topic.flush()
    assert len(topic.retain(max_age="24h")) == 2


def test_the_age_is_that_of_the_messages_and_not_of_the_files(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """TubeMQ asks the file: a copied store would begin its life anew (weakness 18)."""
    with open_small(memory_vfs, clock) as store:
        fill(store.create_topic("t"), clock)
    for path in memory_vfs.tree():
        if path.endswith((".tube", ".index")):  # as a copy does
            memory_vfs.open(path).pwrite(memory_vfs.read_file(path)[:1], 0)
    with open_small(memory_vfs, clock) as store:
        assert gone(store["t"].retain(max_age="7h")) == [0, 760, 1520]


def test_a_message_from_the_future_counts_as_old_as_its_file(
    small: MessageStoreManager, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    topic.append(b"1" * 100, received_time=1 << 62)
    fill(topic, clock, count=12)
    assert gone(topic.retain(max_age="1h")) == [0, 760]


def test_an_old_message_behind_a_new_one_does_not_go_before_it(
    small: MessageStoreManager, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    for number in range(12):
        age = 100 * HOUR if number >= 5 else 0
        topic.append(b"%0100d" % number, received_time=clock.now_ms() - age)
    assert topic.retain(max_age="50h") == []


# -- by size ---------------------------------------------------------------------------------


def test_the_oldest_files_go_while_there_is_too_much(
    small: MessageStoreManager, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)
    size = 23 * (152 + ENTRY_SIZE)
    assert topic.retain(max_bytes=size) == []
    assert gone(topic.retain(max_bytes=size - 1)) == [0]
    assert gone(topic.retain(max_bytes=0)) == [760, 1520, 2280]
    assert numbers(topic) == [20, 21, 22]
    assert topic.retain(max_bytes=0) == [], "what is written to is not sealed for its size"


def test_of_several_shards_the_oldest_messages_go_first(
    small: MessageStoreManager, clock: ManualClock
) -> None:
    topic = small.create_topic("t", stores=2)
    for _ in range(2):
        fill(topic, clock, count=6, partition=10_000)
        fill(topic, clock, count=6, partition=0)
    rows = topic.retain(max_bytes=24 * (152 + ENTRY_SIZE) - 3 * 760, dry_run=True)
    data = [(row.store_id, row.start) for row in rows if row.stream == "data"]
    assert data == [(0, 0), (1, 0), (1, 760)]


def test_a_bound_of_the_store_takes_the_oldest_of_all_topics(
    small: MessageStoreManager, clock: ManualClock
) -> None:
    old, new = small.create_topic("old"), small.create_topic("new")
    fill(old, clock, count=11)
    fill(new, clock, count=11)
    rows = small.retain(max_bytes=22 * (152 + ENTRY_SIZE) - 1)
    assert [(row.topic, row.start) for row in rows if row.stream == "data"] == [("old", 0)]
    small.retain(max_bytes=0)
    assert (numbers(old), numbers(new)) == ([10], [10])
    with pytest.raises(UnknownTopic):
        small.retain(["other"])
    with pytest.raises(TypeError, match="a list of texts"):
        small.retain("old")


# -- settings and arguments ------------------------------------------------------------------


def test_without_bounds_nothing_goes(small: MessageStoreManager, clock: ManualClock) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)
    clock.advance(10_000 * HOUR)
    assert topic.retain() == small.retain() == []
    assert {row.reason for row in topic.explain_retention() if row.stream == "data"} == {
        "no bound is set",
        "an older one stays",
    }


def test_a_call_overrides_the_settings(small: MessageStoreManager, clock: ManualClock) -> None:
    topic = small.create_topic("t", max_age="10h")
    fill(topic, clock)
    assert gone(topic.retain(max_age="1000h")) == []
    assert gone(small.retain(dry_run=True)) == [0, 760]
    assert gone(topic.retain()) == [0, 760]


def test_a_dry_run_changes_nothing(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)
    before = memory_vfs.tree()
    rows = topic.retain(max_age="7h", dry_run=True)
    assert memory_vfs.tree() == before
    assert topic.retain(max_age="7h") == rows


@pytest.mark.parametrize("bound", [{"max_age": -1}, {"max_age": "x"}, {"max_bytes": -1}])
def test_bad_bounds_are_refused(small: MessageStoreManager, bound: dict[str, Any]) -> None:
    topic = small.create_topic("t")
    for call in (topic.retain, small.retain, topic.explain_retention, small.explain_retention):
        with pytest.raises(InvalidMessage):
            call(**bound)


# -- explaining ------------------------------------------------------------------------------


def test_every_file_is_explained(small: MessageStoreManager, clock: ManualClock) -> None:
    topic = small.create_topic("t", max_age="10h")
    fill(topic, clock)
    rows = topic.explain_retention()
    data = [row for row in rows if row.stream == "data"]
    assert [(row.verdict, row.reason) for row in data] == [
        ("goes", "its newest message is older than 10h"),
        ("goes", "its newest message is older than 10h"),
        ("stays", "its newest message is not older than 10h"),
        ("stays", "an older one stays"),
        ("stays", "an older one stays"),
    ]
    index = [row for row in rows if row.stream == "index"]
    assert [(row.verdict, row.reason) for row in index] == [
        ("goes", "what its entries point to goes"),
        ("stays", "its entries point to data that stays"),
        ("stays", "its entries point to data that stays"),
        ("stays", "it is written to"),
    ]
    now = clock.now_ms()
    first = data[0]
    assert (first.topic, first.store_id, first.start, first.bytes) == ("t", 0, 0, 760)
    assert (first.first_time_ms, first.last_time_ms) == (now - 22 * HOUR, now - 18 * HOUR)
    assert first.due_ms == now - 8 * HOUR
    assert first.path.endswith(f"/t-0/{0:020d}.tube")
    assert small.explain_retention() == rows


def test_a_reader_explains_what_the_writer_would_do(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t", max_age="10h")
    fill(topic, clock)
    with open_small(memory_vfs, clock, "r") as reader:
        assert reader["t"].explain_retention() == topic.explain_retention()
        assert reader.retain(dry_run=True) == small.retain(dry_run=True)
        for call in (reader.retain, reader["t"].retain, reader.empty_trash):
            with pytest.raises(ReadOnlyStore):
                call()


def test_retention_where_another_process_writes_is_refused(tmp_path: Path) -> None:
    with tubestore.open(tmp_path) as store:
        store.create_topic("t")
        with pytest.raises(StoreLocked):
            tubestore.open(tmp_path)


@pytest.mark.parametrize("name", ["first_time", "last_time", "due"])
def test_a_time_of_a_file_has_its_unit_in_its_name_and_warns_by_the_former_one(name: str) -> None:
    row = SegmentRow("t", 0, "data", "p", 0, 1, 2, 3, "goes", "old", 4)
    with pytest.warns(DeprecationWarning, match=f"SegmentRow.{name} is named {name}_ms"):
        assert getattr(row, name) == getattr(row, f"{name}_ms")
