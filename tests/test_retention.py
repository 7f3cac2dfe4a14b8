"""Retention: what goes, what stays and why; the trash and the leases; readers meanwhile."""

from __future__ import annotations

import errno
import logging
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tubestore.check import check
from tubestore.clock import ManualClock
from tubestore.dump import dump
from tubestore.errors import (
    InvalidMessage,
    NotAStore,
    OffsetOutOfRange,
    ReadOnlyStore,
    StoreLocked,
    UnknownTopic,
)
from tubestore.housekeeping import Housekeeping
from tubestore.manager import MessageStoreManager
from tubestore.records import ENTRY_SIZE
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.topic import Topic
from tubestore.vfs import OsVfs

HOUR = 3_600_000
#: Five messages of 100 bytes and their headers fill a data file, seven entries an index file.
SMALL: dict[str, Any] = {
    "segment_size_bytes": 5 * 152,
    "index_segment_size_bytes": 7 * ENTRY_SIZE,
}


def open_small(vfs: Any, clock: ManualClock, mode: Any = "w", **how: Any) -> MessageStoreManager:
    settings = {**SMALL, **how}
    return tubestore.open("/s", mode, vfs=vfs, clock=clock, background=False, **settings)


@pytest.fixture
def small(memory_vfs: MemoryVfs, clock: ManualClock) -> Any:
    with open_small(memory_vfs, clock) as store:
        yield store


def fill(topic: Topic, clock: ManualClock, count: int = 23, partition: int = 0) -> None:
    """Append a message an hour; the last one is of now."""
    for number in range(count):
        if number:
            clock.advance(HOUR)
        topic.append(b"%0100d" % number, partition=partition)


def numbers(topic: Topic, partition: int = 0) -> list[int]:
    return [int(m.body or b"-1") for m in topic.read(partition, limit=10_000)]


def gone(rows: list[tubestore.SegmentRow], stream: str = "data") -> list[int]:
    return [row.start for row in rows if row.stream == stream and row.verdict == "goes"]


# -- by age ----------------------------------------------------------------------------------


def test_files_go_when_their_newest_message_is_too_old(
    small: MessageStoreManager, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)  # files of messages 0-4, 5-9, 10-14, 15-19, and 20-22
    assert topic.retain(max_age=18 * HOUR) == []  # message 4 is 18 hours old, not older
    rows = topic.retain(max_age=18 * HOUR - 1)
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
    assert gone(topic.retain(max_age=HOUR)) == [0, 760]


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
    with pytest.raises(TypeError, match="a list of names"):
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


def test_a_call_says_otherwise_than_the_settings(
    small: MessageStoreManager, clock: ManualClock
) -> None:
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
    assert (first.first_time, first.last_time) == (now - 22 * HOUR, now - 18 * HOUR)
    assert first.due == now - 8 * HOUR
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


# -- by itself -------------------------------------------------------------------------------


