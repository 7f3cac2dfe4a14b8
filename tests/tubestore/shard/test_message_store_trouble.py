"""One shard in trouble: a full disk, failed writes and syncs; and its end."""

from __future__ import annotations

import contextlib
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
from tubestore.clock import ManualClock
from tubestore.core.vfs import VfsFile
from tubestore.errors import DiskFull, StoreBusy, StoreClosed, StoreFailed
from tubestore.options import Durability
from tubestore.record.records import ENTRY_SIZE
from tubestore.testing import FaultyVfs, MemoryVfs

HOME = "/store/t-0"
DATA = f"{HOME}/{0:020d}.tube"
INDEX = f"{HOME}/index/{0:020d}.index"
ROWS = make_rows(20)
LEVELS: tuple[Durability, ...] = ("memory", "page_cache", "fsync")
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
    entries = size_of(memory_vfs, INDEX)
    faulty.fail("pwrite", error=errno.ENOSPC, forever=True, path=path)
    shard.append(ROWS[1], "memory")
    with pytest.raises(DiskFull) as caught:
        shard.flush()
    assert isinstance(caught.value, OSError)
    assert size_of(memory_vfs, INDEX) == entries
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


@pytest.mark.parametrize("level", LEVELS)
def test_an_append_says_whether_a_full_disk_has_taken_its_message(
    memory_vfs: MemoryVfs, level: Durability
) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty)
    shard.append(ROWS[0], "fsync")
    faulty.fail("pwrite", error=errno.ENOSPC, forever=True)
    if level == "memory":
        shard.append(ROWS[1], level)
    else:
        with pytest.raises(DiskFull) as first:
            shard.append(ROWS[1], level)
        assert (first.value.taken, first.value.offset) == ("yes", ENTRY_SIZE)
    with pytest.raises(DiskFull) as flushed:
        shard.flush()
    assert flushed.value.taken == "no"
    for refused in (
        lambda: shard.append(ROWS[2], level),
        lambda: shard.append_columns(columns_of(ROWS[2:4]), level),
    ):
        with pytest.raises(DiskFull) as later:
            refused()
        assert (later.value.taken, later.value.offset) == ("no", None)
    assert bodies(shard.view()) == BODIES[:2]
    faulty.heal()
    assert shard.append(ROWS[2], level) == 2 * ENTRY_SIZE
    shard.close()
    assert bodies(open_shard(memory_vfs).view()) == BODIES[:3]


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_batch_that_a_full_disk_has_taken_has_an_offset(
    memory_vfs: MemoryVfs, level: Durability
) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty)
    shard.append(ROWS[0], "fsync")
    faulty.fail("pwrite", error=errno.ENOSPC)
    with pytest.raises(DiskFull) as caught:
        shard.append_columns(columns_of(ROWS[1:4]), level)
    assert (caught.value.taken, caught.value.offset) == ("yes", ENTRY_SIZE)
    shard.close()
    assert bodies(open_shard(memory_vfs).view()) == BODIES[:4]


@pytest.mark.parametrize("call", ["pwrite", "sync"])
def test_after_any_other_failure_only_the_next_opening_knows(
    memory_vfs: MemoryVfs, call: str
) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty)
    faulty.fail(call)
    with pytest.raises(StoreFailed) as caught:
        shard.append(ROWS[0], "fsync")
    assert (caught.value.taken, caught.value.offset) == ("unknown", None)
    with pytest.raises(StoreFailed) as later:
        shard.append(ROWS[1], "fsync")
    assert later.value.taken == "no"


@pytest.mark.parametrize("call", ["pwrite", "create"])
def test_a_full_disk_is_one_line_in_the_log_and_its_end_another(
    memory_vfs: MemoryVfs, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty, segment_size_bytes=100)
    shard.append(ROWS[0], "page_cache")
    faulty.fail(call, error=errno.ENOSPC, forever=True)
    for row in ROWS[1:9]:
        with contextlib.suppress(DiskFull):
            shard.append(row, "page_cache")
        with contextlib.suppress(DiskFull):
            shard.maintain()
    faulty.heal()
    shard.append(ROWS[9], "page_cache")
    said = [record.message for record in caplog.records]
    assert len(said) == 2
    assert "disk full" in said[0]
    assert said[1] == f"{HOME}: there is room on the disk again"
    shard.close()


def test_a_shard_that_fails_says_so_once(
    memory_vfs: MemoryVfs, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty)
    faulty.fail("pwrite", forever=True)
    for row in ROWS[:5]:
        with pytest.raises(StoreFailed):
            shard.append(row, "fsync")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_sync_that_finds_no_room_fails_the_shard_also_before_a_roll(
    memory_vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty, segment_size_bytes=1)
    faulty.fail("sync", error=errno.ENOSPC)
    with pytest.raises(StoreFailed):
        shard.append(ROWS[0], "page_cache")
    with pytest.raises(StoreFailed):
        shard.append(ROWS[1], "memory")


