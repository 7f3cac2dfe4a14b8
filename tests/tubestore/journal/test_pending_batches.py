"""Batches that wait for their shards: what is read, appended, deleted and killed in between."""

from __future__ import annotations

import errno
import random
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tubestore
from tests.support.engine.interrupts import interrupted
from tests.support.engine.mixed import JOURNAL, TOPICS, bodies, killed, mixed, open_store
from tests.support.tube import columns_of, make_rows
from tubestore.clock import ManualClock
from tubestore.core.memory_pool import MemoryPool
from tubestore.errors import StoreClosed, StoreFailed, UnknownTopic
from tubestore.journal.pending_batches import Parts, PendingBatches
from tubestore.record.records import ENTRY_SIZE, encode_columns
from tubestore.shard.message_store import MessageStore
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs

ROOM = 1 << 20


def shard_of(store: MessageStoreManager, number: int) -> MessageStore:
    return shards_of(store[TOPICS[number]]).writable(0)


def is_lent(shard: MessageStore) -> bool:
    return shard._buffer._lent


def numbers_in(store: MessageStoreManager, topic: int) -> list[int]:
    """Return the numbers of a topic's messages in the order of their offsets."""
    with store[TOPICS[topic]].scan(columns=["body", "state"], verify=True) as reader:
        rows = reader.read_all().to_pylist()
    assert {row["state"] for row in rows} <= {"ok"}
    return [int(row["body"]) for row in rows]


# -- the parts themselves ----------------------------------------------------------------------


def fill(pending: PendingBatches, numbers: list[int], rows: int = 2) -> list[int]:
    """Add a batch of some rows for each shard; returns their offsets."""
    batch = encode_columns(columns_of(make_rows(rows * len(numbers))))
    assert pending.makes_room(len(batch.data))
    index = np.empty(len(batch), np.int64)
    firsts = rows * np.arange(len(numbers))
    assert pending.add(batch, np.array(numbers), firsts, index).all()
    return [int(n) for n in index]


def test_a_shard_is_given_its_parts_of_all_batches_in_order() -> None:
    pending = PendingBatches(MemoryPool(ROOM), ROOM)
    one, other = pending.lend(-1, 280, 1000, 1000), pending.lend(-1, 0, 0, 0)
    assert fill(pending, [one, other]) == [280, 308, 0, 28]
    assert fill(pending, [other, one]) == [56, 84, 336, 364]
    parts = pending.take_back(one)
    assert parts.messages == 4
    assert len(parts.records) == pending.data_end(one) - 1000
    assert pending.lent(np.array([one, other, -1])).tolist() == [False, True, False]


def test_parts_that_were_taken_are_not_given_again() -> None:
    pending = PendingBatches(MemoryPool(ROOM), ROOM)
    one, other = pending.lend(-1, 0, 0, 0), pending.lend(-1, 0, 0, 0)
    fill(pending, [one, other])
    taken = pending.take_back(one)
    assert pending.lend(one, 56, len(taken.records), 0) == one
    assert fill(pending, [one, other]) == [56, 84, 56, 84]
    assert pending.take_back(one).messages == 2
    assert pending.take_back(other).messages == 4


def test_thousands_of_parts_are_found_as_few_are() -> None:
    pending = PendingBatches(MemoryPool(1 << 24), 1 << 24)
    shards = [pending.lend(-1, 0, 0, 0) for _ in range(500)]
    for _ in range(20):
        fill(pending, shards, rows=1)
    half = {n: pending.take_back(n) for n in shards[:250]}
    for n in shards[:250]:
        pending.lend(n, 28 * 20, len(half[n].records), 0)
    fill(pending, shards, rows=1)
    gathered = {shards[n]: parts for n, parts in pending.gather(shards)}
    for n in shards:
        by_itself = pending.take_back(n)
        assert bytes(gathered[n].entries) == by_itself.entries
        assert gathered[n].records == by_itself.records
        assert by_itself.messages == (1 if n in half else 21)


