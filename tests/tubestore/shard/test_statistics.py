"""What a store says of itself, as a dict and for Prometheus."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

import tubestore
from tests.support.tube import RunningClock
from tubestore import metrics
from tubestore.clock import ManualClock
from tubestore.shard.statistics import LARGEST, SUMMED
from tubestore.store.manager import MessageStoreManager
from tubestore.testing import FaultyVfs, MemoryVfs


@pytest.fixture
def store(memory_vfs: MemoryVfs, clock: ManualClock) -> Iterator[MessageStoreManager]:
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False) as opened:
        opened.create_topic("a", partitions=2, stores=2)
        opened.create_topic("b")
        yield opened


def test_a_store_that_did_nothing_has_zeros_and_no_topics(store: MessageStoreManager) -> None:
    found = store.stats()
    assert found["topics"] == {}
    assert {found[name] for name in (*SUMMED, *LARGEST)} == {0}


def test_appends_are_counted_by_shard_topic_and_store(store: MessageStoreManager) -> None:
    store["a"].append(b"xyz", partition=0)
    store["a"].append(b"xyz", partition=10_000, durability="memory")
    store["b"].append_batch({"body": [b"1", b"2", b"3"]})
    found = store.stats()
    assert found["appends"] == 5
    assert found["append_bytes"] == 5 * 52 + 9
    assert found["topics"]["a"]["appends"] == 2
    assert [s["appends"] for s in found["topics"]["a"]["shards"].values()] == [1, 1]
    assert found["topics"]["b"]["shards"][0]["append_bytes"] == 3 * 53


def test_what_waits_in_memory_has_bytes_and_an_age(
    store: MessageStoreManager, clock: ManualClock
) -> None:
    store["b"].append(b"x", durability="memory")
    clock.advance(1500)
    found = store.stats()
    assert (found["dirty_bytes"], found["oldest_unflushed_seconds"]) == (53, 1.5)
    assert found["memory_bytes"] >= 53
    store.flush()
    found = store.stats()
    assert (found["dirty_bytes"], found["oldest_unflushed_seconds"]) == (0, 0)
    assert (found["unsynced_bytes"], found["swaps"]) == (53, 1)


def test_syncs_are_counted_and_timed(memory_vfs: MemoryVfs) -> None:
    with tubestore.open("/s", vfs=memory_vfs, clock=RunningClock(), background=False) as store:
        topic = store.create_topic("t")
        for _ in range(2):
            topic.append(b"x")
            topic.sync()
        found = store.stats()
        assert (found["syncs"], found["sync_seconds"], found["sync_seconds_max"]) == (2, 2, 1)
        assert found["unsynced_bytes"] == 0


def test_appends_that_wait_and_give_up_are_counted(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    settings: dict[str, Any] = {"mem_store_messages": 2, "durability": "memory"}
    with tubestore.open(
        "/s", vfs=faulty, clock=RunningClock(), background=False, **settings
    ) as store:
        topic = store.create_topic("t")
        faulty.fail("pwrite", error=errno.ENOSPC, forever=True)
        for _ in range(2):
            topic.append(b"x")
        with pytest.raises((tubestore.DiskFull, tubestore.StoreBusy)):
            topic.append(b"x")
        assert store.stats()["stalls"] == 1
        assert store.stats()["stall_seconds"] > 0
        assert (store.stats()["refused"], store.stats()["disk_full"]) == (1, 1)
        assert 'tubestore_disk_full{store_id="0",topic="t"} 1.0' in metrics.text(store)
        assert 'tubestore_refused_total{store_id="0",topic="t"} 1.0' in metrics.text(store)
        faulty.heal()
        topic.append(b"x")
        assert (store.stats()["refused"], store.stats()["disk_full"]) == (1, 0)


def test_a_shard_that_failed_is_counted(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, clock=ManualClock(), background=False)
    topic = store.create_topic("t")
    topic.append(b"x")
    faulty.fail("sync")
    with pytest.raises(tubestore.StoreFailed):
        topic.sync()
    assert store.stats()["failed"] == 1
    with pytest.raises(tubestore.StoreFailed):
        store.close()


def test_reads_and_the_journal_are_counted(store: MessageStoreManager) -> None:
    store.ensure_topics({f"t{n}": tubestore.TopicOptions() for n in range(10)})
    rows = {"topic": [f"t{n}" for n in range(10)], "body": [b"x"] * 10}
    store.append_batch(rows)
    assert store.stats()["journal_bytes"] > 10 * 53
    assert store.stats()["journal_syncs"] == 0
    store.append_batch(rows, durability="fsync")
    store["t0"].append(b"x", durability="fsync")
    assert store.stats()["journal_syncs"] == 2
    store["t3"].read(0)
    assert store.stats()["topics"]["t3"]["reads"] >= 1


def test_statistics_of_a_closed_store_are_refused(memory_vfs: MemoryVfs) -> None:
    store = tubestore.open("/s", vfs=memory_vfs, background=False)
    store.close()
    with pytest.raises(tubestore.StoreClosed):
        store.stats()