def test_a_message_that_is_being_written_is_as_old_as_it_is(memory_vfs: MemoryVfs) -> None:
    clock = ManualClock()
    clock.advance(5_000_000)
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty, clock=clock)
    ages = []
    write = faulty.ask_write

    def look(path: str, size: int) -> tuple[int, OSError | None]:
        ages.append(shard.stats()["oldest_unflushed_seconds"])
        return write(path, size)

    faulty.ask_write = look  # type: ignore[method-assign]
    shard.append(ROWS[0], "page_cache")
    assert ages == [0.0, 0.0]
    faulty.fail("pwrite", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        shard.append(ROWS[1], "page_cache")
    clock.advance(3000)
    assert shard.stats()["oldest_unflushed_seconds"] == 3.0
    shard.close()


def test_a_discarded_shard_takes_nothing_at_any_level(memory_vfs: MemoryVfs) -> None:
    shard = open_shard(memory_vfs)
    shard.append(ROWS[0], "memory")
    shard.discard(StoreClosed("topic 't' was deleted"))
    for level in LEVELS:
        with pytest.raises(StoreClosed):
            shard.append(ROWS[1], level)


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


@pytest.mark.parametrize("level", LEVELS)
def test_a_failed_read_behind_a_write_fails_the_shard_and_writes_nothing_twice(
    memory_vfs: MemoryVfs, level: Durability
) -> None:
    """What the index has of removed data files is read when the first file is another one."""
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty, segment_size_bytes=100)
    for row in ROWS[:6]:
        shard.append(row, "page_cache")
    first = list(shard.files.data)[2].start
    faulty.fail("pread", path=".index", forever=True)
    with pytest.raises(OSError, match="Input/output"):
        shard.remove_below(first)
    left = [row.payload for row in ROWS[4:6]]
    if level == "memory":
        shard.append(ROWS[6], level)
    else:
        with pytest.raises(StoreFailed) as caught:
            shard.append(ROWS[6], level)
        assert caught.value.taken == "unknown"
    for _ in range(2):
        with pytest.raises(StoreFailed):
            shard.flush()
    with pytest.raises(StoreFailed) as caught:
        shard.append(ROWS[7], level)
    assert caught.value.taken == "no"
    assert shard.stats()["failed"] == 1
    faulty.heal()
    with pytest.raises(StoreFailed):
        shard.close()
    again = open_shard(memory_vfs)
    assert bodies(again.view()) == [*left, ROWS[6].payload]
    again.close()


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ("remove", "checkpoint.json"),
        ("replace_file", ".index"),
        ("replace_file", ".tube"),
        ("pread", ".index"),
    ],
)
def test_a_cut_that_the_disk_refuses_fails_the_shard_and_loses_nothing_before_it(
    memory_vfs: MemoryVfs, call: str, path: str
) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty, segment_size_bytes=150, index_segment_size_bytes=20 * ENTRY_SIZE)
    for row in ROWS[:12]:
        shard.append(row, "page_cache")
    shard.remove_below(list(shard.files.data)[1].start)
    first = shard.view().index_start // ENTRY_SIZE
    assert first > 0
    faulty.fail(call, path=path, forever=True)
    with pytest.raises(OSError, match="Input/output"):
        shard.cut(7 * ENTRY_SIZE)
    with pytest.raises(StoreFailed, match="cut"):
        shard.append(ROWS[12], "memory")
    shard.check_invariants()
    faulty.heal()
    with pytest.raises(StoreFailed):
        shard.close()
    again = open_shard(memory_vfs, segment_size_bytes=150)
    assert again.recovered.problems == []
    kept = bodies(again.view())
    assert kept[: 7 - first] == [row.payload for row in ROWS[first:7]]
    assert again.append(ROWS[12], "fsync") == ENTRY_SIZE * (first + len(kept))
    again.close()


def test_a_failed_look_behind_a_removal_leaves_the_shard_as_it_was_and_usable(
    memory_vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty, segment_size_bytes=150, index_segment_size_bytes=20 * ENTRY_SIZE)
    for row in ROWS[:12]:
        shard.append(row, "page_cache")
    faulty.fail("pread", path=".index", forever=True)
    with pytest.raises(OSError, match="Input/output"):
        shard.remove_below(list(shard.files.data)[1].start)
    faulty.heal()
    assert bodies(shard.view()) == [row.payload for row in ROWS[:12]]  # what went is in the trash
    assert shard.append(ROWS[12], "fsync") == 12 * ENTRY_SIZE
    first = shard.view().index_start // ENTRY_SIZE
    assert first > 0
    assert bodies(shard.view()) == [row.payload for row in ROWS[first:13]]
    shard.check_invariants()
    shard.close()
