"""The files of one shard: data before index, and a failure changes nothing."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from tests.support.tube import encode_rows, make_rows
from tubestore.core.vfs import Vfs
from tubestore.options import StoreOptions
from tubestore.record.records import ENTRY_SIZE, EncodedBatch
from tubestore.segments.file_store import MsgFileStore, locate
from tubestore.testing import FaultyVfs, MemoryVfs

HOME = "/store/t-0"


def files_of(vfs: Vfs, **options: int) -> MsgFileStore:
    files = MsgFileStore(vfs, HOME, 0, StoreOptions(**options))  # type: ignore[arg-type]
    files.load(writable=True)
    return files


def batch_at(files: MsgFileStore, first: int, count: int) -> tuple[EncodedBatch, int, int]:
    index, data = files.index.end, files.data.end
    return encode_rows(make_rows(count, start=first), index, data), index, data


def test_nothing_is_made_before_the_first_write(memory_vfs: MemoryVfs) -> None:
    files = files_of(memory_vfs)
    assert files.sync_data() == 0
    files.sync()
    assert not files.roll_if_full()
    assert memory_vfs.tree() == {}


def test_a_batch_goes_into_one_file_and_the_roll_comes_after_it(memory_vfs: MemoryVfs) -> None:
    files = files_of(memory_vfs, segment_size_bytes=200, index_segment_size_bytes=100)
    sizes = []
    for number in range(4):
        batch = batch_at(files, number * 10, 10)
        sizes.append(len(batch[0].data))
        files.append(*batch)
        files.roll_if_full()
    assert [s.size for s in files.data] == [*sizes, 0]
    assert [s.size for s in files.index] == [10 * ENTRY_SIZE] * 4 + [0]


@pytest.mark.parametrize("path", [".tube", ".index"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("then", [None, "truncate", "pwrite"])
def test_a_failed_append_shows_nothing_and_goes_on_where_it_stopped(
    memory_vfs: MemoryVfs, path: str, error: int, then: str | None
) -> None:
    faulty = FaultyVfs(memory_vfs)
    files = files_of(faulty)
    files.append(*batch_at(files, 0, 3))
    before = files.index.end
    faulty.fail("pwrite", path=path, error=error, written=20)
    if then is not None:
        faulty.fail(then, nth=2 if then == "pwrite" else 1, path=path, error=error, written=40)
    batch = batch_at(files, 3, 5)
    for _ in range(2 if then == "pwrite" else 1):
        with pytest.raises(OSError, match=r"\[Errno"):
            files.append(*batch)
        assert files.index.end == before
    files.append(*batch)
    files.append(*batch_at(files, 8, 1))
    assert files.index.end == 9 * ENTRY_SIZE

    sound = MemoryVfs()
    whole = files_of(sound)
    for first, count in ((0, 3), (3, 5), (8, 1)):
        whole.append(*batch_at(whole, first, count))
    assert memory_vfs.tree() == sound.tree()


def test_directories_are_synced_once_for_each_file_that_appears(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    files = files_of(faulty, segment_size_bytes=100)
    files.append(*batch_at(files, 0, 1))
    files.sync_data()
    first = faulty.calls["sync_directory"]
    assert first == 3  # the root, the shard, its index
    files.append(*batch_at(files, 1, 1))
    files.sync_data()
    assert faulty.calls["sync_directory"] == first
    assert files.roll_if_full()
    files.sync_data()
    assert faulty.calls["sync_directory"] == first + 1


def test_the_fsync_level_syncs_data_only_and_sync_both(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    files = files_of(faulty)
    files.append(*batch_at(files, 0, 3))
    assert files.sync_data() == files.data.end
    assert faulty.calls["sync"] == 1
    files.sync()
    assert faulty.calls["sync"] == 2  # the data is synced already


def test_entries_are_found_in_the_file_that_holds_their_data(memory_vfs: MemoryVfs) -> None:
    files = files_of(memory_vfs, segment_size_bytes=150)
    for number in range(12):
        files.append(*batch_at(files, number, 1))
        files.roll_if_full()
    (index,) = files.index
    entries = files.entries(index, files.index.end).copy()
    entries["data_offset"][3] = -1
    entries["data_offset"][5] = 1 << 40
    segments = list(files.data)
    for some in (segments, segments[1:3], segments[:1]):
        found: dict[int, int] = {}
        for segment, rows in locate(entries["data_offset"].astype(np.int64), some):
            assert rows.tolist() == sorted(rows.tolist())
            found |= dict.fromkeys(rows.tolist(), segment.start)
        expected = {
            n: s.start
            for n, offset in enumerate(entries["data_offset"].tolist())
            for s in some
            if s.start <= offset < s.end
        }
        assert found == expected


def test_entries_end_where_the_snapshot_ends(memory_vfs: MemoryVfs) -> None:
    files = files_of(memory_vfs)
    files.append(*batch_at(files, 0, 5))
    segment = files.index.last
    assert len(files.entries(segment, 3 * ENTRY_SIZE)) == 3
    assert len(files.entries(segment, 1 << 40)) == 5
    assert np.array_equal(files.entries(segment, 56), files.entries(segment, 60))


@pytest.mark.parametrize("index_segment_size_bytes", [100, 10_000])
def test_the_first_offset_is_that_of_the_first_entry_whose_data_is_still_there(
    memory_vfs: MemoryVfs, index_segment_size_bytes: int
) -> None:
    settings = {
        "segment_size_bytes": 200,
        "index_segment_size_bytes": index_segment_size_bytes,
    }
    files = files_of(memory_vfs, **settings)
    for number in range(20):
        files.append(*batch_at(files, number, 1))
        files.roll_if_full()
    starts = [s.start for s in files.data]
    entries = np.concatenate([files.entries(s, s.end) for s in files.index])
    assert files.first_offset() == 0
    for gone, start in zip(list(files.data)[:-1], starts[1:], strict=True):
        memory_vfs.remove(gone.path)
        again = files_of(memory_vfs, **settings)
        expected = ENTRY_SIZE * int(np.count_nonzero(entries["data_offset"] < start))
        assert again.first_offset() == again.snapshot().index_start == expected


def test_an_empty_data_file_behind_expired_ones_leaves_no_message(memory_vfs: MemoryVfs) -> None:
    files = files_of(memory_vfs, segment_size_bytes=1)
    files.append(*batch_at(files, 0, 3))
    files.roll_if_full()
    memory_vfs.remove(next(iter(files.data)).path)
    again = files_of(memory_vfs, segment_size_bytes=1)
    assert again.first_offset() == again.index.end == 3 * ENTRY_SIZE
    again.append(*batch_at(again, 3, 1))
    assert again.first_offset() == 3 * ENTRY_SIZE


def test_a_snapshot_keeps_its_files_when_the_lists_change(memory_vfs: MemoryVfs) -> None:
    files = files_of(memory_vfs, segment_size_bytes=100)
    files.append(*batch_at(files, 0, 3))
    seen = files.snapshot()
    files.roll_if_full()
    files.append(*batch_at(files, 3, 3))
    assert [len(seen.data_segments), len(files.data)] == [1, 2]
    files.data.now = files.data.now.from_on(files.data.last.start)
    assert [s.start for s in seen.data_segments] == [0]


def test_a_full_file_is_synced_before_the_next_one_appears(memory_vfs: MemoryVfs) -> None:
    files = files_of(memory_vfs, segment_size_bytes=200, index_segment_size_bytes=100)
    journal = memory_vfs.record()
    for number in range(6):
        files.append(*batch_at(files, number * 3, 3))
        files.roll_if_full()
    synced: set[int] = set()
    numbers: dict[str, int] = {}
    for call in journal.calls:
        if call.kind == "create":
            before = [n for path, n in numbers.items() if path.endswith(call.path[-5:])]
            assert not before or before[-1] in synced, f"{call.path} before the last one's sync"
            numbers[call.path] = call.file
        elif call.kind == "sync":
            synced.add(call.file)
        elif call.kind == "pwrite":
            synced.discard(call.file)
    assert len(numbers) > 6


def test_sealed_files_never_change(memory_vfs: MemoryVfs) -> None:
    files = files_of(memory_vfs, segment_size_bytes=200, index_segment_size_bytes=100)
    sealed: dict[str, bytes] = {}
    for number in range(10):
        files.append(*batch_at(files, number * 3, 3))
        files.roll_if_full()
        if number % 3 == 2:
            files.sync()
        tree = memory_vfs.tree()
        assert {path: tree[path] for path in sealed} == sealed
        sealed = {s.path: tree[s.path] for s in (*files.data, *files.index) if s.sealed}
    assert len(sealed) >= 10
