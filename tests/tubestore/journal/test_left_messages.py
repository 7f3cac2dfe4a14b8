"""What a kill left in the journal goes to its shards."""

from __future__ import annotations

import random

import tubestore
from tests.support.engine.mixed import (
    JOURNAL,
    TOPICS,
    bodies,
    killed,
    mixed,
    open_store,
    opened_shards,
)
from tubestore.clock import ManualClock
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs


def test_kill_after_kill_the_journal_goes_on(memory_vfs: MemoryVfs) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    count = 0
    for _ in range(8):
        store = open_store(memory_vfs)
        for _ in range(chance.randrange(4)):
            rows = chance.choice((6, 12, 24))  # few rows, few shards: those go past the journal
            store.append_batch(mixed(count, rows=rows))
            count += rows
            if chance.random() < 0.3:
                store[chance.choice(TOPICS)].flush()
        if chance.random() < 0.3:
            store.maintain()
        killed(store, memory_vfs)
        if chance.random() < 0.2:
            memory_vfs.reboot()
    with open_store(memory_vfs) as store:
        assert bodies(store) == list(range(count))
        assert store.problems == []
    assert not memory_vfs.exists(JOURNAL)


def test_the_background_gives_the_shards_what_a_kill_left(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    killed(store, memory_vfs)
    clock = ManualClock()
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False) as store:
        store.maintain()
        assert opened_shards(store) == len(TOPICS)
        assert store.stats()["journal_bytes"] > 0
        clock.advance(store.options.journal_flush_ms)
        store.maintain()
        assert store.stats()["journal_bytes"] == 0


def test_retention_plans_with_what_a_kill_left(memory_vfs: MemoryVfs) -> None:
    settings = {"segment_size_bytes": 100}
    store = open_store(memory_vfs, **settings)
    store.append_batch(mixed(0))
    store.flush()
    for first in range(24, 120, 24):
        store.append_batch(mixed(first))
    killed(store, memory_vfs)
    with open_store(memory_vfs, **settings) as again:
        topic = again[TOPICS[0]]
        going = topic.retain(max_bytes=0, dry_run=True)
        shards_of(topic).shard(0)
        assert going
        assert topic.retain(max_bytes=0) == going


def test_syncing_the_store_covers_what_a_kill_left(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    killed(store, memory_vfs)
    counting = FaultyVfs(memory_vfs)
    with open_store(counting) as again:
        again.sync()
        assert counting.calls["sync"] == 0
        assert counting.calls["sync_file_system"] == 1
