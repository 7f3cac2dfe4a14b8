"""One shard in trouble: a full disk, failed writes and syncs; and its end."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.tube import (
    GatedVfs,
    RunningClock,
    bodies,
    columns_of,
    make_row,
    make_rows,
    open_shard,
)
from tubestore.errors import DiskFull, StoreBusy, StoreClosed, StoreFailed
from tubestore.records import ENTRY_SIZE
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.vfs import VfsFile

HOME = "/store/t-0"
DATA = f"{HOME}/{0:020d}.tube"
INDEX = f"{HOME}/index/{0:020d}.index"
ROWS = make_rows(20)
BODIES = [row.payload for row in ROWS]


def size_of(vfs: MemoryVfs, path: str) -> int:
    return len(vfs.read_file(path)) if vfs.exists(path) else 0


# -- trouble ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [".tube", ".index"])
def test_a_full_disk_loses_nothing_and_refuses_until_there_is_room(
    memory_vfs: MemoryVfs, path: str
) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty)
    shard.append(ROWS[0], "page_cache")
    sizes = size_of(memory_vfs, DATA), size_of(memory_vfs, INDEX)
    faulty.fail("pwrite", error=errno.ENOSPC, forever=True, path=path)
    shard.append(ROWS[1], "memory")
    with pytest.raises(DiskFull) as caught:
        shard.flush()
    assert isinstance(caught.value, OSError)
    assert (size_of(memory_vfs, DATA), size_of(memory_vfs, INDEX)) == sizes
    with pytest.raises(DiskFull):
        shard.append(ROWS[2], "memory")
    assert bodies(shard.view()) == BODIES[:2]

    faulty.heal()
    assert shard.append(ROWS[2], "fsync") == 2 * ENTRY_SIZE
    shard.close()
    again = open_shard(memory_vfs)
    assert bodies(again.view()) == BODIES[:3]
    again.close()


def test_a_full_disk_at_a_roll_is_over_when_there_is_room(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty, segment_size_bytes=100, clock=RunningClock())
    faulty.fail("create", nth=3, error=errno.ENOSPC, forever=True)
    shard.append(ROWS[0], "page_cache")
    shard.append(ROWS[1], "page_cache")  # written; the next file cannot be made
    with pytest.raises((DiskFull, StoreBusy)):
        shard.append(ROWS[2], "page_cache")
    faulty.heal()
    shard.append(ROWS[2], "page_cache")
    shard.append(ROWS[3], "fsync")
    assert bodies(shard.view()) == BODIES[:4]
    shard.close()
    again = open_shard(memory_vfs)
    assert bodies(again.view()) == BODIES[:4]
    assert len(again.files.data) > 1
    again.close()


@pytest.mark.parametrize("call", ["pwrite", "sync", "sync_directory", "create"])
def test_any_other_failure_fails_the_shard_until_it_is_opened_again(
    memory_vfs: MemoryVfs, call: str
) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty)
    shard.append(ROWS[0], "memory")
    faulty.fail(call)
    with pytest.raises(StoreFailed) as caught:
        shard.append(ROWS[1], "fsync")
    assert HOME in caught.value.path
    for level in ("memory", "page_cache", "fsync"):
        with pytest.raises(StoreFailed):
            shard.append(ROWS[2], level)  # type: ignore[arg-type]
    for operation in (shard.flush, shard.sync, shard.sync_data):
        with pytest.raises(StoreFailed):
            operation()
    assert bodies(shard.view()) == BODIES[:2]
    with pytest.raises(StoreFailed):  # what it took may not be in the files
        shard.close()

    again = open_shard(memory_vfs)
    kept = bodies(again.view())
    assert kept == BODIES[: len(kept)]
    again.append(ROWS[3], "fsync")
    assert bodies(again.view()) == [*kept, BODIES[3]]
    again.close()


def test_who_waits_for_a_sync_that_fails_gets_the_error_too(memory_vfs: MemoryVfs) -> None:
    gated = GatedVfs(memory_vfs, messages=8)
    gated.fail("sync", forever=True)
    shard = gated.shard = open_shard(gated)

    def append(number: int) -> str:
        try:
            shard.append(ROWS[number], "fsync")
        except StoreFailed:
            return "failed"
        return "acknowledged"

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(append, range(8))) == {"failed"}
    with pytest.raises(StoreFailed):  # what it took may not be in the files
        shard.close()


def test_a_failed_sync_is_never_followed_by_an_acknowledgement(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty)
    faulty.fail("sync")  # fails once; the next one would say that all is well
    with pytest.raises(StoreFailed):
        shard.append(ROWS[0], "fsync")
    with pytest.raises(StoreFailed):
        shard.append(ROWS[1], "fsync")
    with pytest.raises(StoreFailed):
        shard.sync()
    with pytest.raises(StoreFailed):  # what it took may not be in the files
        shard.close()


class _SlowDirectory(FaultyVfs):
    """Holds the first sync of a directory until it is let go."""

    def __init__(self, inner: MemoryVfs) -> None:
        super().__init__(inner)
        self.entered, self.let_go = threading.Event(), threading.Event()
        self.done: list[str] = []

    def sync_directory(self, path: str) -> None:
        if not self.entered.is_set():
            self.entered.set()
            assert self.let_go.wait(10)
        super().sync_directory(path)
        self.done.append(path)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> VfsFile:
        return super().open(path, create=create, writable=writable)


def test_a_sync_beside_another_waits_for_the_directories(memory_vfs: MemoryVfs) -> None:
    slow = _SlowDirectory(memory_vfs)
    shard = open_shard(slow)
    seen: list[int] = []
    first = threading.Thread(target=lambda: shard.append(ROWS[0], "fsync"))
    first.start()
    assert slow.entered.wait(10)

    def second() -> None:
        shard.sync()
        seen.append(len(slow.done))

    other = threading.Thread(target=second)
    other.start()
    other.join(0.2)  # it must not be back before the directories are synced
    slow.let_go.set()
    other.join(10)
    first.join(10)
    assert seen == [3]
    shard.close()


# -- the end ---------------------------------------------------------------------------------


def test_a_closed_shard_refuses_everything_and_closes_again(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs)
    shard.append(ROWS[0], "memory")
    shard.close()
    shard.close()
    with pytest.raises(StoreClosed):
        shard.append(ROWS[1], "memory")
    with pytest.raises(StoreClosed):
        shard.append_columns(columns_of(ROWS), "memory")
    for operation in (shard.flush, shard.sync, shard.sync_data, shard.view):
        with pytest.raises(StoreClosed):
            operation()
    again = open_shard(memory_vfs)
    assert bodies(again.view()) == BODIES[:1]
    again.close()


def test_memory_goes_back_to_the_pool(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs)
    pool = shard._pool
    shard.append(make_row(b"x" * 200_000), "memory")
    assert pool.used >= 200_000
    shard.flush()
    assert pool.used == 0
    shard.append(ROWS[0], "memory")
    shard.close()
    assert pool.used == 0
