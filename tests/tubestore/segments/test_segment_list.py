"""The rolling files of one stream."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubestore.core.vfs import Vfs
from tubestore.errors import NotAStore
from tubestore.record.names import segment_name
from tubestore.segments.segment_list import FileSegmentList
from tubestore.testing import FaultyVfs, MemoryVfs

HOME = "/s"


def load(vfs: Vfs, size: int = 10, *, writable: bool = True) -> FileSegmentList:
    return FileSegmentList.load(vfs, HOME, ".tube", size, writable=writable)


def make_files(vfs: MemoryVfs, *files: tuple[int, int]) -> None:
    vfs.make_directories(HOME)
    for start, size in files:
        vfs.open(f"{HOME}/{segment_name(start, '.tube')}", create=True).pwrite(b"x" * size, 0)


def fill(vfs: Vfs, pieces: list[bytes], start: int = 0) -> FileSegmentList:
    vfs.make_directories(HOME)
    segments = load(vfs)
    for piece in pieces:
        segments.writable(start).append(piece)
        segments.roll_if_full()
    return segments


def test_a_missing_directory_is_an_empty_list(memory_vfs: MemoryVfs) -> None:
    segments = load(memory_vfs)
    assert (len(segments), segments.start, segments.end) == (0, 0, 0)
    assert segments.find(0) is None
    assert segments.between(0, 100) == []
    segments.sync()
    segments.close()


@given(st.lists(st.binary(min_size=1, max_size=15), min_size=1, max_size=12), st.integers(0, 100))
def test_files_roll_after_the_write_that_fills_them(pieces: list[bytes], start: int) -> None:
    vfs = MemoryVfs()
    segments = fill(vfs, pieces, start)
    joined = b"".join(vfs.tree().values())
    assert joined == b"".join(pieces)
    sizes = [s.size for s in segments]
    assert all(size >= 10 for size in sizes[:-1])
    assert sizes[-1] < 10
    assert all(s.sealed == (s is not segments.last) for s in segments)
    again = load(vfs)
    assert [(s.start, s.end) for s in again] == [(s.start, s.end) for s in segments]
    for offset in range(start, start + len(joined) + 1):
        found = again.find(offset)
        assert found is not None
        assert found.start <= offset <= found.end
    assert again.find(start + len(joined) + 1) is None
    assert again.find(start - 1) is None


@given(st.integers(0, 70), st.integers(1, 70))
def test_between_gives_the_segments_that_hold_the_bytes(low: int, size: int) -> None:
    high = low + size
    vfs = MemoryVfs()
    make_files(vfs, (10, 10), (20, 15), (35, 10), (45, 0))
    expected = [s.start for s in load(vfs) if s.start < high and s.end > low]
    assert [s.start for s in load(vfs).between(low, high)] == expected


@pytest.mark.parametrize(
    "files", [[(0, 10), (11, 5)], [(0, 10), (9, 5)], [(0, 0), (5, 5)], [(0, 10), (10, 5), (16, 1)]]
)
def test_a_gap_or_an_overlap_is_refused_and_named(
    memory_vfs: MemoryVfs, files: list[tuple[int, int]]
) -> None:
    make_files(memory_vfs, *files)
    with pytest.raises(NotAStore, match="does not start where the one before ends"):
        load(memory_vfs)


def test_other_files_and_directories_are_passed_by(memory_vfs: MemoryVfs) -> None:
    make_files(memory_vfs, (0, 10))
    for name in ("x.tube", "10.index", "10.tube.tmp", "lock"):
        memory_vfs.open(f"{HOME}/{name}", create=True)
    memory_vfs.make_directories(f"{HOME}/10.tube")
    assert [s.start for s in load(memory_vfs)] == [0]


def test_only_the_last_segment_is_not_sealed(memory_vfs: MemoryVfs) -> None:
    make_files(memory_vfs, (0, 10), (10, 10), (20, 0))
    assert [s.sealed for s in load(memory_vfs)] == [True, True, False]


def test_a_roll_syncs_what_it_seals(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    segments = fill(faulty, [b"0123456789"])
    assert [s.synced_end for s in segments] == [10, 10]
    assert faulty.calls["sync"] == 1


@pytest.mark.parametrize("call", ["sync", "create"])
def test_a_roll_that_fails_is_made_by_the_next_one(memory_vfs: MemoryVfs, call: str) -> None:
    faulty = FaultyVfs(memory_vfs)
    segments = fill(faulty, [b"01234"])
    segments.last.append(b"56789")
    faulty.fail(call, error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        segments.roll_if_full()
    assert (len(segments), segments.last.sealed) == (1, False)
    assert segments.roll_if_full() is not None
    assert (len(segments), segments.end) == (2, 10)


@pytest.mark.parametrize(
    ("end", "left"),
    [(35, [10, 10, 10, 5]), (30, [10, 10, 10, 0]), (25, [10, 10, 5]), (20, [10, 10, 0]), (0, [0])],
)
def test_a_cut_removes_whole_files_and_shortens_the_last(
    memory_vfs: MemoryVfs, end: int, left: list[int]
) -> None:
    make_files(memory_vfs, (0, 10), (10, 10), (20, 10), (30, 9))
    segments = load(memory_vfs)
    segments.cut(end)
    assert [s.size for s in segments] == left
    assert segments.end == end
    assert not segments.last.sealed
    segments.last.append(b"new")
    assert load(memory_vfs).end == end + 3


def test_a_cut_below_the_first_byte_keeps_an_empty_file_there(memory_vfs: MemoryVfs) -> None:
    make_files(memory_vfs, (10, 10), (20, 10))
    segments = load(memory_vfs)
    segments.cut(5)
    assert [(s.start, s.end) for s in segments] == [(10, 10)]


@pytest.mark.parametrize("end", [35, 30, 25, 20, 1, 0])
def test_a_cut_that_copies_leaves_the_bytes_of_others_alone(
    memory_vfs: MemoryVfs, end: int
) -> None:
    make_files(memory_vfs, (0, 10), (10, 10), (20, 10), (30, 9))
    views = [s.view(s.end) for s in load(memory_vfs, writable=False)]
    segments = load(memory_vfs)
    segments.cut_copying(end)
    segments.last.append(b"new")
    assert segments.end == load(memory_vfs).end == end + 3
    assert [bytes(v) for v in views] == [b"x" * n for n in (10, 10, 10, 9)]


def test_a_reader_s_list_stays_when_the_writer_rolls(memory_vfs: MemoryVfs) -> None:
    segments = fill(memory_vfs, [b"0123456789", b"01234"])
    held = iter(segments)
    segments.last.append(b"56789")
    segments.roll_if_full()
    assert [s.start for s in held] == [0, 10]
    assert [s.start for s in segments] == [0, 10, 20]