@pytest.mark.parametrize(
    "function", [PendingBatches._grow_shards, PendingBatches._grow_parts, PendingBatches.add]
)
def test_an_interrupt_while_room_for_shards_or_parts_is_made_leaves_all_of_it_or_nothing(
    function: FunctionType,
) -> None:
    """At each place; then as many shards and parts again are taken and given back."""
    place, was_interrupted = 0, True
    while was_interrupted:
        place += 1
        pending = PendingBatches(MemoryPool(ROOM), ROOM)
        shards: list[int] = []
        before = [0]

        def step(
            pending: PendingBatches = pending,
            shards: list[int] = shards,
            before: list[int] = before,
        ) -> None:
            shards.extend(pending.lend(-1, 0, 0, 0) for _ in range(70))
            for _ in range(3):
                before[0] = pending.messages
                fill(pending, shards, rows=1)

        was_interrupted = interrupted(step, place, function)
        messages = pending.messages
        assert messages in (before[0], before[0] + len(shards))
        shards += [pending.lend(-1, 0, 0, 0) for _ in range(70)]
        fill(pending, shards, rows=1)
        taken = [pending.take_back(number) for number in shards]
        assert sum(parts.messages for parts in taken) == messages + len(shards)
        for parts in taken:
            assert len(parts.entries) == ENTRY_SIZE * parts.messages
    assert place > 3


def test_room_is_counted_until_it_is_released_and_what_was_taken_is_counted_too() -> None:
    pool = MemoryPool(ROOM)
    pending = PendingBatches(pool, ROOM)
    shard = pending.lend(-1, 0, 0, 0)
    fill(pending, [shard])
    held = pool.used
    assert held == pending.size_bytes
    pending.release()
    assert pool.used == held  # there is something in it
    taken = pending.take_back(shard)
    assert pool.used == held + len(taken.records)
    pending.release()
    assert pool.used == len(taken.records)


def test_there_is_no_room_where_the_pool_has_none() -> None:
    pool = MemoryPool(1000)
    pool.take(900)
    pending = PendingBatches(pool, ROOM)
    assert not pending.makes_room(200)
    assert pending.makes_room(100)


