"""What is known of index segments: dropped with the entries, and no longer kept in files."""

from __future__ import annotations

import pytest

from tests.support.tube import make_rows, open_shard, write_rows
from tubestore.options import StoreOptions
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.lookup import remove_former_caches
from tubestore.segments.segment import FileSegment
from tubestore.segments.summaries import BLOCK_ENTRIES
from tubestore.testing import FaultyVfs, MemoryVfs

HOME = "/store/t-0"
SIZES = {"index_segment_size_bytes": 28 * 600}
ROWS = make_rows(1500)
#: What earlier versions wrote beside a sealed index segment; here with nonsense in them.
FORMER = [
    f"{HOME}/.tubestore/{start:020d}.{suffix}"
    for start in (0, 28 * 600)
    for suffix in ("partition_id.postings", "key_code.postings", "times")
]


def loaded(vfs: MemoryVfs) -> MsgFileStore:
    files = MsgFileStore(vfs, HOME, 0, StoreOptions(**SIZES))
    files.load(writable=False)
    return files


def first_of(files: MsgFileStore) -> FileSegment:
    return next(iter(files.index))


def covered(files: MsgFileStore) -> tuple[int, int, int]:
    """Return how many entries of the first segment are known by partition, by key and by time."""
    segment = first_of(files)
    return (
        files.lists.postings(segment, "partition_id").covered,
        files.lists.postings(segment, "key_code").covered,
        files.lists.times(segment).covered,
    )


def find_out(files: MsgFileStore) -> None:
    segment = first_of(files)
    entries = files.entries(segment, segment.end)
    files.lists.postings(segment, "partition_id").extend(entries)
    files.lists.postings(segment, "key_code").extend(entries)
    files.lists.times(segment).extend(entries)


def test_a_reader_drops_what_it_knew_of_entries_that_were_taken_back(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS[:800], HOME)
    files = loaded(memory_vfs)
    find_out(files)
    shard = open_shard(memory_vfs, HOME)
    shard.cut(28 * 100)
    shard.close()
    write_rows(memory_vfs, make_rows(800, partitions=2, start=5000), HOME)
    files.load(writable=False)
    files.forget_stale_lists()
    assert covered(files) == (0, 0, 0)


def test_what_is_still_true_is_kept_when_a_reader_looks_again(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, ROWS, HOME, **SIZES)
    files = loaded(memory_vfs)
    find_out(files)
    files.load(writable=False)
    files.forget_stale_lists()
    assert covered(files) == (600, 600, 600 // BLOCK_ENTRIES * BLOCK_ENTRIES)


# -- files of earlier versions ---------------------------------------------------------------


@pytest.fixture
def former(memory_vfs: MemoryVfs) -> MemoryVfs:
    """A shard beside which an earlier version has kept lists and times."""
    write_rows(memory_vfs, ROWS, HOME, **SIZES)
    for path in FORMER:
        memory_vfs.open(path, create=True).pwrite(b"TSP1" * 30, 0)
    return memory_vfs


def kept(vfs: MemoryVfs) -> list[str]:
    return [path for path in vfs.tree() if path.endswith((".postings", ".times"))]


def test_files_of_earlier_versions_are_ignored_and_stay_while_nothing_changes(
    former: MemoryVfs,
) -> None:
    assert covered(loaded(former)) == (0, 0, 0)
    shard = open_shard(former, HOME, **SIZES)
    assert shard.view().counts()[1] == 500
    shard.close()
    assert kept(former) == sorted(FORMER)


def test_files_of_earlier_versions_go_when_a_segment_is_sealed(former: MemoryVfs) -> None:
    shard = open_shard(former, HOME, **SIZES)
    for row in make_rows(301, start=1500):
        shard.append(row, "page_cache")
    shard.sync()
    shard.close()
    assert kept(former) == []
    assert [path for path in former.tree() if path.endswith(".index.digests")]


def test_files_of_earlier_versions_go_with_retention(former: MemoryVfs) -> None:
    shard = open_shard(former, HOME, **SIZES)
    shard.files.roll()
    shard.remove_below(shard.files.data.end)
    assert kept(former) == []
    shard.close()


def test_files_of_earlier_versions_that_cannot_be_removed_are_no_failure(
    former: MemoryVfs,
) -> None:
    faulty = FaultyVfs(former)
    faulty.fail("remove")
    remove_former_caches(faulty, HOME)
    assert kept(former) == sorted(FORMER)
    remove_former_caches(former, HOME)
    assert kept(former) == []
