"""One file of a shard."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.tubestore.core.test_trash import DATA, HOME, INDEX
from tests.tubestore.core.test_trash import shard as shard
from tubestore.core import trash
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.segments.segment import MAPPED_READ_MIN, FileSegment, find_moved
from tubestore.testing import FaultyVfs, MemoryVfs, crash_states

START = 1000


def make(vfs: Vfs, path: str = "/a.tube") -> FileSegment:
    return FileSegment(vfs.open(path, create=True), START, 0, sealed=False)


def test_offsets_of_a_segment_are_absolute(memory_vfs: MemoryVfs) -> None:
    segment = make(memory_vfs)
    segment.append(b"hello")
    segment.append(b" world")
    assert (segment.start, segment.end, segment.size) == (START, START + 11, 11)
    assert bytes(segment.read(START + 6, 5)) == b"world"
    assert bytes(segment.read(START + 6, 500)) == b"world"
    assert bytes(segment.view(START + 5)) == b"hello"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("written", [0, 1, 4])
def test_a_failed_write_leaves_the_segment_as_it_was(
    memory_vfs: MemoryVfs, error: int, written: int
) -> None:
    faulty = FaultyVfs(memory_vfs)
    segment = make(faulty)
    segment.append(b"good")
    faulty.fail("pwrite", error=error, written=written)
    with pytest.raises(OSError, match=r"\[Errno"):
        segment.append(b"bad!!")
    assert segment.end == START + 4
    assert memory_vfs.read_file("/a.tube") == b"good"
    segment.append(b"better")
    assert memory_vfs.read_file("/a.tube") == b"goodbetter"


def test_a_write_that_cannot_be_cut_back_is_written_over(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    segment = make(faulty)
    faulty.fail("pwrite", written=3)
    faulty.fail("truncate")
    with pytest.raises(OSError, match=r"\[Errno"):
        segment.append(b"bad")
    segment.append(b"good")
    assert memory_vfs.read_file("/a.tube") == b"good"


def test_a_sync_is_made_only_when_there_is_something_to_sync(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    segment = make(faulty)
    assert segment.sync() == START
    assert faulty.calls["sync"] == 0
    segment.append(b"a")
    assert segment.sync() == segment.synced_end == START + 1
    segment.sync()
    assert faulty.calls["sync"] == 1


def test_a_failed_sync_promises_nothing(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    segment = make(faulty)
    segment.append(b"a")
    faulty.fail("sync")
    with pytest.raises(OSError, match=r"\[Errno"):
        segment.sync()
    assert segment.synced_end == START


def test_a_cut_takes_back_what_was_synced(memory_vfs: MemoryVfs) -> None:
    segment = make(memory_vfs)
    segment.append(b"0123456789")
    segment.sync()
    segment.cut(START + 4)
    assert (segment.end, segment.synced_end) == (START + 4, START + 4)
    segment.append(b"ab")
    assert bytes(segment.view(segment.end)) == b"0123ab"


def test_what_was_cut_does_not_come_back_after_a_sync(memory_vfs: MemoryVfs) -> None:
    """Not even where nothing is left to sync: a publisher counts on the end."""
    segment = make(memory_vfs)
    segment.append(b"0123456789")
    segment.sync()
    journal = memory_vfs.record()
    segment.cut(START)
    segment.sync()
    for state in crash_states(journal, seed=1, kinds=("power",), steps=lambda step: step == 2):
        assert state.vfs().read_file(segment.path) == b"", state


def test_a_view_is_as_long_as_asked_and_stays_when_the_file_grows(tmp_path: Path) -> None:
    segment = make(OsVfs(), str(tmp_path / "a.tube"))
    segment.append(b"a" * 5000)
    old = segment.view(START + 10)
    segment.append(b"b" * 5000)
    new = segment.view(segment.end)
    segment.close()
    assert bytes(old) == b"a" * 10
    assert bytes(new) == b"a" * 5000 + b"b" * 5000


def test_large_reads_are_mapped_and_small_ones_are_not(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    segment = make(faulty)
    segment.append(bytes(range(256)) * 1024)
    assert bytes(segment.read(START + 7, 3)) == b"\x07\x08\x09"
    assert faulty.calls == {"create": 1, "pwrite": 1, "pread": 1}
    assert len(segment.read(START + 7, MAPPED_READ_MIN)) == MAPPED_READ_MIN
    assert faulty.calls["view"] == 1
    assert bytes(segment.read(START + 7, 3)) == b"\x07\x08\x09"
    assert faulty.calls["pread"] == 1


# -- files that retention has moved -----------------------------------------------------------


def test_what_was_moved_is_found_again(shard: MemoryVfs) -> None:
    for path in (DATA, INDEX):
        assert find_moved(shard, path) is None
        moved = trash.move(shard, path, trash.trash_of(HOME), 1000)
        assert moved == find_moved(shard, path)
        assert moved is not None
        assert shard.read_file(moved) == path.encode()
        assert not shard.exists(path)


def test_a_file_of_a_shard_that_was_moved_as_a_whole_is_found(shard: MemoryVfs) -> None:
    trash.move(shard, DATA, trash.trash_of(HOME), 1000)
    moved = trash.move(shard, HOME, trash.trash_of("/store"), 2000)
    assert moved == "/store/.tubestore/trash/t-0.2000"
    assert find_moved(shard, INDEX) == f"{moved}/index/{0:020d}.index"
    found = find_moved(shard, DATA)
    assert found is not None
    assert shard.read_file(found) == DATA.encode()
    assert find_moved(shard, f"{HOME}/{7:020d}.tube") is None


def test_of_two_with_the_same_name_the_later_one_is_meant(shard: MemoryVfs) -> None:
    trash.move(shard, DATA, trash.trash_of(HOME), 999)
    shard.open(DATA, create=True).pwrite(b"later", 0)
    trash.move(shard, DATA, trash.trash_of(HOME), 1000)
    found = find_moved(shard, DATA)
    assert found is not None
    assert shard.read_file(found) == b"later"