def test_parts_gathered_for_a_shard_that_took_its_own_are_left(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    shard = shard_of(store, 0)
    shard.view()
    shard.deliver(Parts(b"x" * 28, b"never", 1))
    assert numbers_in(store, 0) == [0, 12]
    store.close()


# -- between two batches -----------------------------------------------------------------------


def test_a_batch_waits_until_somebody_reads(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        for first in (0, 24, 48):
            store.append_batch(mixed(first))
        assert all(is_lent(shard_of(store, n)) for n in range(12))
        assert numbers_in(store, 3) == [3, 15, 27, 39, 51, 63]
        assert not is_lent(shard_of(store, 3))
        assert is_lent(shard_of(store, 4))


def test_a_reader_between_two_batches_sees_the_first_and_then_both(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        store.append_batch(mixed(0))
        before = store[TOPICS[0]].messages(0)
        assert next(before).body == b"0"
        store.append_batch(mixed(24))
        assert numbers_in(store, 0) == [0, 12, 24, 36]
        assert [m.body for m in store[TOPICS[0]].messages(0)] == [b"0", b"24"]
        assert bodies(store) == list(range(48))


@pytest.mark.parametrize("level", ["memory", "page_cache", "fsync"])
def test_an_append_between_two_batches_stands_between_them(
    memory_vfs: MemoryVfs, level: Any
) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    ack = store[TOPICS[5]].append(b"1000", partition=0, durability=level)
    assert ack.offset == 56
    store.append_batch(mixed(24))
    rows = pa.table({"partition": [1, 1], "body": [b"1001", b"1002"]})
    store[TOPICS[6]].append_batch(rows, durability=level)
    store.append_batch(mixed(48))
    wanted = [5, 17, 1000, 29, 41, 53, 65], [6, 18, 30, 42, 1001, 1002, 54, 66]
    assert (numbers_in(store, 5), numbers_in(store, 6)) == wanted
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert (numbers_in(again, 5), numbers_in(again, 6)) == wanted


def test_an_append_that_waited_for_room_goes_behind_a_batch_that_came_meanwhile(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(memory_vfs, mem_store_messages=2) as store:
        store.append_batch(mixed(0))
        shard = shard_of(store, 0)
        has_room, put_later = shard._has_room, shard._put_later
        answers = [False]  # then the true ones

        def later(size: int, count: int, put: Any) -> Any:
            store.append_batch(mixed(24))
            assert is_lent(shard)
            return put_later(size, count, put)

        monkeypatch.setattr(shard, "_put_later", later)
        monkeypatch.setattr(
            shard, "_has_room", lambda *room: answers.pop() if answers else has_room(*room)
        )
        ack = store[TOPICS[0]].append(b"1000", partition=0, durability="memory")
        assert ack.offset == 4 * 28
        assert numbers_in(store, 0) == [0, 12, 24, 36, 1000]


def test_statistics_count_what_waits(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        store.append_batch(mixed(0))
        shard = shard_of(store, 0)
        assert is_lent(shard)
        assert shard.dirty_bytes > 0
        stats = store.stats()
        assert (stats["appends"], stats["topics"][TOPICS[0]]["appends"]) == (24, 2)
        assert stats["dirty_bytes"] == stats["append_bytes"]


def test_maintenance_writes_what_waited_too_long(memory_vfs: MemoryVfs) -> None:
    clock = ManualClock()
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False) as store:
        store.ensure_topics({name: tubestore.TopicOptions(partitions=2) for name in TOPICS})
        store.append_batch(mixed(0))
        shard = shard_of(store, 0)
        shard.maintain()
        assert is_lent(shard)
        clock.advance(store.options.mem_flush_interval_ms)
        shard.maintain()
        assert (is_lent(shard), shard.dirty_bytes) == (False, 0)


def test_memory_that_is_kept_for_batches_is_given_back_when_none_come(
    memory_vfs: MemoryVfs,
) -> None:
    clock = ManualClock()
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False) as store:
        store.ensure_topics({name: tubestore.TopicOptions(partitions=2) for name in TOPICS})
        store.append_batch(mixed(0))
        clock.advance(store.options.journal_flush_ms)
        store.maintain()
        assert store.stats()["memory_bytes"] > 0
        store.maintain()
        assert store.stats()["memory_bytes"] == 0


def test_a_mixed_batch_announces_the_shards_that_are_waited_for(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        store.append_batch(mixed(0))
        shard = shard_of(store, 0)
        announced: list[int] = []
        call = partial(announced.append, 0)
        assert shard.call_beyond(shard.view().index_end, call)
        store.append_batch(mixed(24))
        assert announced == [0]


# -- trouble and ends --------------------------------------------------------------------------


def test_a_topic_is_deleted_with_what_waits_for_it(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    shard = shard_of(store, 0)
    store.delete_topic(TOPICS[0])
    with pytest.raises(UnknownTopic):
        store.append_batch(mixed(24))
    store.create_topic(TOPICS[0], partitions=2)
    store.append_batch(mixed(48))
    assert numbers_in(store, 0) == [48, 60]
    with pytest.raises(StoreClosed):
        shard.view()
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert numbers_in(again, 0) == [48, 60]
        assert numbers_in(again, 1) == [1, 13, 49, 61]


def test_a_topic_that_grew_takes_rows_of_its_new_partitions(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs) as store:
        store.append_batch(mixed(0))
        store.change_topic(TOPICS[0], partitions=3, stores=2)
        wider = mixed(24).set_column(1, "partition", pa.array([10_002, *[0] * 23]))
        store.append_batch(wider)
        assert [m.body for m in store[TOPICS[0]].messages(10_002)] == [b"24"]
        assert bodies(store) == list(range(48))


def test_what_waits_at_a_kill_is_there_afterwards(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    numbers_in(store, 2)
    store.append_batch(mixed(24))
    shard_of(store, 7).flush()
    assert is_lent(shard_of(store, 2))
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert bodies(again) == list(range(48))
        assert again.problems == []


def test_a_shard_whose_sync_failed_takes_no_more_parts_and_shows_what_it_had(
    memory_vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = open_store(faulty)
    store.append_batch(mixed(0))
    store.flush()
    store.append_batch(mixed(24))
    faulty.fail("sync", path=f"{TOPICS[4]}-0")
    with pytest.raises(StoreFailed):
        shard_of(store, 4).sync_files()
    with pytest.raises(tubestore.BatchError) as caught:
        store.append_batch(mixed(48))
    assert [n for n, ack in enumerate(caught.value.acks) if ack is None] == [4, 16]
    assert numbers_in(store, 4) == [4, 16, 28, 40]
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert set(range(48)) <= set(bodies(again))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_frame_that_cannot_be_written_leaves_nothing_waiting(
    memory_vfs: MemoryVfs, error: int
) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = open_store(faulty)
    store.append_batch(mixed(0))
    faulty.fail("pwrite", error=error, path="journal", nth=2)
    store.append_batch(mixed(24))
    assert not any(is_lent(shard_of(store, n)) for n in range(12))
    assert not any(shard_of(store, n).dirty_bytes for n in range(12))
    store.append_batch(mixed(48))
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert bodies(again) == list(range(72))


def test_a_full_pool_has_the_shards_write_and_loses_nothing(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs, memory_bound_bytes=4000)
    for first in range(0, 240, 24):
        store.append_batch(mixed(first))
        assert store.stats()["memory_bytes"] <= 3 * 4000
    assert bodies(store) == list(range(240))
    killed(store, memory_vfs)
    with open_store(memory_vfs) as again:
        assert bodies(again) == list(range(240))


def test_somebody_else_gets_the_memory_that_waiting_batches_have(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs, memory_bound_bytes=8000, append_timeout_ms=0) as store:
        store.append_batch(mixed(0))
        store[TOPICS[0]].append(b"7" * 7000, partition=0, durability="memory")
        assert len(store[TOPICS[0]].read(0)) == 2


def test_no_more_waits_than_the_buffers_would_take(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs, mem_store_messages=5) as store:
        for first in range(0, 72, 24):
            store.append_batch(mixed(first))
        assert [shard_of(store, 0)._buffer._main.count, numbers_in(store, 0)] == [
            0,
            [0, 12, 24, 36, 48, 60],
        ]
        assert store.stats()["dirty_bytes"] < store.stats()["append_bytes"]


def test_a_forked_child_refuses_reads_of_what_waits(memory_vfs: MemoryVfs) -> None:
    store = open_store(memory_vfs)
    store.append_batch(mixed(0))
    shard = shard_of(store, 0)
    engine_of(store).abandon("forked")
    with pytest.raises(StoreClosed):
        shard.view()


# -- anything in any order ---------------------------------------------------------------------


@pytest.mark.gate
def test_any_order_of_calls_gives_the_messages_in_the_order_of_their_appends(
    memory_vfs: MemoryVfs,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    settings = {"journal_size_bytes": 20_000, "mem_store_messages": 40}
    store = open_store(memory_vfs, **settings)
    wanted: list[list[int]] = [[] for _ in TOPICS]
    count = 0
    for _ in range(400):
        topic = chance.randrange(12)
        step = chance.randrange(11)
        if step < 5:
            rows = chance.choice((8, 12, 24, 30))
            level = chance.choice(("page_cache", "page_cache", "fsync", "memory"))
            acks = store.append_batch(mixed(count, rows), durability=level)
            for n, offset in zip(range(count, count + rows), acks.offsets.to_pylist(), strict=True):
                assert offset == 28 * len(wanted[n % 12])
                wanted[n % 12].append(n)
            count += rows
        elif step == 5:
            level = chance.choice(("memory", "page_cache", "fsync"))
            ack = store[TOPICS[topic]].append(b"%d" % count, partition=0, durability=level)
            assert ack.offset == 28 * len(wanted[topic])
            wanted[topic].append(count)
            count += -count % 12 + 12
        elif step == 6:
            assert numbers_in(store, topic) == wanted[topic]
        elif step == 7:
            chance.choice((shard_of(store, topic).flush, shard_of(store, topic).sync))()
        elif step == 8:
            chance.choice((store.stats, store.maintain, store.flush))()
        elif step == 9:
            store[TOPICS[topic]].retain(dry_run=True)
        elif chance.random() < 0.3:
            store.flush()  # what is in memory only may go
            killed(store, memory_vfs)
            store = open_store(memory_vfs, **settings)
    assert [numbers_in(store, n) for n in range(12)] == wanted
    store.close()
    assert not memory_vfs.exists(JOURNAL)


def test_files_below_the_first_frames_are_unsynced_until_that_was_noted() -> None:
    pending = PendingBatches(MemoryPool(ROOM), ROOM)
    numbers = np.array([pending.lend(-1, 0, 0, 0), pending.lend(-1, 28, 100, 100)])
    assert pending.unsynced(numbers).tolist() == [False, True]  # the first has nothing below
    pending.note_synced(numbers, [0, 100])
    assert pending.unsynced(numbers).tolist() == [False, False]
    first, other = numbers.tolist()
    pending.take_back(other)
    pending.lend(other, 56, 200, 200)  # it begins anew
    pending.note_synced(numbers, [0, 100])  # by another thread, which began before
    assert pending.unsynced(numbers).tolist() == [False, True]
    pending.take_back(first)
    pending.note_synced(numbers, [0, 200])
    pending.note_synced(numbers, [0, 100])
    assert pending.unsynced(numbers).tolist() == [False, False]
