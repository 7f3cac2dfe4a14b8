"""The transient store pool: written, committed, flushed; nobody sees what is not committed."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import GetMessageStatus, Message, MessageStoreConfig
from rocketcompat.files.transient_pool import BufferedFile, TransientStorePool
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden_puts import Again
from tests.support.rocket.inside import dispatcher_of, log_of, opened_of
from tests.support.rocket.stores import opener
from tubestore.clock import ManualClock
from tubestore.errors import OffsetOutOfRange, StoreFailed
from tubestore.testing import FaultyVfs

SIZE = 4096
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=SIZE,
    mapped_file_size_consume_queue=200,
    layouts=frozenset({"consume_queue"}),
    transient_store_pool_enable=True,
    transient_store_pool_size=2,
)
opened = opener(CONFIG)


def put(store: DefaultMessageStore, size: int = 100, **given: Any) -> int:
    return store.put_message(Message("T", b"x" * (size - 92)), **given).physical_offset


def last_of(store: DefaultMessageStore) -> BufferedFile:
    file = log_of(store).queue.last
    assert isinstance(file, BufferedFile)
    return file


def positions(store: DefaultMessageStore) -> tuple[int, int, int]:
    file = last_of(store)
    return file.wrote_position, file.committed_position, file.flushed_position


def test_it_is_off_by_default_and_with_synchronous_flushes() -> None:  # TSP-01
    assert not MessageStoreConfig().uses_transient_pool
    assert CONFIG.uses_transient_pool
    assert not CONFIG.changed(flush_disk_type="SYNC_FLUSH").uses_transient_pool


def test_a_put_goes_to_memory_and_the_file_is_unchanged(
    store: DefaultMessageStore, vfs: FaultyVfs
) -> None:  # TSP-03
    put(store, 300)
    assert positions(store) == (300, 0, 0)
    assert not any(vfs.read_file(last_of(store).path))
    assert log_of(store).uncommitted_bytes == 300


def test_what_is_committed_is_written_at_once_and_later_flushed(
    store: DefaultMessageStore, vfs: FaultyVfs
) -> None:  # TSP-04, TSP-05, TSP-07
    put(store)
    writes = []
    file = last_of(store)
    honest = file._file

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(honest, name)

        def pwrite(self, data: Any, position: int) -> None:
            writes.append(len(data))
            honest.pwrite(data, position)

    file._file = Counting()  # type: ignore[assignment]
    for _ in range(9):
        put(store)
    assert log_of(store).commit()
    assert not log_of(store).commit()
    assert writes == [1000]
    assert positions(store) == (1000, 1000, 0)
    put(store)
    log_of(store).flush()
    assert positions(store) == (1100, 1100, 1100)


def test_uncommitted_bytes_are_not_readable(store: DefaultMessageStore) -> None:  # TSP-06
    offset = put(store)
    dispatcher_of(store).dispatch_pending()
    assert store.get_message("T", 0, 0).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
    with pytest.raises(OffsetOutOfRange):
        store.look_message(offset)
    assert store.max_physical_offset == 0
    log_of(store).commit()
    dispatcher_of(store).dispatch_pending()
    assert store.get_message("T", 0, 0).status is GetMessageStatus.FOUND
    assert store.look_message(offset).topic == "T"


def test_commits_are_due_after_their_interval(
    store: DefaultMessageStore, clock: ManualClock
) -> None:  # TSP-04
    put(store)
    clock.advance(199)
    opened_of(store).flusher.flush_due()
    assert store.max_physical_offset == 0
    clock.advance(1)
    opened_of(store).flusher.flush_due()
    assert store.max_physical_offset == 100


def test_a_killed_process_loses_what_was_not_committed_and_nothing_else(
    vfs: FaultyVfs, clock: ManualClock
) -> None:  # TSP-08
    store = opened(vfs, clock)
    for _ in range(3):
        put(store)
    log_of(store).commit()
    dispatcher_of(store).dispatch_pending()
    put(store)
    put(store)
    opened_of(store).give_back()
    store._closed = True
    with opened(vfs, clock) as again:
        assert again.max_physical_offset == 300
        assert again.max_offset_in_queue("T", 0) == 3
        assert again.put_message(Message("T", b"next")).queue_offset == 3


def test_a_close_loses_nothing(vfs: FaultyVfs, clock: ManualClock) -> None:
    with opened(vfs, clock) as store:
        for _ in range(60):
            put(store)
    assert not vfs.exists("/s/abort")
    with opened(vfs, clock) as again:
        assert again.recovered.clean
        assert again.max_offset_in_queue("T", 0) == 60


@pytest.mark.parametrize("durability", ["page_cache", "fsync"])
def test_a_put_that_asks_for_more_gets_it(store: DefaultMessageStore, durability: Any) -> None:
    put(store)
    put(store, durability=durability)
    assert log_of(store).uncommitted_bytes == 0
    assert (log_of(store).synced_offset == 200) == (durability == "fsync")
    store.put_columns({"topic": ["T"] * 3}, durability=durability)
    assert log_of(store).uncommitted_bytes == 0


def test_files_roll_and_buffers_are_used_again(store: DefaultMessageStore) -> None:
    for number in range(200):
        put(store)
        if number % 30 == 29:
            log_of(store).commit()
    log_of(store).commit()
    dispatcher_of(store).dispatch_pending()
    assert store.max_offset_in_queue("T", 0) == 200
    pool = log_of(store)._pool
    assert pool is not None
    assert pool.available == 1
    assert len(log_of(store).queue.files) == 5


@pytest.mark.parametrize("buffers", [0, 1])
def test_a_file_is_never_written_before_the_one_in_front_of_it(
    vfs: FaultyVfs, clock: ManualClock, buffers: int
) -> None:
    with opened(vfs, clock, transient_store_pool_size=buffers) as store:
        for _ in range(60):  # two files
            put(store)
        assert store.max_physical_offset >= SIZE - 100
        log_of(store).commit()
        assert log_of(store).uncommitted_bytes == 0
        dispatcher_of(store).dispatch_pending()
        assert store.max_offset_in_queue("T", 0) == 60


def test_a_full_disk_leaves_everything_in_the_buffers(
    store: DefaultMessageStore, vfs: FaultyVfs
) -> None:
    put(store, 500)
    vfs.fail("pwrite", path="/s/commitlog", error=errno.ENOSPC, written=77)
    with pytest.raises(OSError, match="No space"):
        log_of(store).commit()
    assert positions(store) == (500, 0, 0)
    put(store, 100)
    assert log_of(store).commit()
    assert positions(store) == (600, 600, 0)
    assert store.look_message(500).topic == "T"


def test_a_full_disk_fails_a_sync_and_it_can_be_tried_again(
    store: DefaultMessageStore, vfs: FaultyVfs
) -> None:
    put(store, 500)
    vfs.fail("pwrite", path="/s/commitlog", error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        put(store, 100, durability="fsync")
    log_of(store).flush()
    assert log_of(store).synced_offset == 600


def test_a_broken_disk_fails_the_log(vfs: FaultyVfs, clock: ManualClock) -> None:
    store = opened(vfs, clock)
    put(store, 500)
    vfs.fail("pwrite", path="/s/commitlog", error=errno.EIO)
    with pytest.raises(StoreFailed):
        log_of(store).commit()
    with pytest.raises(StoreFailed):
        put(store)
    with pytest.raises(StoreFailed):
        store.close()


def test_the_pool_has_so_many_buffers_and_no_more() -> None:
    pool = TransientStorePool(2, 10)
    first, second = pool.borrow(), pool.borrow()
    assert first is not None
    assert second is not None
    assert pool.borrow() is None
    pool.give_back(first)
    assert pool.available == 1
    assert pool.borrow() is first


def test_the_service_commits_in_the_background(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path, "w", CONFIG) as store:
        put(store)
        assert store.wait_dispatched(0, 30)


@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_the_golden_store_with_a_pool_comes_out_the_same(
    golden: GoldenFactory, tmp_path: Path, version: str
) -> None:
    theirs = golden("rocketmq", version, "transientpool")
    again = Again(theirs, tmp_path / "again")
    assert again.config.uses_transient_pool
    for number, row in enumerate(theirs.puts()):
        again.put(row)
        if number % 7 == 0:
            log_of(again.store).commit()
    again.close("commitlog", "consumequeue")