def test_the_background_removes_what_the_settings_let_go(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with open_small(memory_vfs, clock) as store:
        bounded, other = store.create_topic("t", max_age="10h"), store.create_topic("u")
        fill(bounded, clock)
        fill(other, clock)
        store.maintain()
        assert numbers(bounded) == [], "all older than those of the other"
        assert len(numbers(other)) == 23
    with open_small(memory_vfs, clock) as store:
        store.change_topic("u", max_bytes=1)
        store.maintain()
        assert store["u"].opened_shards() == [], "not so soon after opening"
        clock.advance(10_000)
        store.maintain()
        assert numbers(store["u"]) == [20, 21, 22]


def test_a_shard_that_has_nothing_to_lose_is_not_opened(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with open_small(memory_vfs, clock) as store:
        fill(store.create_topic("t", max_age="100h"), clock)
    with open_small(memory_vfs, clock) as store:
        clock.advance(10_000)
        store.maintain()
        assert store["t"].opened_shards() == []


def test_a_topic_that_nobody_uses_is_looked_at_when_it_is_due(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """Ten thousand shards are not to be opened every three minutes to find nothing."""
    with open_small(memory_vfs, clock) as store:
        fill(store.create_topic("t", max_age="10h"), clock, count=3)
        store.create_topic("empty", max_age="10h")
    faulty = FaultyVfs(memory_vfs)

    def opens() -> int:
        clock.advance(180_000)
        before = faulty.calls["open"]
        store.maintain()
        return faulty.calls["open"] - before

    with open_small(faulty, clock) as store:
        assert opens() > 0
        assert [opens() for _ in range(5)] == [0] * 5
        clock.advance(9 * HOUR)
        assert opens() == 0
        clock.advance(HOUR)
        assert opens() > 0
        assert numbers(store["t"]) == []
        store.change_topic("empty", max_age="5h")
        store["empty"].append(b"1" * 100)
        clock.advance(5 * HOUR + 1)
        store.maintain()
        assert numbers(store["empty"]) == []


def test_a_pass_ends_when_the_store_closes(small: MessageStoreManager, clock: ManualClock) -> None:
    for name in ("a", "b", "c"):
        fill(small.create_topic(name, max_age="1h"), clock, count=6)
    clock.advance(100 * HOUR)
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) == 3

    small.keep_house(pause)
    assert [len(numbers(small[name])) for name in ("a", "b", "c")] == [0, 0, 6]


def test_threads_do_it_when_there_are_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = threading.Semaphore(0)
    run = Housekeeping.run

    def counted(self: Housekeeping, *args: Any) -> None:
        run(self, *args)
        passes.release()

    monkeypatch.setattr(Housekeeping, "run", counted)
    monkeypatch.setattr("tubestore.workers.MAINTENANCE_INTERVAL_S", 0.001)
    settings = {**SMALL, "retention_interval_ms": 1, "trash_grace_ms": 0}
    with tubestore.open(tmp_path, **settings) as store:
        topic = store.create_topic("t", max_bytes=1)
        for number in range(103):
            topic.append(b"%0100d" % number)
        while passes.acquire(blocking=False):
            pass
        for _ in range(2):  # the first may have begun before the last message
            assert passes.acquire(timeout=30)
        assert numbers(topic) == [100, 101, 102]


def test_a_topic_that_fails_does_not_keep_the_others(
    memory_vfs: MemoryVfs, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyVfs(memory_vfs)
    with open_small(faulty, clock) as store:
        for name in ("a", "b", "c"):
            fill(store.create_topic(name, max_age="1h"), clock, count=12)
        clock.advance(100 * HOUR)
        faulty.fail("rename", path="/b-0/0")
        with caplog.at_level(logging.WARNING, "tubestore.housekeeping"):
            store.maintain()
        assert [len(numbers(store[name])) for name in ("a", "b", "c")] == [0, 12, 0]
        assert "retention of b" in caplog.text


def test_a_shard_that_will_not_open_does_not_keep_the_others(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with open_small(memory_vfs, clock) as store:
        for name in ("bad", "good"):
            fill(store.create_topic(name), clock)
    memory_vfs.remove(f"/s/bad-0/{760:020d}.tube")
    with open_small(memory_vfs, clock) as store:
        assert {row.topic for row in store.retain(max_bytes=0)} == {"good"}
    with (
        open_small(memory_vfs, clock, "r", on_damage="raise") as reader,
        pytest.raises(NotAStore, match="does not start where"),
    ):
        reader.explain_retention()


# -- the trash -------------------------------------------------------------------------------


def trash_in(vfs: MemoryVfs) -> list[str]:
    return [path for path in vfs.tree() if "/trash/" in path]


def test_the_trash_is_emptied_after_the_grace_time(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t", max_age="10h")
    fill(topic, clock)
    small.create_topic("doomed").append(b"x")
    small.delete_topic("doomed")
    topic.retain()
    assert len(trash_in(memory_vfs)) == 5
    clock.advance(119_999)
    assert small.empty_trash() == 0
    clock.advance(1)
    assert small.empty_trash() == 2 * 760 + 7 * ENTRY_SIZE + 53 + ENTRY_SIZE
    assert trash_in(memory_vfs) == []


def test_the_trash_of_an_earlier_process_is_emptied_too(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with open_small(memory_vfs, clock) as store:
        topic = store.create_topic("t", max_age="10h")
        fill(topic, clock)
        topic.retain()
    assert len(trash_in(memory_vfs)) == 3
    clock.advance(120_000)
    with open_small(memory_vfs, clock) as store:
        clock.advance(10_000)
        store.maintain()
        assert trash_in(memory_vfs) == []


def test_the_trash_can_be_emptied_at_once(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)
    topic.retain(max_bytes=0)
    assert small.empty_trash(grace=0) > 0
    assert trash_in(memory_vfs) == []


# -- leases ----------------------------------------------------------------------------------


def test_what_a_lease_holds_stays_until_it_goes_on_or_ends(
    small: MessageStoreManager, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)
    with small.lease(["t"], holder="a long scan") as lease:
        assert lease.offsets == {"t-0": 0}
        assert topic.retain(max_bytes=0) == []
        reasons = {row.reason for row in topic.explain_retention(max_bytes=0)}
        assert any(
            reason.startswith("held by a lease of a long scan until 20") for reason in reasons
        )
        lease.renew({"t-0": 10 * ENTRY_SIZE})
        assert gone(topic.retain(max_bytes=0)) == [0, 760]
        assert numbers(topic) == list(range(10, 23))
    assert gone(topic.retain(max_bytes=0)) == [1520, 2280]


def test_a_lease_is_forgotten_when_it_expires(
    small: MessageStoreManager, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)
    lease = small.lease(ttl="1m")
    clock.advance(59_999)
    assert topic.retain(max_bytes=0) == []
    clock.advance(1)
    assert len(topic.retain(max_bytes=0)) > 0
    with pytest.raises(OffsetOutOfRange):
        lease.renew()


def test_a_lease_holds_what_is_in_the_trash_already(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """A reader whose lease came a moment after retention had looked for leases."""
    topic = small.create_topic("t")
    fill(topic, clock)
    topic.retain(max_bytes=0)
    with small.lease():
        clock.advance(HOUR // 10)
        assert small.empty_trash() == 0
    assert small.empty_trash() > 0


def test_a_reader_in_another_process_leases_too(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t", stores=2)
    fill(topic, clock)
    fill(topic, clock, partition=10_000)
    with open_small(memory_vfs, clock, "r") as reader:
        with reader.lease(offsets={"t-0": 5 * ENTRY_SIZE}):
            rows = topic.retain(max_bytes=0)
            held = [row.start for row in rows if (row.store_id, row.stream) == (0, "data")]
            assert held == [0]
            assert len([row for row in rows if row.store_id == 1]) > 3
        with pytest.raises(OffsetOutOfRange):
            reader.lease(offsets={"t-0": 0})
        with pytest.raises(UnknownTopic):
            reader.lease(["other"])
        with pytest.raises(InvalidMessage, match="ttl"):
            reader.lease(ttl=0)


def test_where_no_file_can_be_written_there_is_no_lease(
    memory_vfs: MemoryVfs, clock: ManualClock, small: MessageStoreManager
) -> None:
    small.create_topic("t").append(b"x")
    faulty = FaultyVfs(memory_vfs)
    with open_small(faulty, clock, "r") as reader:
        faulty.fail("make_directories", error=errno.EACCES)
        with pytest.raises(ReadOnlyStore, match="no lease"):
            reader.lease()


# -- readers meanwhile -----------------------------------------------------------------------


def test_a_reader_in_another_process_sees_retention_without_errors(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)
    with open_small(memory_vfs, clock, "r") as reader:
        seen = reader["t"]
        stream = seen.scan(columns=["body"])
        messages = seen.messages(0)
        assert int(next(messages).body or b"-1") == 0
        for segment in (*seen.shard(0).files.data, *seen.shard(0).files.index):
            segment.close()  # as the pool of descriptors does
        topic.retain(max_bytes=0)
        assert stream.read_all().num_rows == 23, "a scan sees what was there at the call"
        assert numbers(seen) == list(range(23)), "and a reader what was there at its refresh"
        reader.refresh()
        assert numbers(seen) == [20, 21, 22]
        with pytest.raises(OffsetOutOfRange):
            seen.read(0, 19 * ENTRY_SIZE)
        assert seen.read(0, 20 * ENTRY_SIZE).next_offset == 23 * ENTRY_SIZE


def test_who_comes_too_late_is_told_where_the_store_begins(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """A reader that slept through retention and the grace time, without a lease."""
    topic = small.create_topic("t")
    fill(topic, clock)
    with open_small(memory_vfs, clock, "r") as reader:
        seen = reader["t"]
        shard: Any = seen.shard(0)
        for segment in (*shard.files.data, *shard.files.index):
            segment.close()
        topic.retain(max_bytes=0)
        small.empty_trash(grace=0)
        for read in (lambda: seen.read(0, 0), lambda: seen.scan().read_all()):
            with pytest.raises(OffsetOutOfRange) as caught:
                read()
            assert (caught.value.first, caught.value.end) == (20 * ENTRY_SIZE, 23 * ENTRY_SIZE)
        reader.refresh()
        assert numbers(seen) == [20, 21, 22]


class Interrupted(FaultyVfs):
    """Something happens between the listing of the files and the opening of the first."""

    def __init__(self, inner: MemoryVfs, happening: Any) -> None:
        super().__init__(inner)
        self._happening = happening

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> Any:
        happening, self._happening = self._happening, None
        if happening is not None:
            happening()
        return super().open(path, create=create, writable=writable)


def test_retention_is_no_damage_to_those_who_look_from_outside(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)
    shown = dump("/s", vfs=Interrupted(memory_vfs, lambda: topic.retain(max_bytes=2500)))
    assert sum(batch.num_rows for batch in shown) == 23, "the files of the listing, in the trash"
    interrupted = Interrupted(memory_vfs, lambda: topic.retain(max_bytes=0))
    assert list(check("/s", vfs=interrupted, wait=lambda _: None)) == []
    fill(topic, clock)

    def remove() -> None:
        topic.retain(max_bytes=0)
        small.empty_trash(grace=0)

    gone_for_good = Interrupted(memory_vfs, remove)
    assert list(check("/s", vfs=gone_for_good, wait=lambda _: None)) == []


def test_a_reader_that_opens_while_files_go_sees_a_whole_shard(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    topic = small.create_topic("t")
    fill(topic, clock)

    def remove() -> None:
        topic.retain(max_bytes=0)
        small.empty_trash(grace=0)

    with open_small(Interrupted(memory_vfs, remove), clock, "r") as reader:
        assert numbers(reader["t"]) == [20, 21, 22]


@pytest.mark.parametrize("stream", ["/s/t-0", "/s/t-0/index"])
def test_a_listing_from_which_every_file_has_gone_is_made_again(
    small: MessageStoreManager, memory_vfs: MemoryVfs, clock: ManualClock, stream: str
) -> None:
    """Whoever lists slowly sees names and no files any more, and none of the new names."""
    fill(small.create_topic("t"), clock)

    class Slow(FaultyVfs):
        seen = 0

        def entries(self, directory: str) -> list[tuple[str, bool, int]]:
            found = super().entries(directory)
            self.seen += directory == stream
            if directory == stream and self.seen == 1:
                return [row for row in found if row[1]]
            return found

    slow = Slow(memory_vfs)
    with open_small(slow, clock, "r") as reader:
        slow.seen = 0
        assert numbers(reader["t"]) == list(range(23))
        assert slow.seen > 1


def test_a_reader_beside_a_writer_that_removes_all_the_time_meets_no_other_error(
    tmp_path: Path,
) -> None:
    """Without a grace time: the worst that happens to who is too slow is to be told so."""
    done = threading.Event()
    told: list[OffsetOutOfRange] = []
    seen: list[list[int]] = []
    errors: list[BaseException] = []

    def read() -> None:
        try:
            with tubestore.open(tmp_path, mode="r", vfs=OsVfs(descriptors_max=16)) as reader:
                while not done.is_set():
                    reader.refresh()
                    try:
                        seen.append(numbers(reader["t"]))
                    except OffsetOutOfRange as error:
                        told.append(error)
        except BaseException as error:
            errors.append(error)

    with tubestore.open(tmp_path, background=False, trash_grace_ms=0, **SMALL) as store:
        topic = store.create_topic("t")
        thread = threading.Thread(target=read)
        thread.start()
        try:
            for number in range(400):
                topic.append(b"%0100d" % number)
                if number % 7 == 0:
                    topic.retain(max_bytes=2000)
        finally:
            done.set()
            thread.join()
    assert errors == []
    assert len(seen) + len(told) > 1
    for found in seen:
        assert not found or found == list(range(found[0], found[-1] + 1))
    wrong = [e for e in told if not e.offset < e.first <= e.end]
    assert wrong == []
