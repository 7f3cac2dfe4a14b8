"""Reading a topic: pages, filters, streams, and damage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tubestore
from tests.support.topics import T0, bodies
from tests.support.topics import filled as filled
from tests.support.topics import topic as topic
from tubestore.clock import ManualClock
from tubestore.errors import (
    CorruptRecord,
    InvalidMessage,
    OffsetOutOfRange,
    StoreClosed,
)
from tubestore.groups.waiter import Waiter
from tubestore.offline.check import check
from tubestore.reading import view as read_path
from tubestore.record.layouts import DATA_HEADER, INDEX_ENTRY
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import Topic, shards_of
from tubestore.testing import MemoryVfs

# -- pages -----------------------------------------------------------------------------------


def test_pages_of_a_limit_give_everything_once(filled: Topic) -> None:
    for limit in (1, 3, 24, 25, 26, 1000):
        found: list[bytes | None] = []
        page = filled.read(1, limit=limit)
        while True:
            found += bodies(page)
            assert len(page) <= limit
            assert page.truncated == (len(found) < 25)
            if not page.truncated:
                break
            page = filled.read(1, page.next_offset, limit=limit)
        assert found == [b"%03d" % n for n in range(1, 100, 4)]
        assert page.end_offset == 100 * ENTRY_SIZE
        assert page.next_offset <= page.end_offset


def test_a_page_stops_at_max_bytes_but_has_one_message(filled: Topic) -> None:
    size = 52 + 3  # and attributes, for most
    assert len(filled.read(0, max_bytes=1)) == 1
    assert len(filled.read(0, max_bytes=0)) == 1
    page = filled.read(0, max_bytes=10 * size)
    assert 1 <= len(page) < 10
    assert page.truncated
    found = []
    position: Any = "earliest"
    while True:
        page = filled.read(0, position, max_bytes=200)
        found += bodies(page)
        position = page.next_offset
        if not page.truncated:
            break
    assert found == [b"%03d" % n for n in range(0, 100, 4)]
    assert len(filled.read(0, max_bytes=None)) == 25


def test_a_page_of_no_messages_does_not_pass_any_by(filled: Topic) -> None:
    page = filled.read(0, limit=0)
    assert len(page) == 0
    assert page.truncated
    assert bodies(filled.read(0, page.next_offset)) == bodies(filled.read(0))
    with pytest.raises(ValueError, match="limit"):
        filled.read(0, limit=-1)


def test_reading_at_the_end_is_an_empty_page_and_goes_on_later(filled: Topic) -> None:
    page = filled.read(3, "latest")
    assert (len(page), page.truncated) == (0, False)
    assert page.next_offset == page.end_offset == 100 * ENTRY_SIZE
    filled.append(b"new", partition=3)
    assert bodies(filled.read(3, page.next_offset)) == [b"new"]


def test_an_idle_partition_gives_the_end_to_go_on_from(store: MessageStoreManager) -> None:
    topic = store.create_topic("t", partitions=2)
    for _ in range(10):
        topic.append(b"x", partition=0)
    page = topic.read(1)
    assert (len(page), page.next_offset, page.truncated) == (0, 10 * ENTRY_SIZE, False)


def test_an_offset_between_messages_is_rounded_up(filled: Topic) -> None:
    assert bodies(filled.read(0, 1, limit=1)) == [b"004"]
    assert bodies(filled.read(1, 1, limit=1)) == [b"001"]
    assert bodies(filled.read(1, 28, limit=1)) == [b"001"]
    assert bodies(filled.read(1, 29, limit=1)) == [b"005"]


@pytest.mark.parametrize("offset", [-1, 100 * ENTRY_SIZE + 1, 1 << 62])
def test_an_offset_outside_is_an_error_that_reports_what_is_there(
    filled: Topic, offset: int
) -> None:
    with pytest.raises(OffsetOutOfRange) as caught:
        filled.read(0, offset)
    assert (caught.value.first, caught.value.end) == (0, 2800)


@pytest.mark.parametrize("offset", [None, "first", 1.5, b"0"])
def test_an_offset_of_another_type_is_refused(filled: Topic, offset: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        filled.read(0, offset)


@pytest.mark.parametrize("partition", [4, -1, 10_000, "0", None, 1 << 70])
def test_a_partition_that_is_none_of_the_topic_s_is_refused(filled: Topic, partition: Any) -> None:
    with pytest.raises(InvalidMessage):
        filled.read(partition)


def test_filter_items_and_times_choose_messages(filled: Topic) -> None:
    evens = [n for n in range(100) if n % 3 == 0]
    expected = [b"%03d" % n for n in evens if n % 4 == 2]
    assert bodies(filled.read(2, filter_items=["even"])) == expected
    assert bodies(filled.read(2, filter_items=["even", "nothing"])) == expected
    assert bodies(filled.read(2, filter_items=[])) == []
    page = filled.read(2, start=T0 + 50, end=T0 + 94)
    assert bodies(page) == [b"%03d" % n for n in range(50, 94, 4)]
    both = filled.read(
        2, filter_items=["even"], start=datetime.fromtimestamp((T0 + 50) / 1000, UTC)
    )
    assert bodies(both) == [b"%03d" % n for n in evens if n % 4 == 2 and n >= 50]
    with pytest.raises(TypeError, match="a list of texts"):
        filled.read(2, filter_items="even")


def test_filtered_pages_give_everything_once(filled: Topic) -> None:
    found, position, pages = [], 0, 0
    while True:
        page = filled.read(1, position, filter_items=["odd"], limit=2)
        found += bodies(page)
        position, pages = page.next_offset, pages + 1
        if not page.truncated:
            break
    assert found == [b"%03d" % n for n in range(1, 100, 4) if n % 3 == 1]
    assert pages <= 1 + len(found) // 2


@pytest.mark.parametrize(
    "read",
    [
        lambda topic, columns: topic.scan(columns=columns).read_all(),
        lambda topic, columns: topic.read(1, columns=columns).table,
        lambda topic, columns: topic.read_many({1: "earliest"}, columns=columns).table,
        lambda topic, columns: topic.read_many({1: "earliest"}, columns=columns)[1].table,
    ],
)
def test_the_former_name_of_the_column_partition_is_warned_of_and_kept(
    filled: Topic, read: Callable[[Topic, list[str]], pa.Table]
) -> None:
    with pytest.warns(DeprecationWarning, match="partition_id is named partition") as warned:
        old = read(filled, ["partition_id", "offset"])
    assert [each.filename for each in warned] == [__file__]
    assert old.rename_columns(["partition", "offset"]) == read(filled, ["partition", "offset"])
    assert old.num_rows > 0


def test_columns_choose_what_is_read(filled: Topic) -> None:
    page = filled.read(0, columns=["body", "offset"], limit=1)
    assert page.table.column_names == ["body", "offset"]
    assert len(filled.read(0, columns=[], limit=3).table.column_names) == 0
    with pytest.raises(ValueError, match="nonsense"):
        filled.read(0, columns=["nonsense"])


def test_a_page_is_an_arrow_stream_as_often_as_one_likes(filled: Topic) -> None:
    page = filled.read(0)
    assert pa.table(page) == pa.table(page) == page.table
    assert "Page(25 messages" in repr(page)


# -- many messages ---------------------------------------------------------------------------


def test_messages_are_those_of_the_call_and_end(filled: Topic) -> None:
    found = []
    for message in filled.messages(1):
        found.append(message.body)
        if len(found) < 50:
            filled.append(b"while reading", partition=1)
    assert found == [b"%03d" % n for n in range(1, 100, 4)]
    assert list(filled.messages(1, "latest")) == []


def test_messages_go_over_many_pages(store: MessageStoreManager) -> None:
    topic = store.create_topic("t", partitions=2)
    topic.append_batch(
        {"body": [b"%d" % n for n in range(5000)], "partition": [n % 2 for n in range(5000)]}
    )
    assert [m.body for m in topic.messages(1)] == [b"%d" % n for n in range(1, 5000, 2)]


def test_following_ends_when_nothing_came_for_a_while(filled: Topic, clock: ManualClock) -> None:
    following = filled.follow(0, 80 * ENTRY_SIZE, idle_timeout=0)
    assert [m.body for m in following] == [b"080", b"084", b"088", b"092", b"096"]


def test_a_scan_sees_all_shards_in_the_order_of_offsets(store: MessageStoreManager) -> None:
    topic = store.create_topic("t", partitions=2, stores=3)
    for number in range(60):
        topic.append(b"%02d" % number, partition=number % 3 * 10_000 + number % 2)
    with topic.scan(columns=["store_id", "offset", "body"]) as reader:
        topic.append(b"later", partition=0)
        table = reader.read_all()
    assert table.num_rows == 60
    keys = list(
        zip(table.column("store_id").to_pylist(), table.column("offset").to_pylist(), strict=True)
    )
    assert keys == sorted(keys)


def test_a_scan_filters_by_item_and_time(filled: Topic) -> None:
    table = filled.scan(filter_items=["even", "odd"], start=T0 + 10, end=T0 + 96).read_all()
    assert table.column("body").to_pylist() == [
        b"%03d" % n for n in range(10, 96) if n % 3 in (0, 1)
    ]
    assert filled.scan(filter_items=["none"]).read_all().num_rows == 0


def test_the_partitions_table_counts_messages(filled: Topic) -> None:
    table = filled.partitions()
    assert table.column("partition").to_pylist() == [0, 1, 2, 3]
    assert table.column("count").to_pylist() == [25] * 4
    assert set(table.column("next").to_pylist()) == {100 * ENTRY_SIZE}
    assert table.column("first").to_pylist() == [n * ENTRY_SIZE for n in range(4)]
    assert table.column("oldest").cast(pa.int64()).to_pylist() == [T0 + n for n in range(4)]
    stored = [sum(_record_sizes(filled, p)) for p in range(4)]
    assert table.column("bytes").to_pylist() == stored


def _record_sizes(topic: Topic, partition: int) -> list[int]:
    found = shards_of(topic).shard(0).view().find(partition, 0, limit=1000, max_bytes=None)
    return [int(size) for rows in found.rows for size in rows.entries["data_size"]]


def test_partitions_without_messages_begin_where_they_go_on(store: MessageStoreManager) -> None:
    topic = store.create_topic("t", partitions=2, stores=2)
    topic.append(b"x", partition=10_001)
    rows = topic.partitions().to_pylist()
    assert [r["partition"] for r in rows] == [0, 1, 10_000, 10_001]
    assert [(r["first"], r["next"], r["count"]) for r in rows] == [
        (0, 0, 0), (0, 0, 0), (28, 28, 0), (0, 28, 1)
    ]  # fmt: skip
    assert [r["oldest"] is None for r in rows] == [True, True, True, False]


def test_the_message_at_an_offset_is_of_this_partition_or_none(filled: Topic) -> None:
    message = filled.message_at(1, ENTRY_SIZE)
    assert message is not None
    assert message.body == b"001"
    assert filled.message_at(0, ENTRY_SIZE) is None
    assert filled.message_at(0, 100 * ENTRY_SIZE) is None


# -- damage ----------------------------------------------------------------------------------


def test_an_unreadable_message_is_a_row_or_an_error_as_one_chooses(
    store: MessageStoreManager, filled: Topic, memory_vfs: MemoryVfs
) -> None:
    filled.sync()
    path = f"/store/logs-0/{0:020d}.tube"
    memory_vfs.open(path).pwrite(b"nope", 4)
    (first, *others) = list(filled.read(0))
    assert (first.state, first.body, first.partition) == ("bad_record", None, 0)
    assert {m.state for m in others} == {"ok"}
    with tubestore.open("/store", mode="r", vfs=memory_vfs, on_damage="raise") as strict:
        logs = strict.topic("logs")
        with pytest.raises(CorruptRecord, match="bad_record"):
            logs.read(0)
        with pytest.raises(CorruptRecord):
            logs.scan(columns=["body"]).read_all()
        assert len(logs.read(1, columns=["body"]).table.column_names) == 1


def test_a_flipped_bit_is_seen_when_one_asks_for_checksums(
    filled: Topic, memory_vfs: MemoryVfs
) -> None:
    filled.sync()
    path = f"/store/logs-0/{0:020d}.tube"
    data = memory_vfs.read_file(path)
    at = data.index(b"008")
    memory_vfs.open(path).pwrite(b"#", at)
    assert {m.state for m in filled.read(0)} == {"ok"}
    states = [m.state for m in filled.read(0, verify=True)]
    assert states == ["ok", "ok", "bad_checksum"] + ["ok"] * 22


def test_what_expired_is_not_counted_and_not_read(memory_vfs: MemoryVfs) -> None:
    """An index file outlives a data file: TubeMQ removes each by its own age."""
    with tubestore.open("/s", vfs=memory_vfs, background=False, segment_size_bytes=300) as store:
        logs = store.create_topic("t", partitions=2)
        for number in range(20):
            logs.append(b"%d" % number, partition=number % 2)
            logs.flush()
    memory_vfs.remove(f"/s/t-0/{0:020d}.tube")
    with tubestore.open("/s", mode="r", vfs=memory_vfs) as store:
        logs = store["t"]
        first = logs.partitions().column("first").to_pylist()
        assert first == [6 * ENTRY_SIZE, 7 * ENTRY_SIZE]
        gone = first[0] // ENTRY_SIZE
        counts = logs.partitions().column("count").to_pylist()
        assert counts == [10 - (gone + 1) // 2, 10 - gone // 2]
        bodies = [m.body for p in (0, 1) for m in logs.read(p)]
        assert sorted(bodies) == sorted(b"%d" % n for n in range(gone, 20))
        assert logs.scan().read_all().num_rows == 20 - gone
        with pytest.raises(OffsetOutOfRange):
            logs.read(0, first[0] - ENTRY_SIZE)


# -- streams with limits, views --------------------------------------------------------------


def test_a_scan_ends_at_its_limits(filled: Topic) -> None:
    whole = filled.scan().read_all()
    for limit in (0, 1, 42, 100, 101):
        assert filled.scan(limit=limit).read_all() == whole.slice(0, limit)
    sizes = [52 + 3, 52 + 3 + 46]
    table = filled.scan(max_bytes=sum(sizes) * 5).read_all()
    assert 0 < table.num_rows < 20
    assert table == whole.slice(0, table.num_rows)
    assert filled.scan(max_bytes=0).read_all().num_rows == 0


def test_messages_may_be_filtered(filled: Topic) -> None:
    found = [m.body for m in filled.messages(1, filter_items=["odd"], start=T0 + 20)]
    assert found == [b"%03d" % n for n in range(21, 100, 4) if n % 3 == 1]


def test_views_show_the_same_as_copies_wherever_a_body_is(
    store: MessageStoreManager, memory_vfs: MemoryVfs
) -> None:
    bodies_ = [b"x" * n or b"-" for n in range(200)]
    with tubestore.open(
        "/views", vfs=memory_vfs, segment_size_bytes=5000, background=False
    ) as small:
        topic = small.create_topic("t")
        for number, body in enumerate(bodies_):
            topic.append(
                body,
                filter_item="f" if number % 3 == 0 else None,
                durability="memory" if number > 190 else "page_cache",
            )
        copies = topic.read(0, columns=["offset", "body", "filter_item"])
        page = topic.read(0, columns=["offset", "body", "filter_item"], zero_copy=True)
        assert page.table.schema.field("body").type == pa.binary_view()
        page.table.validate(full=True)
        scanned = topic.scan(columns=["body"], zero_copy=True).read_all()
        many = topic.read_many({0: 0}, columns=["body"], zero_copy=True).table
    for table in (page.table, scanned, many):  # after close, too
        assert table.column("body").to_pylist() == bodies_
    assert page.table.column("filter_item") == copies.table.column("filter_item")


@pytest.mark.parametrize("size", [1, 3, 4, 12, 13, 1000])
@pytest.mark.parametrize("others", ["none", "like it", "of any size"])
def test_bodies_of_one_size_are_read_as_others_wherever_they_are(
    store: MessageStoreManager, memory_vfs: MemoryVfs, size: int, others: str
) -> None:
    topic = store.create_topic("even", partitions=2)
    mine = [bytes([n]) * size for n in range(20)]
    for number, body in enumerate(mine):
        topic.append(body, partition=0)
        if others != "none":
            topic.append(b"o" * (size if others == "like it" else 5 + number % 7), partition=1)
    store.sync()
    with tubestore.open("/store", mode="r", vfs=memory_vfs) as reader:
        even = reader["even"]
        for columns in (["offset", "body"], ["body"], ["body", "msg_id", "flag", "state"]):
            for zero_copy in (False, True):
                table = even.read(0, columns=columns, zero_copy=zero_copy, verify=True).table
                table.validate(full=True)
                assert table.column("body").to_pylist() == mine
                assert even.read(0, limit=1, columns=columns, zero_copy=zero_copy).table.equals(
                    table.slice(0, 1)
                )
        whole = even.read(0).table
    step = HEADER_SIZE + size if others == "none" else 0
    assert whole.column("msg_id").to_pylist() == sorted(set(whole.column("msg_id").to_pylist()))
    if step:  # one bad record among equal ones at one distance
        memory_vfs.open(f"/store/even-0/{0:020d}.tube").pwrite(b"nope", 7 * step + 4)
        page = topic.read(0, columns=["body", "state"])
        assert page.table.column("body").to_pylist() == [*mine[:7], None, *mine[8:]]
        assert page.table.column("state").to_pylist().index("bad_record") == 7


def test_a_page_of_many_bytes_is_fetched_in_parts(
    store: MessageStoreManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("long", partitions=1)
    mine = [b"%d" % n * (1 + n % 50) for n in range(500)]
    topic.append_batch(pa.table({"body": mine}))
    whole = topic.read(0).table
    monkeypatch.setattr(read_path, "_FEW_ROWS", 10)
    monkeypatch.setattr(read_path, "_FETCHED_BYTES", 3000)
    parts = topic.read(0).table
    assert parts.column("body").num_chunks > 10
    assert parts.combine_chunks() == whole.combine_chunks()
    assert topic.read(0, columns=["offset"]).table.column("offset").num_chunks == 1
    monkeypatch.setattr(read_path, "_FETCHED_BYTES", 1)  # less than a record: one at a time
    assert topic.read(0, limit=20).table.column("body").to_pylist() == mine[:20]


def test_views_show_the_mapped_file_and_copies_do_not(tmp_path: Path) -> None:
    """MEM-01: what changes in a sealed file changes in the views of it, and in nothing else."""
    body = b"a body of more than twelve bytes, which a view would hold itself"
    with tubestore.open(tmp_path, segment_size_bytes=200, background=False) as small:
        topic = small.create_topic("t")
        for _ in range(4):
            topic.append(body)
            topic.flush()
        copies = topic.read(0, columns=["body"]).table
        views = topic.read(0, columns=["body"], zero_copy=True).table
        with (tmp_path / "t-0" / f"{0:020d}.tube").open("r+b") as file:
            file.seek(HEADER_SIZE)
            file.write(b"THE SAME")
        assert copies["body"][0].as_py() == body
        assert views["body"][0].as_py() == b"THE SAME" + body[8:]
        assert views["body"][3].as_py() == body  # in the file that is written to


def test_an_unreadable_body_is_null_among_views(filled: Topic, memory_vfs: MemoryVfs) -> None:
    filled.sync()
    memory_vfs.open(f"/store/logs-0/{0:020d}.tube").pwrite(b"nope", 4)
    page = filled.read(0, columns=["body", "state"], zero_copy=True)
    page.table.validate(full=True)
    assert page.table.column("body").to_pylist() == [None, *bodies(filled.read(0))[1:]]


# -- following -------------------------------------------------------------------------------


def test_following_is_woken_by_what_this_process_appends(tmp_path: Any) -> None:
    with tubestore.open(tmp_path / "s") as store, ThreadPoolExecutor(1) as threads:
        topic = store.create_topic("t")
        for durability in ("memory", "page_cache"):
            following = topic.follow(0, "latest")
            later = threads.submit(next, following)
            topic.append(b"now", durability=durability)  # type: ignore[arg-type]
            assert later.result(30).body == b"now"
            topic.append_batch({"body": [b"more"]})
            assert next(following).body == b"more"


def test_following_is_woken_by_what_another_process_appends(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    how: Any = {"vfs": memory_vfs, "clock": clock, "background": False}
    with tubestore.open("/s", **how) as store, ThreadPoolExecutor(1) as threads:
        topic = store.create_topic("t")
        topic.append(b"first", durability="page_cache")
        with tubestore.open("/s", "r", **how) as reader:
            following = reader["t"].follow(0)
            assert next(following).body == b"first"
            for body in (b"second", b"third"):
                later = threads.submit(next, following)
                topic.append(body, durability="page_cache")
                assert later.result(60).body == body


def test_following_a_topic_that_another_process_deletes_ends_with_an_error(
    memory_vfs: MemoryVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: Any = {"vfs": memory_vfs, "clock": clock, "background": False}
    with tubestore.open("/s", **how) as store:
        store.create_topic("t").append(b"first", durability="page_cache")
        with tubestore.open("/s", "r", **how) as reader:
            # No call reports the deletion: the follower looks by itself, again and again.
            def wait(self: Waiter, seconds: float) -> None:
                assert seconds <= 1
                store.delete_topic("t")

            monkeypatch.setattr(Waiter, "wait", wait)
            with pytest.raises(OffsetOutOfRange):
                next(reader["t"].follow(0, "latest"))


@pytest.mark.parametrize("mode", ["w", "r"])
def test_following_ends_with_an_error_when_the_store_is_closed(
    memory_vfs: MemoryVfs, clock: ManualClock, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: Any = {"vfs": memory_vfs, "clock": clock, "background": False}
    waits = threading.Event()
    wait = Waiter.wait

    def waiting(self: Waiter, seconds: float | None) -> bool:
        waits.set()
        return wait(self, seconds)

    monkeypatch.setattr(Waiter, "wait", waiting)
    with tubestore.open("/s", **how) as store:
        store.create_topic("t").append(b"first")
    store = tubestore.open("/s", mode, **how)
    following = store["t"].follow(0, "latest")
    with ThreadPoolExecutor(1) as threads:
        later = threads.submit(next, following)
        assert waits.wait(60)
        store.close()
        with pytest.raises(StoreClosed):
            later.result(60)


@pytest.mark.parametrize("field", ["partition_id", "key_code", "received_time"])
def test_verify_compares_an_entry_with_its_record(field: str) -> None:
    vfs = MemoryVfs(ManualClock(T0))
    with tubestore.open("/s", vfs=vfs, clock=ManualClock(T0), background=False) as store:
        topic = store.create_topic("t", partitions=4)
        for n in range(3):
            topic.append(b"message %d" % n, partition=0)
        topic.flush()
        file = vfs.open("/s/t-0/00000000000000000000.tube")
        at = DATA_HEADER.slice(field).stop - 1
        (byte,) = file.pread(1, at)
        file.pwrite(bytes([byte ^ 1]), at)
        states = [m.state for m in topic.read(0, verify=True)]
        assert states == ["entry_differs", "ok", "ok"]
        assert [m.state for m in topic.read(0)] == ["ok"] * 3
    strict = tubestore.open("/s", "r", vfs=vfs, on_damage="raise")
    with strict, pytest.raises(CorruptRecord, match="entry_differs"):
        strict["t"].read(0, verify=True)


def test_a_scan_that_verifies_marks_a_message_with_an_entry_of_another_partition() -> None:
    vfs = MemoryVfs(ManualClock(T0))
    with tubestore.open("/s", vfs=vfs, clock=ManualClock(T0), background=False) as store:
        topic = store.create_topic("t", partitions=4)
        for n in range(3):
            topic.append(b"message %d" % n, partition=n)
    path = "/s/t-0/index/00000000000000000000.index"
    file = vfs.open(path)
    file.pwrite(b"\x01", ENTRY_SIZE + INDEX_ENTRY.slice("partition_id").stop - 2)
    with tubestore.open("/s", "r", vfs=vfs) as reader:
        topic = reader["t"]
        assert [m.body for p in range(4) for m in topic.messages(p, verify=True)] == [
            b"message 0",
            b"message 2",
        ]
        states = [row for batch in topic.scan(verify=True) for row in batch["state"].to_pylist()]
        assert states == ["ok", "entry_differs", "ok"]
    found = {f.reason: (f.path, f.position) for f in check("/s", vfs=vfs)}
    assert found["entry_differs"] == (path, ENTRY_SIZE)


@pytest.mark.parametrize("verify", [True, False])
def test_a_consumer_and_a_follower_compare_checksums_if_they_are_asked_to(verify: bool) -> None:
    vfs = MemoryVfs(ManualClock(T0))
    with tubestore.open("/s", vfs=vfs, clock=ManualClock(T0), background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"message")
        topic.flush()
        file = vfs.open("/s/t-0/00000000000000000000.tube")
        file.pwrite(b"?", file.size() - 1)
        with store.consumer(None, "t", verify=verify) as consumer:
            states = [m.state for m in consumer.poll()]
        assert states == ["bad_checksum" if verify else "ok"]
        followed = topic.follow(0, idle_timeout=0, verify=verify)
        assert [m.state for m in followed] == states
