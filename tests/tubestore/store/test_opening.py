"""Shards are opened with what the journal has of them, and kept shut where that cannot be."""

from __future__ import annotations

import errno

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
from tubestore.testing import FaultyVfs, MemoryVfs


def test_a_shard_that_could_not_be_opened_at_first_still_gets_what_the_journal_has(
    memory_vfs: MemoryVfs,
) -> None:
    """Opened without, it would give the offsets of acknowledged messages again."""
    store = open_store(memory_vfs)
    store.append_batch(mixed(0), durability="fsync")
    store[TOPICS[5]].flush()
    killed(store, memory_vfs)
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("entries", path=f"{TOPICS[5]}-0/index", error=errno.EIO)
    with tubestore.open("/s", vfs=faulty, clock=ManualClock(), background=False) as again:
        again.maintain()
        assert len(again.problems) == 1
        again[TOPICS[5]].append(b"24", partition=0)
        assert bodies(again) == list(range(25))
    assert not memory_vfs.exists(JOURNAL)


def test_after_a_reboot_a_shard_that_cannot_be_opened_keeps_the_journal(
    memory_vfs: MemoryVfs,
) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0), durability="fsync")
    store[TOPICS[5]].flush()
    killed(store, memory_vfs)
    memory_vfs.reboot()
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("entries", path=f"{TOPICS[5]}-0/index", error=errno.EIO)
    with tubestore.open("/s", vfs=faulty, clock=ManualClock(), background=False) as again:
        assert again.problems
        again[TOPICS[5]].append(b"24", partition=0)
        assert bodies(again) == list(range(25))
    assert memory_vfs.exists(JOURNAL)


def test_opening_after_a_kill_opens_no_shard(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    killed(store, memory_vfs)
    store = open_store(memory_vfs)
    assert opened_shards(store) == 0
    assert not memory_vfs.exists(f"/s/{TOPICS[3]}-0")
    assert store.describe_topic(TOPICS[3]).shards[0].messages == 2
    assert [m.body for m in store[TOPICS[4]].messages(0)] == [b"4"]
    assert opened_shards(store) == 2
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert bodies(again) == list(range(24))


def test_after_a_reboot_all_shards_have_what_the_journal_had(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    killed(store, memory_vfs)
    memory_vfs.reboot()
    store = open_store(memory_vfs)
    assert opened_shards(store) == len(TOPICS)
    assert not memory_vfs.exists(JOURNAL)
    killed(store, memory_vfs)
