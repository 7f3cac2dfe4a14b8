"""A disk that runs full under a RocketMQ store, and has room again."""

from __future__ import annotations

import errno
import pickle
from typing import Any

import numpy as np
import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.messages import MessageBatch, PutStatus
from rocketcompat.record.batches import BatchItem
from rocketcompat.store.default_message_store import DefaultMessageStore
from rocketcompat.store.put_status import put_status_of
from tests.support.full_disk import FullDisk
from tests.support.rocket.inside import dispatcher_of, log_of, shards_of
from tubestore.clock import ManualClock
from tubestore.errors import BatchError, DiskFull, StoreFailed
from tubestore.testing import FaultyVfs, MemoryVfs

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=64, max_index_num=200, layouts=frozenset({"consume_queue", "index"}),
)  # fmt: skip
WAYS = {
    "pwrite": {},
    "maps": {"write_without_mmap": False},
    "pool": {"transient_store_pool_enable": True},
    "shards": {"layouts": frozenset({"consume_queue", "index", "tube"})},
}


@pytest.fixture
def disk(clock: ManualClock) -> FullDisk:
    return FullDisk(MemoryVfs(clock))


def opened(vfs: Any, clock: ManualClock, mode: Any = "w", **options: Any) -> DefaultMessageStore:
    config = CONFIG.changed(**options)
    return rocketcompat.open("/s", mode, config, vfs=vfs, clock=clock, background=False)


def message(number: int) -> Message:
    return Message("T", b"%04d" % number + b"x" * 900, keys=f"k{number}")


def numbers_in(store: DefaultMessageStore) -> list[int]:
    return [int(b[:4]) for batch in store.scan(verify=True) for b in batch["body"].to_pylist()]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("left", range(6))
def test_a_disk_that_fills_and_frees_loses_nothing_and_puts_go_on(
    disk: FullDisk, clock: ManualClock, way: str, left: int
) -> None:
    """With a few blocks left: the log, its next file, the queues or the index lack the next."""
    taken: list[int] = []
    refusals: list[Any] = []
    store = opened(disk, clock, **WAYS[way])
    for number in range(200):
        if number % 40 == 20:
            disk.fill(left)
        if number % 40 == 39:
            disk.free()
        try:
            store.put_message(message(number))
            taken.append(number)
        except DiskFull as error:
            refusals.append((error.taken, error.errno))
        if number % 3 == 0:
            store.wait_dispatched(store.max_physical_offset - 1)
    disk.free()
    assert set(refusals) <= {("no", errno.ENOSPC)}
    assert len(taken) >= 100
    store.flush()
    assert dispatcher_of(store).failed == {}
    assert store.dispatch_behind_bytes == 0
    for mode in ("w", "r"):
        assert numbers_in(store) == taken
        rows = store.read_queue("T", 0, 0, 1000)
        assert [int(body[:4]) for body in rows.batch["body"].to_pylist()] == taken
        assert rows.problems == []
        found = store.query_messages("T", [f"k{number}" for number in taken])
        assert found["key"].to_pylist() == [f"k{number}" for number in taken]
        if way == "shards" and mode == "w":
            shard = shards_of(store).store.topic("T")
            stored = [int((message.body or b"")[:4]) for message in shard.messages(0)]
            assert stored == taken
        store.close()
        store = opened(disk, clock, mode, **WAYS[way])
        assert store.problems == []
    store.close()


def test_a_write_that_could_not_be_undone_is_undone_before_the_next(clock: ManualClock) -> None:
    """Some file systems write each block anew: on a full disk zeros find no room either."""
    vfs = FaultyVfs(MemoryVfs(clock))
    with opened(vfs, clock) as store:
        store.put_message(message(0))
        end = store.max_physical_offset
        vfs.fail("pwrite", path="commitlog", error=errno.ENOSPC, written=700)
        vfs.fail("pwrite", path="commitlog", error=errno.ENOSPC, written=0, nth=2, forever=True)
        with pytest.raises(DiskFull) as raised:
            store.put_message(message(1))
        assert raised.value.taken == "unknown"
        with pytest.raises(DiskFull) as raised:
            store.put_message(message(1))
        assert raised.value.taken == "no"
        vfs.heal()
        store.put_message(Message("T", b"short"))
        path = log_of(store).queue.files[0].path
        assert log_of(store).refusals.failed is None
        behind = store.max_physical_offset
        assert behind - end < 700
        assert not any(vfs.read_file(path)[behind:])


