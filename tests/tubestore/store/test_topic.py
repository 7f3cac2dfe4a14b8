"""A topic: what may be appended, where it goes, and how it is read."""

from __future__ import annotations

import contextlib
import errno
import warnings
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tubestore
from tests.support.topics import T0, bodies
from tests.support.topics import topic as topic
from tubestore.clock import ManualClock, time_ms
from tubestore.core.java_hash import java_hash
from tubestore.errors import (
    BatchError,
    DiskFull,
    InvalidMessage,
    MessageTooLarge,
    StoreFailed,
)
from tubestore.messages import Ack
from tubestore.record.records import ENTRY_SIZE
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import Topic
from tubestore.testing import FaultyVfs, MemoryVfs

# -- one message -----------------------------------------------------------------------------


def test_a_message_comes_back_as_it_was_given(topic: Topic, clock: ManualClock) -> None:
    ack = topic.append(
        b"hello",
        partition=2,
        filter_item=" greeting ",
        attributes={"k": "v", "\u00e9": "\u6d41"},
        sender="10.0.0.1",
    )
    assert ack == (2, 0, "page_cache")
    (message,) = topic.read(2)
    assert message.topic == "logs"
    assert (message.partition, message.offset, message.state) == (2, 0, "ok")
    assert message.body == b"hello"
    assert message.received_time_ms == clock.now_ms()
    assert message.filter_item == "greeting"
    assert message.key_code == java_hash("greeting")
    assert dict(message.attributes) == {
        "$msgType$": "greeting",
        "$msgTime$": "202311142213",
        "k": "v",
        "\u00e9": "\u6d41",
    }
    assert topic.read(2).table.column("report_address").to_pylist() == [10 << 24 | 1]


@pytest.mark.parametrize("body", [b"x", bytearray(b"xy"), memoryview(b"xyz"), b"\0" * 100])
def test_bodies_are_any_bytes(topic: Topic, body: Any) -> None:
    ack = topic.append(body)
    assert bodies(topic.read(ack.partition)) == [bytes(body)]


def test_a_time_may_be_given_as_ms_or_as_an_aware_datetime(topic: Topic) -> None:
    moment = datetime(2024, 2, 29, 12, 0, 0, 123_000, tzinfo=timezone(timedelta(hours=5)))
    topic.append(b"a", partition=0, received_time=1)
    topic.append(b"b", partition=0, received_time=moment)
    topic.append(b"c", partition=0, received_time=np.int64(7))
    times = [m.received_time_ms for m in topic.read(0)]
    assert times == [1, 1_709_190_000_123, 7]


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_a_datetime_is_exact_to_the_ms(ms: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert time_ms(moment) == ms


REFUSED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "no body": ({"body": b""}, InvalidMessage),
    "text for a body": ({"body": "text"}, InvalidMessage),
    "none for a body": ({"body": None}, InvalidMessage),
    "a number for a body": ({"body": 5}, InvalidMessage),
    "too large": ({"body": b"x" * 1_058_817}, MessageTooLarge),
    "too large with attributes": (
        {"body": b"x" * 1_058_810, "attributes": {"k": "v"}},
        MessageTooLarge,
    ),
    "partition beyond the last": ({"partition": 4}, InvalidMessage),
    "partition of another store": ({"partition": 10_000}, InvalidMessage),
    "negative partition": ({"partition": -1}, InvalidMessage),
    "huge partition": ({"partition": 1 << 70}, InvalidMessage),
    "text for a partition": ({"partition": "1"}, InvalidMessage),
    "fraction for a partition": ({"partition": 1.0}, InvalidMessage),
    "number for a key": ({"key": 5}, InvalidMessage),
    "lone surrogate in a key": ({"key": "\ud800"}, InvalidMessage),
    "comma in a filter item": ({"filter_item": "a,b"}, InvalidMessage),
    "equals in a filter item": ({"filter_item": "a=b"}, InvalidMessage),
    "number for a filter item": ({"filter_item": 5}, InvalidMessage),
    "lone surrogate in a filter item": ({"filter_item": "\ud800"}, InvalidMessage),
    "blank attribute": ({"attributes": {"k": " "}}, InvalidMessage),
    "comma in an attribute": ({"attributes": {"k": "a,b"}}, InvalidMessage),
    "system name for an attribute": ({"attributes": {"$msgType$": "x"}}, InvalidMessage),
    "number for an attribute": ({"attributes": {"k": 5}}, InvalidMessage),
    "list for attributes": ({"attributes": ["k"]}, InvalidMessage),
    "lone surrogate in an attribute": ({"attributes": {"k": "\ud800"}}, InvalidMessage),
    "naive time": ({"received_time": datetime(2024, 1, 1)}, ValueError),  # noqa: DTZ001
    "time beyond 64 bits": ({"received_time": 1 << 63}, InvalidMessage),
    "time below 64 bits": ({"received_time": -(1 << 63) - 1}, InvalidMessage),
    "fraction for a time": ({"received_time": 1.5}, (InvalidMessage, TypeError)),  # type: ignore[dict-item]
    "no address": ({"sender": "localhost"}, ValueError),
    "unknown level": ({"durability": "disk"}, ValueError),
}


