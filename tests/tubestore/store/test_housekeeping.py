"""Retention by itself, in the background; the trash and the leases."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.retained import HOUR, SMALL, fill, gone, numbers, open_small
from tests.support.retained import small as small
from tubestore.clock import ManualClock
from tubestore.errors import (
    InvalidMessage,
    NotAStore,
    OffsetOutOfRange,
    ReadOnlyStore,
    UnknownTopic,
)
from tubestore.record.records import ENTRY_SIZE
from tubestore.store.housekeeping import Housekeeping
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs

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
        assert shards_of(store["u"]).opened_shards() == [], "not so soon after opening"
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
        assert shards_of(store["t"]).opened_shards() == []


def test_a_topic_without_a_user_is_checked_when_it_is_due(
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

    engine_of(small).keep_house(pause)
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
    monkeypatch.setattr("tubestore.shard.workers.MAINTENANCE_INTERVAL_S", 0.001)
    settings = {**SMALL, "retention_interval_ms": 1, "trash_grace_ms": 0}
    with tubestore.open(tmp_path, **settings) as store:
        topic = store.create_topic("t", max_bytes=1)
        for number in range(103):
            topic.append(b"%0100d" % number)
            topic.flush()
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
        with caplog.at_level(logging.WARNING, "tubestore.store.housekeeping"):
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
    small.flush()
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