def test_a_batch_that_is_written_in_part_names_the_rows_that_are_in_the_log(
    disk: FullDisk, clock: ManualClock
) -> None:
    with opened(disk, clock) as store:
        disk.fill(1 + 16)  # the first file, made and full; not a second one
        table = {"topic": ["T"] * 100, "body": [b"%04d" % n + b"x" * 900 for n in range(100)]}
        with pytest.raises(BatchError) as raised:
            store.put_columns(table, durability="fsync")
        disk.free()
        acks = raised.value.acks
        written = numbers_in(store)
        assert len(acks) == 100
        assert [ack is not None for ack in acks] == [n < len(written) for n in range(100)]
        assert len(written) == 65
        assert [ack["queue_offset"] for ack in acks if ack] == written
        assert {ack["status"] for ack in acks if ack} == {"PUT_OK"}
        assert log_of(store).synced_offset == store.max_physical_offset
        assert raised.value.taken == "no"
        assert put_status_of(raised.value) is PutStatus.CREATE_MAPPED_FILE_FAILED
        assert pickle.loads(pickle.dumps(raised.value)).acks == acks


def test_a_batch_that_belongs_together_is_not_taken_at_all(
    disk: FullDisk, clock: ManualClock
) -> None:
    with opened(disk, clock) as store:
        store.put_message(message(0))
        disk.fill()
        with pytest.raises(DiskFull) as raised:
            store.put_messages(MessageBatch("T", [BatchItem(b"x" * 900)] * 9))
        assert raised.value.taken == "no"
        disk.free()
        assert numbers_in(store) == [0]


@pytest.mark.parametrize("durability", ["page_cache", "fsync"])
def test_a_message_that_only_the_pool_has_is_taken_and_named(
    disk: FullDisk, clock: ManualClock, durability: Any
) -> None:
    with opened(disk, clock, transient_store_pool_enable=True) as store:
        store.put_message(message(0), durability="page_cache")
        disk.fill()
        large = Message("T", b"0001" + b"x" * 20_000)
        with pytest.raises(DiskFull) as raised:
            store.put_message(large, durability=durability)
        end = store.max_physical_offset
        for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):
            assert (error.taken, error.offset, error.errno) == ("yes", end, errno.ENOSPC)
        disk.free()
        store.flush()
        assert numbers_in(store) == [0, 1]


def test_rows_of_the_pool_that_are_acknowledged_at_page_cache_survive_a_kill(
    clock: ManualClock,
) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    with opened(vfs, clock, transient_store_pool_enable=True) as store:
        store.put_message(message(0), durability="page_cache")
        vfs.fail("create", path="commitlog", error=errno.ENOSPC)
        bodies = [message(number).body for number in range(1, 101)]  # more than a file takes
        with pytest.raises(BatchError) as raised:
            store.put_columns({"topic": ["T"] * 100, "body": bodies}, durability="page_cache")
        acks = [ack for ack in raised.value.acks if ack is not None]
        assert acks
        assert {ack["status"] for ack in acks} == {PutStatus.PUT_OK.value}
        with opened(vfs, clock, "r") as reader:  # has what a kill would leave
            assert numbers_in(reader) == list(range(len(acks) + 1))


def test_after_a_failed_sync_it_is_unknown_whether_the_message_is_there(
    clock: ManualClock,
) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    store = opened(vfs, clock)
    vfs.fail("sync", path="commitlog")
    with pytest.raises(StoreFailed) as raised:
        store.put_message(message(0), durability="fsync")
    assert (raised.value.taken, raised.value.offset) == ("unknown", None)
    with pytest.raises(StoreFailed) as raised:
        store.put_message(message(1))
    assert raised.value.taken == "no"
    with pytest.raises(StoreFailed):
        store.close()


def test_a_full_disk_is_logged_once_when_it_is_full_and_once_when_it_is_not(
    disk: FullDisk, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(disk, clock) as store:
        store.put_message(message(0))
        disk.fill()
        refused = 0
        for number in range(1, 20):
            try:
                store.put_message(message(number))
            except DiskFull:
                refused += 1
        assert refused > 10
        assert caplog.text.count("until there is room") == 1
        disk.free()
        store.put_message(message(1))
        store.put_message(message(2))
        assert caplog.text.count("there is room again") == 1


def test_opening_without_room_for_what_is_missing_reports_it(
    disk: FullDisk, clock: ManualClock
) -> None:
    with opened(disk, clock, layouts=frozenset()) as store:
        store.put_columns({"topic": ["T"] * 9, "queue_id": np.arange(9)})
    disk.fill(3)
    with pytest.raises(DiskFull):
        opened(disk, clock, layouts=frozenset({"consume_queue"}))
    disk.free()
    with opened(disk, clock, layouts=frozenset({"consume_queue"})) as store:
        assert [store.max_offset_in_queue("T", n) for n in range(9)] == [1] * 9
