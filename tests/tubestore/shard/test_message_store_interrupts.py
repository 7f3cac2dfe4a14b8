"""An interrupt anywhere in the write path of a shard ends one call, and nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

import tubestore
from tests.support.engine.interrupts import Interrupt, interrupted
from tests.support.engine.mixed import killed
from tubestore.clock import ManualClock
from tubestore.core.group_commit import GroupCommit
from tubestore.core.memory_pool import MemoryPool
from tubestore.options import Durability
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.segment import FileSegment
from tubestore.segments.segment_list import FileSegmentList
from tubestore.shard.announcements import Announcements
from tubestore.shard.durable_files import DurableFiles
from tubestore.shard.mem_store import MsgMemStore
from tubestore.shard.message_store import MessageStore
from tubestore.shard.write_buffer import WriteBuffer
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import MemoryVfs

#: What an append, a flush and a sync go through, from the top.
WAY: tuple[Callable[..., Any], ...] = (
    MessageStore.append_record,
    MessageStore._enter,
    MessageStore._append_reaching,
    MessageStore._write_through,
    MessageStore.append_encoded,
    MessageStore._reach,
    MessageStore._put,
    MessageStore._put_in,
    MessageStore._put_later,
    MessageStore.flush,
    MessageStore._flush_to,
    MessageStore._end_flush,
    MessageStore.sync_files,
    MessageStore.view,
    MessageStore.maintain,
    WriteBuffer.add,
    WriteBuffer.fits,
    WriteBuffer.open_room,
    WriteBuffer._swap,
    WriteBuffer.begin_flush,
    WriteBuffer.begin_flush_of,
    WriteBuffer.end_flush,
    MsgMemStore.add,
    MsgMemStore.add_batch,
    MsgMemStore._join,
    MsgMemStore.batches,
    MemoryPool.take,
    MemoryPool.give_back,
    Announcements.announce,
    DurableFiles.write,
    DurableFiles.write_one,
    DurableFiles.note_room,
    DurableFiles.roll_after,
    DurableFiles._roll,
    DurableFiles.sync_data,
    DurableFiles.sync_all,
    DurableFiles._synced,
    DurableFiles.sync_with_checkpoint,
    MsgFileStore.append,
    MsgFileStore.append_bytes,
    MsgFileStore._writable,
    MsgFileStore.snapshot,
    MsgFileStore.sync_sealable,
    MsgFileStore.roll_if_full,
    MsgFileStore.sync_data,
    MsgFileStore.sync,
    MsgFileStore._sync_directories,
    FileSegmentList.create,
    FileSegmentList.roll,
    FileSegment.append,
    FileSegment.sync,
    GroupCommit.reach,
    GroupCommit.run,
    GroupCommit._turn,
    GroupCommit._wait,
    GroupCommit._wake,
)
LEVELS: tuple[Durability, ...] = (
    *("page_cache", "page_cache", "memory", "memory", "memory", "fsync"),
)
#: The room for messages is opened, and closed, several times; a file takes three of them.
OPTIONS: dict[str, Any] = {
    "background": False,
    "ring_journal": False,
    "mem_store_messages": 3,
    "segment_size_bytes": 3 * (HEADER_SIZE + 9),
    "index_segment_size_bytes": 4 * ENTRY_SIZE,
    "sync_after_messages": 5,
}


class Taken:
    """What a store has acknowledged."""

    def __init__(self) -> None:
        self.bodies: dict[int, bytes] = {}
        self.count = 0

    def append(self, store: MessageStoreManager, level: Durability) -> None:
        self.count += 1
        body = b"body %03d" % self.count
        self.bodies[store["a"].append(body, durability=level).offset] = body

    def append_batch(self, store: MessageStoreManager, level: Durability) -> None:
        self.count += 1
        body = b"body %03d" % self.count
        taken = store["a"].append_batch({"body": [body]}, durability=level)
        self.bodies[int(taken.offsets[0])] = body

    def many(self, store: MessageStoreManager) -> None:
        for level in LEVELS:
            self.append(store, level)
        self.append_batch(store, "memory")
        list(store["a"].messages(0))
        shards_of(store["a"]).writable(0).maintain()
        self.append_batch(store, "page_cache")
        store.sync()


def shown(store: MessageStoreManager) -> dict[int, bytes]:
    """Return the bodies by offset; each message is verified, none is there twice."""
    messages = list(store["a"].messages(0, verify=True))
    assert [m.offset for m in messages] == [ENTRY_SIZE * n for n in range(len(messages))]
    assert len({m.body for m in messages}) == len(messages)
    return {m.offset: m.body for m in messages}


def check_free(shard: MessageStore) -> None:
    """No thread is at work, so no lock may be held."""
    for lock in (shard._flush_lock, shard._append_lock, shard._durable.commits._lock):
        assert not lock.locked()
    assert not shard._durable.commits.is_busy
    shard.check_invariants()


@pytest.mark.parametrize("function", WAY, ids=lambda function: function.__qualname__)
def test_after_an_interrupt_all_goes_on_and_nothing_acknowledged_is_lost(
    function: FunctionType,
) -> None:
    code = inspect.unwrap(function)
    assert isinstance(code, FunctionType)
    for place in range(1, 10_000):
        vfs, taken = MemoryVfs(), Taken()
        store = tubestore.open("/s", vfs=vfs, **OPTIONS)
        store.create_topic("a").append(b"before", durability="memory")
        shard, pool = shards_of(store["a"]).writable(0), engine_of(store).context.pool
        was_interrupted = interrupted(lambda s=store, t=taken: t.many(s), place, code)
        check_free(shard)
        before = shown(store)
        assert before.items() >= taken.bodies.items(), place
        assert shard.dirty_bytes == 0 or shard._buffer.dirty_since < shard._clock.monotonic()
        after = Taken()
        after.count = 500
        after.many(store)
        assert pool.used == shard._buffer.granted == 0, place
        expected = before | after.bodies
        assert len(expected) == len(before) + len(after.bodies), place
        assert shown(store) == expected, place
        killed(store, vfs)
        with tubestore.open("/s", vfs=vfs, **OPTIONS) as store:
            assert store.problems == [], place
            assert shown(store) == expected, place
        if not was_interrupted:
            assert place > 1, "it was not called"
            return
    raise AssertionError("it has no end")


def test_a_directory_is_synced_after_a_sync_of_it_was_interrupted(memory_vfs: MemoryVfs) -> None:
    with tubestore.open("/s", vfs=memory_vfs, **OPTIONS) as store:
        store.create_topic("a").append(b"1", durability="page_cache")
        files = shards_of(store["a"]).writable(0).files
        missing = set(files._unsynced_directories)
        assert missing
        step, code = files._sync_directories, MsgFileStore._sync_directories
        place = 1
        while interrupted(step, place, code):
            assert files._unsynced_directories == missing, place
            place += 1
        assert place > len(missing)
        assert files._unsynced_directories == set()


class TickingClock(ManualClock):
    """Goes on by a millisecond when it is asked."""

    def monotonic(self) -> float:
        self.advance(1)
        return super().monotonic()


def test_an_interrupted_wait_for_room_holds_no_lock(memory_vfs: MemoryVfs) -> None:
    def busy(store: MessageStoreManager) -> None:
        shard = shards_of(store["a"]).writable(0)
        shard._buffer.close_room()
        shard._buffer.held = True  # as while files are put behind the shard's own
        try:
            store["a"].append(b"2", durability="memory")
        except tubestore.StoreBusy:
            pass
        finally:
            shard._buffer.held = False

    code = inspect.unwrap(MessageStore._put_later)
    assert isinstance(code, FunctionType)
    options = OPTIONS | {"append_timeout_ms": 1, "clock": TickingClock()}
    for place in range(1, 1000):
        with tubestore.open("/s", vfs=memory_vfs, **options) as store:
            topic = store["a"] if "a" in store else store.create_topic("a")
            topic.append(b"1", durability="memory")
            was_interrupted = interrupted(lambda s=store: busy(s), place, code)
            check_free(shards_of(topic).writable(0))
        if not was_interrupted:
            assert place > 10
            return
    raise AssertionError("it has no end")


def test_an_interrupted_hold_lets_go(memory_vfs: MemoryVfs) -> None:
    code = inspect.unwrap(MessageStore.hold)
    assert isinstance(code, FunctionType)
    with tubestore.open("/s", vfs=memory_vfs, **OPTIONS) as store:
        topic = store.create_topic("a")
        for place in range(1, 1000):
            topic.append(b"1", durability="memory")
            shard = shards_of(topic).writable(0)
            if not interrupted(shard.hold, place, code):
                break
            check_free(shard)
            assert not shard._buffer.held
        assert place > 5
        shard.let_go()


def test_a_group_commit_is_free_after_an_interrupt_anywhere() -> None:
    for function in (GroupCommit._turn, GroupCommit._wait, GroupCommit._wake, GroupCommit.reach):
        for place in range(1, 1000):
            commits = GroupCommit(0)
            step = lambda c=commits: c.reach(5, lambda: 5, prepare=lambda: None)  # noqa: E731
            was_interrupted = interrupted(step, place, function)
            assert not commits.is_busy
            assert not commits._lock.locked()
            assert commits.reach(7, lambda: 7)
            if not was_interrupted:
                break


def test_the_helper_interrupts() -> None:
    def step() -> None:
        len("")

    with pytest.raises(Interrupt):
        raise Interrupt
    assert interrupted(step, 1, step)
