"""A disk that fills and frees: what was acknowledged stays, and an ack says what was reached."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

import tubestore
from tests.support.engine.mixed import JOURNAL, TOPICS, bodies, killed, mixed, open_store
from tubestore.errors import BatchError, DiskFull, TubeStoreError
from tubestore.options import DURABILITIES
from tubestore.store.manager import MessageStoreManager
from tubestore.testing import FaultyVfs, MemoryVfs


def large(first: int, rows: int = 24) -> dict[str, list[Any]]:
    """Return numbered messages of 2,000 bytes: they do not fit into what is left of a block."""
    table = mixed(first, rows).to_pydict()
    return {**table, "body": [b"%d" % n + b" " * 2000 for n in range(first, first + rows)]}


def test_the_journal_of_a_synced_batch_stays_when_a_full_disk_refused_the_next(
    memory_vfs: MemoryVfs,
) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0), durability="fsync")
    memory_vfs.fill()
    with pytest.raises(TubeStoreError):
        store.append_batch(large(24), durability="fsync")
    with pytest.raises(DiskFull):
        store.close()
    store.close(give_up=True)
    assert memory_vfs.exists(JOURNAL)
    assert not memory_vfs.exists("/s/.tubestore/closed")
    memory_vfs.limit(None)
    with open_store(memory_vfs) as again:
        assert bodies(again) == list(range(24))
        assert again.problems == []


def test_the_journal_stays_when_any_shard_could_not_be_closed(memory_vfs: MemoryVfs) -> None:
    """The shard that fails has nothing in the journal."""
    faulty = FaultyVfs(memory_vfs)
    store = open_store(faulty)
    store.create_topic("other").append(b"x")
    store.append_batch(mixed(0), durability="fsync")
    store.flush()
    faulty.fail("sync", path="other-0")
    with pytest.raises(tubestore.StoreFailed):
        store.close()
    assert memory_vfs.exists(JOURNAL)


def test_a_batch_that_came_when_the_disk_was_full_is_written_when_there_is_room(
    memory_vfs: MemoryVfs,
) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0), durability="fsync")
    memory_vfs.fill()
    with pytest.raises(BatchError):
        store.append_batch(large(24))
    assert bodies(store) == list(range(48))
    memory_vfs.limit(None)
    store.append_batch(mixed(48), durability="fsync")
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert bodies(again) == list(range(72))


@pytest.mark.parametrize("rows", [24, 6])  # through the journal, and past it
@pytest.mark.parametrize("level", ["page_cache", "fsync"])
def test_rows_that_are_in_memory_only_have_no_ack_of_a_file(
    memory_vfs: MemoryVfs, rows: int, level: Any
) -> None:
    store = open_store(memory_vfs)
    memory_vfs.fill()
    with pytest.raises(TubeStoreError) as caught:
        store.append_batch(large(0, rows), durability=level)
    acks = caught.value.acks if isinstance(caught.value, BatchError) else []
    assert {ack.durability for ack in acks if ack is not None} <= {"memory"}
    killed(store, memory_vfs)
    memory_vfs.limit(None)
    with open_store(memory_vfs) as again:
        assert bodies(again) == []


@pytest.mark.parametrize("rows", [24, 6])
def test_an_ack_names_the_level_that_its_row_has_reached(memory_vfs: MemoryVfs, rows: int) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = open_store(faulty, journal_shards_min=8)
    faulty.fail("sync", path="journal")
    faulty.fail("sync", path=f"{TOPICS[5]}-0", forever=True)
    with pytest.raises(BatchError) as caught:
        store.append_batch(mixed(0, rows), durability="fsync")
    # Shards are synced in their order: those before the one that fails are safe.
    levels = [None if ack is None else ack.durability for ack in caught.value.acks]
    assert levels == ["fsync" if n % 12 < 5 else "page_cache" for n in range(rows)]
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert bodies(again) == list(range(rows))


class Model:
    """What a store was given, and what it has acknowledged, by (topic, partition, offset)."""

    def __init__(self, vfs: MemoryVfs) -> None:
        self.vfs = vfs
        self.count = 0
        self.kept: dict[tuple[str, int, int], int] = {}
        self.in_memory: dict[tuple[str, int, int], int] = {}

    def append(self, store: MessageStoreManager, rows: int, level: Any, size: int) -> None:
        first, self.count = self.count, self.count + rows
        table = mixed(first, rows).to_pydict()
        table["body"] = [b"%d" % n + b" " * size for n in range(first, first + rows)]
        if rows == 1:
            topic = table["topic"][0]
            try:
                ack = store[topic].append(table["body"][0], partition=0, durability=level)
            except TubeStoreError:
                return
            self._note([topic], [ack], first)
            return
        try:
            acks: list[Any] = list(store.append_batch(table, durability=level))
        except BatchError as error:
            acks = error.acks
        except TubeStoreError:
            return
        self._note(table["topic"], acks, first)

    def _note(self, topics: list[str], acks: list[Any], first: int) -> None:
        for number, (topic, ack) in enumerate(zip(topics, acks, strict=True), first):
            if ack is not None:
                known = self.in_memory if ack.durability == "memory" else self.kept
                known[topic, ack.partition, ack.offset] = number

    def check(self, store: MessageStoreManager) -> None:
        found = {
            (name, message.partition, message.offset): int(message.body or b"")
            for name in store.topics()
            for partition in store[name].partition_ids
            for message in store[name].messages(partition)
        }
        assert self.kept.items() <= found.items()
        assert len(set(found.values())) == len(found)  # none of them twice
        self.kept = found

    def reopened(self, store: MessageStoreManager) -> MessageStoreManager:
        again = open_store(self.vfs, journal_size_bytes=30_000)
        assert again.problems == []
        self.check(again)
        self.in_memory = {}
        return again


@pytest.mark.gate
@pytest.mark.parametrize("turn", range(6))
def test_whatever_a_small_disk_refuses_what_was_acknowledged_is_there_once(turn: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    vfs = MemoryVfs()
    model = Model(vfs)
    store = open_store(vfs, journal_size_bytes=30_000)
    for _ in range(60):
        what = chance.random()
        if what < 0.14:
            vfs.limit(vfs.used_bytes() + chance.choice((0, 0, 4096, 20_000)))
        elif what < 0.18:
            vfs.limit(None)
        elif what < 0.8:
            rows = chance.choice((1, 6, 12, 12, 24))
            model.append(store, rows, chance.choice(DURABILITIES), chance.choice((1, 1, 2000)))
        elif what < 0.83:
            with contextlib.suppress(TubeStoreError):
                chance.choice((store.flush, store.sync, store.maintain, store[TOPICS[1]].flush))()
        elif what < 0.88:
            killed(store, vfs)
            vfs.limit(None)
            store = model.reopened(store)
        else:
            try:
                store.close()
                model.kept |= model.in_memory
            except DiskFull:
                store.close(give_up=True)
            vfs.limit(None)
            store = model.reopened(store)
    vfs.limit(None)
    store.close()
    model.kept |= model.in_memory
    model.reopened(store).close()
