"""The shards of all topics: closed, relieved and refreshed together."""

from __future__ import annotations

import errno
import threading

import pytest

import tubestore
from tests.support.engine.ended import bodies
from tests.support.tube import RunningClock
from tubestore.clock import ManualClock
from tubestore.errors import StoreFailed
from tubestore.shard.message_store import MessageStore
from tubestore.store.manager import engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs


def test_all_shards_are_closed_even_when_one_fails(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, background=False, durability="memory")
    topic = store.create_topic("t", stores=3)
    topic.append_batch({"body": [b"x"] * 3, "partition": [0, 10_000, 20_000]})
    faulty.fail("pwrite", path="t-1", error=errno.EIO)
    with pytest.raises(StoreFailed):
        store.close()
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        counts = [len(store["t"].read(p)) for p in (0, 10_000, 20_000)]
    assert counts == [1, 0, 1]


def test_a_shard_that_another_thread_opens_during_close_is_closed(memory_vfs: MemoryVfs) -> None:
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        store.create_topic("t").append(b"0")
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, background=False)
    topic = store["t"]
    closing = threading.Thread(target=store.close)
    ask = faulty.ask

    def close_meanwhile(call: str, path: str) -> None:
        faulty.ask = ask  # type: ignore[method-assign]
        closing.start()
        for _ in range(10_000):
            if "closed" in repr(store):
                break
            threading.Event().wait(0.001)
        ask(call, path)

    faulty.ask = close_meanwhile  # type: ignore[method-assign]
    shard = shards_of(topic).shard(0)
    closing.join(30)
    assert isinstance(shard, MessageStore)
    assert shard.is_over()


def test_a_failed_shard_does_not_stop_the_others(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, background=False)
    topic = store.create_topic("t", stores=2)
    topic.append(b"x", partition=0)
    faulty.fail("sync", path="t-0")
    with pytest.raises(StoreFailed):
        topic.sync()
    topic.append(b"y", partition=10_000, durability="memory")
    assert bodies(topic, 10_000) == [b"y"]
    assert bodies(topic, 0) == [b"x"]
    with pytest.raises(StoreFailed, match="t-0"):
        store.close()
    with tubestore.open("/s", vfs=memory_vfs, background=False) as again:
        assert bodies(again["t"], 10_000) == [b"y"]


def test_a_new_topic_does_not_wait_for_room_that_idle_ones_hold(memory_vfs: MemoryVfs) -> None:
    """At the bound of all buffers the oldest are flushed first (D8)."""
    with tubestore.open(
        "/s",
        vfs=memory_vfs,
        clock=RunningClock(),
        background=False,
        durability="memory",
        memory_bound_bytes=4 * (64 << 10),
    ) as store:
        topic = store.create_topic("t", stores=10)
        for number in range(10):
            topic.append(b"x", partition=number * 10_000)
        assert engine_of(store).context.pool.used <= 4 * (64 << 10)


def test_at_the_bound_the_oldest_and_the_largest_buffers_are_written(
    memory_vfs: MemoryVfs,
) -> None:
    clock = ManualClock()
    with tubestore.open(
        "/s", vfs=memory_vfs, clock=clock, background=False, durability="memory"
    ) as store:
        topic = store.create_topic("t", stores=30)
        for number in range(30):  # the older, the smaller
            topic.append(b"x" * (number + 1), partition=number * 10_000)
            clock.advance(1)
        engine_of(store).context.pool.relieve()
        shards = shards_of(topic).written_shards()
        waiting = [shard.store_id for shard in shards if shard.dirty_bytes]
        assert waiting == list(range(8, 22))
