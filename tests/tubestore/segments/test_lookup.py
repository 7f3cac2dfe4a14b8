"""What is known of index segments: dropped with the entries, and no longer kept in files."""

from __future__ import annotations

from tests.support.tube import make_rows, open_shard, write_rows
from tubestore.options import StoreOptions
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.segment import FileSegment
from tubestore.segments.summaries import BLOCK_ENTRIES
from tubestore.testing import MemoryVfs

HOME = "/store/t-0"
SIZES = {"index_segment_size_bytes": 28 * 600}
ROWS = make_rows(1500)


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


def test_lists_and_times_that_lie_in_files_are_ignored(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, ROWS, HOME, **SIZES)
    for suffix in ("partition_id.postings", "key_code.postings", "times"):
        path = f"{HOME}/.tubestore/{0:020d}.{suffix}"
        memory_vfs.open(path, create=True).pwrite(b"TSP1" * 30, 0)
    assert covered(loaded(memory_vfs)) == (0, 0, 0)
    shard = open_shard(memory_vfs, HOME, **SIZES)
    assert shard.view().counts()[1] == 500
    shard.close()
