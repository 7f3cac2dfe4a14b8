"""A filter gives the messages of its items, and none of an item whose 32-bit hash is the same."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.spark.stores import planned, read_plan
from tests.support.tube import open_shard
from tubestore.clock import ManualClock
from tubestore.options import Durability
from tubestore.reading.sources import Filter
from tubestore.reading.view import ShardView
from tubestore.record.layouts import FLAG_HAS_ATTRIBUTES, key_code_of
from tubestore.record.records import ENTRY_SIZE, Row, pack_header
from tubestore.spark.kit.options import ReadOptions
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import Topic, shards_of
from tubestore.testing import MemoryVfs

ITEMS = ["Aa", "BB", None, "Aa", "C", "BB", "BB", "Aa"]


def bodies(found: Any) -> list[bytes]:
    return [m.body for m in found]


@pytest.fixture(params=["memory", "page_cache"])
def topic(store: MessageStoreManager, request: pytest.FixtureRequest) -> Topic:
    level: Durability = request.param
    topic = store.create_topic("t", partitions=2)
    for n, item in enumerate(ITEMS):
        topic.append(b"%d" % n, partition=0, filter_item=item, durability=level)
        topic.append(b"other %d" % n, partition=1, filter_item=item, durability=level)
    return topic


def test_the_hashes_are_equal() -> None:
    assert key_code_of("Aa") == key_code_of("BB") != key_code_of("C")


@pytest.mark.parametrize(
    ("items", "wanted"),
    [
        (["Aa"], b"037"),
        ([" BB "], b"156"),
        (["Aa", "BB"], b"013567"),
        (["BB", "C"], b"1456"),
        (["AaX"], b""),
    ],
)
def test_every_read_compares_the_stored_item(topic: Topic, items: list[str], wanted: bytes) -> None:
    expected = [b"%c" % c for c in wanted]
    both = {*expected, *(b"other " + body for body in expected)}
    assert bodies(topic.read(0, filter_items=items)) == expected
    assert bodies(topic.messages(0, filter_items=items)) == expected
    assert bodies(topic.follow(0, filter_items=items, idle_timeout=0)) == expected
    scanned = topic.scan(filter_items=items).read_all()
    assert set(scanned.column("body").to_pylist()) == both
    index_only = topic.scan(filter_items=items, columns=["offset"]).read_all()
    assert index_only.num_rows == len(both)
    pages = topic.read_many({0: 0, 1: 0}, filter_items=items)
    assert set(pages.table.column("body").to_pylist()) == both


def test_pages_are_full_and_go_on_where_they_stopped(topic: Topic) -> None:
    offset, found = 0, []
    for _ in range(3):
        page = topic.read(0, offset, limit=1, filter_items=["Aa"])
        assert len(page) == 1
        found += bodies(page)
        offset = page.next_offset
    assert found == [b"0", b"3", b"7"]
    assert not len(topic.read(0, offset, filter_items=["Aa"]))
    pages = topic.read_many({0: 0, 1: 28}, limit=2, filter_items=["BB"])
    assert pages.table.column("body").to_pylist() == [b"1", b"other 1", b"5", b"other 5"]


def test_tubemqs_own_call_goes_by_the_hash_as_tubemq_does(topic: Topic) -> None:
    assert len(topic.get_messages(0, 0, filter_items=["Aa"], switch=303)) == 6


def test_an_item_behind_other_attributes_is_found_and_a_row_without_one_stays(
    store: MessageStoreManager,
) -> None:
    topic = store.create_topic("t")
    shard = shards_of(topic).writable(0)
    for n, text in enumerate((b"k=v,$msgType$=BB", b"k=v,$msgType$=Aa", b"$msgType$=Aa", b"k=v")):
        payload = struct.pack(">i", len(text)) + text + b"%d" % n
        header = pack_header(0, key_code_of("Aa"), 1, 0, n, FLAG_HAS_ATTRIBUTES, payload)
        shard.append_record(header, payload, "page_cache")
    assert bodies(topic.read(0, filter_items=["Aa"])) == [b"1", b"2", b"3"]


def test_records_in_several_files_are_compared(clock: ManualClock, tmp_path: Path) -> None:
    with tubestore.open(tmp_path, clock=clock, segment_size_bytes=300, background=False) as store:
        topic = store.create_topic("t")
        for n in range(40):
            topic.append(b"%d" % n, filter_item=("Aa", "BB")[n % 2])
        even = [b"%d" % n for n in range(0, 40, 2)]
        assert bodies(topic.read(0, filter_items=["Aa"])) == even
        assert topic.scan(filter_items=["Aa"], columns=["offset"]).read_all().num_rows == 20
    options = ReadOptions.parse({"path": str(tmp_path), "filterItems": "Aa"})
    made = planned(tmp_path)
    for columns in (None, ["offset"]):
        rows = read_plan(made, columns=columns, filter=options.filter)
        assert [row["offset"] for row in rows] == [28 * n for n in range(0, 40, 2)]


def test_items_that_only_share_a_hash_are_left_out_of_several_files(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, segment_size_bytes=500, background=False) as store:
        topic = store.create_topic("t")
        for _ in range(7):
            topic.append(bytes(100), filter_item="Aa")
        assert bodies(topic.read(0, filter_items=["BB"])) == []
        assert bodies(topic.messages(0, filter_items=["BB"])) == []
        assert bodies(topic.follow(0, filter_items=["BB"], idle_timeout=0)) == []
        assert topic.read_many({0: 0}, filter_items=["BB"]).table.num_rows == 0
        assert topic.scan(filter_items=["BB"]).read_all().num_rows == 0


@pytest.fixture
def filtered_view() -> ShardView:
    """5,000 messages of one partition, every 50th with key code 1, a time each."""
    rows = [Row(0, int(n % 50 == 0), n, 0, n, 0, b"body %d" % n) for n in range(5000)]
    shard = open_shard(MemoryVfs())
    for row in rows:
        shard.append(row, "memory")
    shard.flush()
    return shard.view()


def offsets_of(found: Any) -> list[int]:
    return [int(o) for rows in found.rows for o in rows.offsets]


def test_a_filter_looks_only_at_what_can_pass(
    filtered_view: ShardView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Posting lists of the key code, and times, choose before an entry is looked at."""
    looked_at = 0
    mask = Filter.mask

    def counting(self: Filter, entries: Any) -> Any:
        nonlocal looked_at
        looked_at += len(entries)
        return mask(self, entries)

    monkeypatch.setattr(Filter, "mask", counting)
    find = filtered_view.find
    keyed = find(0, 0, limit=1000, max_bytes=None, wanted=Filter(frozenset({1})))
    assert offsets_of(keyed) == [n * ENTRY_SIZE for n in range(0, 5000, 50)]
    assert looked_at == 100
    looked_at = 0
    timed = find(0, 0, limit=1000, max_bytes=None, wanted=Filter(None, 4000, 4100))
    assert offsets_of(timed) == [n * ENTRY_SIZE for n in range(4000, 4100)]
    assert looked_at == 100