@pytest.mark.parametrize(("given", "error"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    store: MessageStoreManager,
    topic: Topic,
    memory_vfs: MemoryVfs,
    given: dict[str, Any],
    error: type[Exception],
) -> None:
    before = memory_vfs.tree()
    arguments = dict(given)
    body = arguments.pop("body", b"x")
    with pytest.raises(error):
        topic.append(body, **arguments)
    store.flush()
    assert memory_vfs.tree() == before
    assert topic.append(b"good", partition=0).offset == 0
    assert bodies(topic.read(0)) == [b"good"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"partition": 9}, "partition 9: topic 'logs' has partitions 0 to 3"),
        ({"body": "text"}, "a body is bytes, not str: encode the text"),
        ({"body": 5}, "a body is bytes, not int$"),
    ],
)
def test_what_is_refused_names_what_is_taken(
    topic: Topic, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        topic.append(**{"body": b"x", **given})


def test_a_copy_of_what_is_no_topic_is_refused(topic: Topic) -> None:
    with pytest.raises(TypeError, match=r"source 't': a Topic is needed, such as store\['t'\]"):
        topic.copy_from("t")  # type: ignore[arg-type]
    assert topic.count(0) == 0


def test_a_message_of_the_first_years_is_appended_again_without_a_doubt(topic: Topic) -> None:
    stored = [*range(100_000_000, 100_000_003), 99_999_999_999, 5, -5, (1 << 63) - 1]
    topic.append_batch({
        "body": [b"x"] * len(stored), "partition": [0] * len(stored), "received_time_ms": stored,
    })  # fmt: skip
    found = list(topic.read(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for message in found:
            topic.append(message)
        topic.append_batch(found)
    assert [m.received_time_ms for m in topic.read(0)] == stored * 3


def test_round_robin_goes_through_all_partitions(topic: Topic) -> None:
    counts = Counter(topic.append(b"x").partition for _ in range(12))
    assert counts == {0: 3, 1: 3, 2: 3, 3: 3}


def test_round_robin_goes_through_all_partitions_of_all_stores(store: MessageStoreManager) -> None:
    topic = store.create_topic("wide", partitions=3, stores=2)
    one_by_one = Counter(topic.append(b"x").partition for _ in range(12))
    batch = topic.append_batch({"body": [b"x"] * 12})
    ids = {0, 1, 2, 10_000, 10_001, 10_002}
    assert one_by_one == Counter(batch.partitions.to_pylist()) == dict.fromkeys(ids, 2)


@pytest.mark.parametrize(
    ("key", "partition"),
    # Recorded: which partition a key chooses may never change.
    [("user-7", 38), (b"user-7", 38), ("", 38), ("\u6d41", 36), ("a" * 1000, 40)],
)
def test_a_key_always_chooses_the_same_partition(
    store: MessageStoreManager, key: str | bytes, partition: int
) -> None:
    topic = store.create_topic("keyed", partitions=100)
    assert topic.append(b"x", key=key).partition == partition
    assert topic.append_batch([{"body": b"x", "key": key}]).partitions.to_pylist() == [partition]


@given(keys=st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=20))
def test_a_batch_chooses_the_partitions_that_single_appends_choose(keys: list[str]) -> None:
    with tubestore.open("/s", vfs=MemoryVfs(), background=False, durability="memory") as store:
        topic = store.create_topic("wide", partitions=7, stores=3)
        batch = topic.append_batch({"body": [b"x"] * len(keys), "key": keys})
        single = [topic.append(b"x", key=key).partition for key in keys]
        assert batch.partitions.to_pylist() == single


# -- batches ---------------------------------------------------------------------------------


def test_a_batch_and_single_appends_store_the_same(store: MessageStoreManager) -> None:
    given = [
        {"body": b"a", "partition": 1, "filter_item": "x", "attributes": {"k": "v"}},
        {"body": b"b", "partition": 0, "filter_item": None, "attributes": None},
        {"body": b"c", "partition": 1, "filter_item": "y", "attributes": None},
    ]
    one, many = store.create_topic("one", partitions=2), store.create_topic("many", partitions=2)
    for row in given:
        one.append(received_time=T0, **row)
    acks = list(many.append_batch([{**row, "received_time_ms": T0} for row in given]))
    assert [ack.offset for ack in acks] == [0, ENTRY_SIZE, 2 * ENTRY_SIZE]
    columns = ["partition", "offset", "received_time", "filter_item", "key_code", "attributes"]
    columns += ["body", "flag", "state", "report_address"]
    assert one.scan(columns=columns).read_all() == many.scan(columns=columns).read_all()


def test_offsets_and_partitions_are_in_the_order_of_the_rows(store: MessageStoreManager) -> None:
    topic = store.create_topic("wide", partitions=3, stores=4)
    generator = np.random.default_rng(5)
    numbers = generator.integers(0, 12, 500)
    partitions = (numbers // 3 * 10_000 + numbers % 3).tolist()
    payloads = [b"row %d" % n for n in range(500)]
    acks = topic.append_batch({"body": payloads, "partition": partitions})
    assert acks.partitions.to_pylist() == partitions
    assert len(acks) == 500
    for ack, body in zip(acks, payloads, strict=True):
        message = topic.message_at(ack.partition, ack.offset)
        assert message is not None
        assert message.body == body
    for partition in set(partitions):
        wanted = [b for b, p in zip(payloads, partitions, strict=True) if p == partition]
        assert bodies(topic.read(partition)) == wanted


def test_an_empty_batch_is_no_error(topic: Topic) -> None:
    assert len(topic.append_batch([])) == 0
    assert len(topic.append_batch(pa.table({"body": pa.array([], pa.binary())}))) == 0
    assert len(topic.read(0)) == 0


def test_a_batch_larger_than_the_buffers_is_taken(memory_vfs: MemoryVfs) -> None:
    with tubestore.open(
        "/s", vfs=memory_vfs, background=False, mem_store_messages=10, mem_store_size_bytes=500
    ) as store:
        topic = store.create_topic("t", partitions=2)
        topic.append(b"before", partition=0, durability="memory")
        topic.append_batch({"body": [b"%d" % n for n in range(1000)], "partition": [1] * 1000})
        assert bodies(topic.read(1)) == [b"%d" % n for n in range(1000)]
        assert bodies(topic.read(0)) == [b"before"]


def test_a_batch_that_fails_in_one_shard_names_which_rows_were_taken(
    memory_vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, background=False)
    topic = store.create_topic("t", partitions=1, stores=3)
    table = {"body": [b"0", b"1", b"2", b"0+"], "partition": [0, 10_000, 20_000, 0]}
    topic.append_batch(table)
    faulty.fail("pwrite", path="t-1", error=errno.EIO)
    with pytest.raises(BatchError) as caught:
        topic.append_batch(table)
    taken = [ack is not None for ack in caught.value.acks]
    assert taken == [True, False, False, True]
    for ack, body in zip(caught.value.acks, table["body"], strict=True):
        if ack is not None:
            message = topic.message_at(ack.partition, ack.offset)
            assert message is not None
            assert message.body == body
    with pytest.raises(StoreFailed):
        store.close()


def test_acknowledgements_never_claim_a_level_that_a_failed_sync_did_not_reach(
    memory_vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, background=False)
    topic = store.create_topic("t", partitions=1, stores=2)
    topic.append_batch({"body": [b"0", b"1"], "partition": [0, 10_000]}, durability="fsync")
    faulty.fail("sync", path="t-1")
    with pytest.raises((BatchError, StoreFailed)) as caught:
        topic.append_batch({"body": [b"0", b"1"], "partition": [0, 10_000]}, durability="fsync")
    if isinstance(caught.value, BatchError):
        second = caught.value.acks[1]
        assert second is None or second.durability != "fsync"
    with pytest.raises(StoreFailed):
        store.close()


def test_a_full_disk_refuses_a_batch_and_takes_it_later(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    with tubestore.open("/s", vfs=faulty, background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"before")
        faulty.fail("pwrite", path=".tube", error=errno.ENOSPC, forever=True)
        with pytest.raises(BatchError) as caught:
            topic.append_batch({"body": [b"batch"]})
        assert isinstance(caught.value.__cause__, DiskFull)
        assert (caught.value.taken, caught.value.acks) == ("yes", [Ack(0, 28, "memory")])
        with pytest.raises(DiskFull) as refused:
            topic.append_batch({"body": [b"refused"]})
        assert (refused.value.taken, refused.value.offset) == ("no", None)
        faulty.heal()
        topic.append(b"after", durability="fsync")
        assert bodies(topic.read(0)) == [b"before", b"batch", b"after"]


def test_a_batch_error_reports_whether_the_other_rows_were_taken(memory_vfs: MemoryVfs) -> None:
    for number, taken in ((errno.ENOSPC, "no"), (errno.EIO, "unknown")):
        faulty = FaultyVfs(memory_vfs)
        store = tubestore.open(f"/{taken}", vfs=faulty, background=False)
        topic = store.create_topic("t", stores=3)
        faulty.fail("pwrite", path="t-1", error=number)
        with pytest.raises(BatchError) as caught:
            topic.append_batch({"body": [b"0", b"1", b"2"], "partition": [0, 10_000, 20_000]})
        taken_rows = 1 if taken == "unknown" else 2
        assert sum(ack is not None for ack in caught.value.acks) == taken_rows
        assert caught.value.taken == taken
        with contextlib.suppress(StoreFailed):
            store.close()


def test_all_partitions_of_a_shard_share_one_data_file_and_one_index_file(
    store: MessageStoreManager, memory_vfs: MemoryVfs
) -> None:
    topic = store.create_topic("t", partitions=4, stores=2)
    for partition in topic.partition_ids:
        topic.append(b"x", partition=partition)
    store.flush()
    files = [path for path in memory_vfs.tree() if path.endswith((".tube", ".index"))]
    assert files == [
        path for n in (0, 1) for path in
        (f"/store/t-{n}/{0:020d}.tube", f"/store/t-{n}/index/{0:020d}.index")
    ]  # fmt: skip


@pytest.mark.gate
def test_an_index_file_takes_700_000_entries_by_default(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, background=False) as store:
        topic = store.create_topic("t")
        index = tmp_path / "t-0" / "index"
        topic.append_batch({"body": pa.array([b"x"] * 699_999, pa.large_binary())})
        assert len(list(index.iterdir())) == 1
        topic.append(b"the 700,000th fills it")
        topic.flush()
        ack = topic.append(b"and this one is in the next")
        topic.flush()
        assert ack.offset == 700_000 * 28
        assert sorted(path.name for path in index.iterdir()) == [
            f"{0:020d}.index", f"{19_600_000:020d}.index",
        ]  # fmt: skip
        assert len(list(index.parent.glob("*.tube"))) == 1


def test_times_may_be_ages_of_the_store_s_clock_and_sizes_texts(
    store: MessageStoreManager, clock: ManualClock
) -> None:
    topic = store.create_topic("aged", max_bytes="10GB", max_age="7d")
    assert (topic.options.max_bytes, topic.options.max_age_ms) == (10**10, 604_800_000)
    for age in ("3h", timedelta(hours=2), "-1h"):
        topic.append(b"x" * 100, received_time=age)
    hours = [(clock.now_ms() - m.received_time_ms) // 3_600_000 for m in topic.read(0)]
    assert hours == [3, 2, 1]
    assert len(topic.read(0, start="150m", end="90m")) == 1
    assert len(topic.read(0, max_bytes="200B")) == len(topic.read(0, max_bytes=200)) == 1
    with topic.scan(start="2h", max_bytes="1KB") as batches:
        assert batches.read_all().num_rows == 2
    assert topic.offset_at(0, "2h") == topic.read(0, limit=1).next_offset
    with store.consumer(None, "aged", start="90m") as consumer:
        assert len(consumer.poll(10)) == 1
    assert store.change_topic("aged", max_bytes="1MiB").options.max_bytes == 1 << 20
    with pytest.raises(ValueError, match="start: 'lately' is not a valid time"):
        topic.read(0, start="lately")


# -- what was read is appended again ---------------------------------------------------------


def filled_with_three(store: MessageStoreManager, name: str, partitions: int = 4) -> Topic:
    topic = store.create_topic(name, partitions=partitions, stores=2)
    for number, partition in enumerate((1, 10_002, 1)):
        topic.append(
            b"body %d" % number,
            partition=partition,
            filter_item="red" if number else None,
            attributes={"n": str(number)} if number < 2 else None,
            received_time=T0 - 1000 * number,
        )
    return topic


def without_place(topic: Topic) -> list[tuple[Any, ...]]:
    return [
        (m.partition, m.body, m.filter_item, dict(m.attributes), m.received_time_ms, m.key_code)
        for partition in topic.partition_ids
        for m in topic.read(partition)
    ]


WAYS: dict[str, Any] = {
    "messages": lambda source, target: [
        target.append(m) for p in source.partition_ids for m in source.messages(p)
    ],
    "a list of messages": lambda source, target: target.append_batch(
        [m for p in source.partition_ids for m in source.messages(p)]
    ),
    "pages": lambda source, target: [
        target.append_batch(page) for p in source.partition_ids if len(page := source.read(p))
    ],
    "a table": lambda source, target: target.append_batch(source.scan().read_all()),
    "a copy": lambda source, target: target.copy_from(source),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_was_read_is_appended_again_as_it_was(store: MessageStoreManager, way: str) -> None:
    source = filled_with_three(store, "source")
    target = store.create_topic("target", partitions=4, stores=2)
    WAYS[way](source, target)
    assert without_place(target) == without_place(source)
    assert len(without_place(target)) == 3


def test_a_batch_of_many_topics_takes_messages_of_many_topics(store: MessageStoreManager) -> None:
    topics = [filled_with_three(store, name) for name in ("a", "b")]
    messages = [m for one in topics for p in one.partition_ids for m in one.read(p)]
    assert len(store.append_batch(messages)) == 6
    assert [len(one.read(1)) for one in topics] == [4, 4]


def test_arguments_come_before_those_of_a_message_that_is_appended_again(
    store: MessageStoreManager,
) -> None:
    source = filled_with_three(store, "source")
    message = source.read(10_002)[0]
    target = store.create_topic("target", partitions=2)
    target.append(message, partition=1, filter_item="blue", attributes={}, received_time=T0)
    found = target.read(1)[0]
    assert (found.filter_item, found.received_time_ms) == ("blue", T0)
    assert found.attributes.keys() == {"$msgType$", "$msgTime$"}
    target.append(message, key="k")
    with pytest.raises(InvalidMessage, match="partition 10002"):
        target.append(message)


def test_a_damaged_row_is_not_appended_again(store: MessageStoreManager) -> None:
    topic = filled_with_three(store, "t")
    table = topic.read(1).table
    place = table.schema.get_field_index("state")
    damaged = table.set_column(place, "state", pa.array(["ok", "missing"]))
    with pytest.raises(InvalidMessage, match="row 1: it is missing"):
        topic.append_batch(damaged)
    with pytest.raises(InvalidMessage, match=r"offset 0 of 't' is missing: it cannot be appended"):
        topic.append(replace(topic.read(1)[0], state="missing", body=None))
    assert len(topic.read(1)) == 2


def test_a_copy_keeps_the_order_of_partitions_where_there_are_fewer(
    store: MessageStoreManager,
) -> None:
    source = filled_with_three(store, "source")
    target = store.create_topic("target", partitions=3)
    assert target.copy_from(source, filter_items=["red"]) == (2, 0)
    # Partition 1 is the second one, 10,002 the seventh.
    assert [m.body for m in target.read(1)] == [b"body 2"]
    assert [m.body for m in target.read(0)] == [b"body 1"]


def test_a_copy_of_a_topic_into_itself_ends_and_may_have_new_times(
    store: MessageStoreManager, clock: ManualClock
) -> None:
    topic = filled_with_three(store, "t")
    assert topic.copy_from(topic, end=T0, keep_times=False) == (2, 0)
    assert [m.received_time_ms for m in topic.read(1)] == [T0, T0 - 2000, clock.now_ms()]


def test_a_copy_leaves_damaged_messages_out_and_counts_them(
    store: MessageStoreManager, memory_vfs: MemoryVfs
) -> None:
    source = filled_with_three(store, "source")
    target = store.create_topic("target", partitions=4, stores=2)
    source.flush()
    path = f"{source.root}/source-0/{0:020d}.tube"
    file = memory_vfs.open(path)
    file.pwrite(b"X", file.size() - 1)
    file.close()
    assert target.copy_from(source) == (2, 1)


# -- keys ------------------------------------------------------------------------------------


def test_keys_come_back_as_attributes_if_the_store_was_asked(memory_vfs: MemoryVfs) -> None:
    with tubestore.open(
        "/s", key_attribute="key", vfs=memory_vfs, clock=memory_vfs.clock, background=False
    ) as store:
        topic = store.create_topic("t")
        topic.append(b"a", key="k-1", attributes={"x": "y"})
        topic.append(b"b", key=b"k-2")
        topic.append(b"c")
        topic.append_batch({"body": [b"d", b"e"], "key": ["k-3", None]})
        topic.append_batch([{"body": b"f", "key": b"k-4", "attributes": {"x": "z"}}])
        store.append_batch({"topic": ["t"], "body": [b"g"], "key": ["k-5"]})
        with store.consumer("g", "t", auto_commit=False) as consumer:
            consumer.commit_with([{"topic": "t", "body": b"h", "key": "k-6"}])
        found = [(m.body, dict(m.attributes)) for m in topic.read(0)]
        assert found == [
            (b"a", {"x": "y", "key": "k-1"}), (b"b", {"key": "k-2"}), (b"c", {}),
            (b"d", {"key": "k-3"}), (b"e", {}), (b"f", {"x": "z", "key": "k-4"}),
            (b"g", {"key": "k-5"}), (b"h", {"key": "k-6"}),
        ]  # fmt: skip
        with pytest.raises(InvalidMessage, match="no text for the attribute 'key'"):
            topic.append(b"x", key=b"\xff")
        with pytest.raises(InvalidMessage, match="attribute 'key'='a,b'"):
            topic.append_batch({"body": [b"x"], "key": ["a,b"]})
        nothing = pa.array([[("x", None)]], pa.map_(pa.string(), pa.string()))
        with pytest.raises(InvalidMessage, match="attribute 'x'=None"):
            topic.append_batch({"body": [b"x"], "key": ["k"], "attributes": nothing})


def test_a_message_above_the_limit_names_the_setting(memory_vfs: MemoryVfs) -> None:
    with tubestore.open("/s", payload_size_max=10, vfs=memory_vfs, background=False) as store:
        topic = store.create_topic("t")
        for append in (lambda: topic.append(b"x" * 11), lambda: topic.append_batch(
            {"body": [b"x" * 11]}
        )):  # fmt: skip
            with pytest.raises(
                MessageTooLarge, match=r"limit of 10 bytes: raise payload_size_max, or"
            ):
                append()
