"""What is kept of sealed index segments: believed only if it describes exactly what is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.tube import make_rows, open_shard, partition_rows, scanned, write_rows
from tubestore.options import StoreOptions
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.lookup import write_postings
from tubestore.segments.postings import PartitionIndex
from tubestore.segments.summaries import BLOCK_ENTRIES
from tubestore.testing import MemoryVfs

HOME = "/store/t-0"
SIZES = {"index_segment_size_bytes": 28 * 600}
ROWS = make_rows(1500)
SEALED = f"{HOME}/.tubestore/{0:020d}"
FILES = [
    f"{SEALED}.partition_id.postings",
    f"{SEALED}.key_code.postings",
    f"{SEALED}.times",
]


@pytest.fixture
def vfs(memory_vfs: MemoryVfs) -> MemoryVfs:
    """A shard of three index segments that was asked for everything and synced."""
    shard = open_shard(memory_vfs, HOME, **SIZES)
    for start in range(0, len(ROWS), 100):
        for row in ROWS[start : start + 100]:
            shard.append(row, "memory")
        shard.flush()
    for source in shard.view().sources(0):
        source.partitions.extend(source.entries)
        source.lists("key_code").extend(source.entries)
        source.times.extend(source.entries)
    shard.sync()
    shard.close()
    return memory_vfs


def loaded(vfs: MemoryVfs) -> MsgFileStore:
    files = MsgFileStore(vfs, HOME, 0, StoreOptions(**SIZES))
    files.load(writable=False)
    return files


def first_of(files: MsgFileStore) -> Any:
    return next(iter(files.index))


def covered(files: MsgFileStore) -> dict[str, int]:
    """How many entries of the first segment are known without looking at any."""
    segment = first_of(files)
    return {
        FILES[0]: files.lists.postings(segment, "partition_id").covered,
        FILES[1]: files.lists.postings(segment, "key_code").covered,
        FILES[2]: files.lists.times(segment).covered,
    }


WHOLE = dict(zip(FILES, (600, 600, 600 // BLOCK_ENTRIES * BLOCK_ENTRIES), strict=True))


def test_what_was_asked_of_sealed_segments_is_kept_in_files(vfs: MemoryVfs) -> None:
    kept = {path for path in vfs.tree() if path.endswith((".postings", ".times"))}
    second = {path.replace(f"{0:020d}", f"{600 * 28:020d}") for path in FILES}
    assert kept == {*FILES, *second}  # the last segment is not sealed
    assert covered(loaded(vfs)) == WHOLE


def flip(at: int) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        place = at % len(data)
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    return damage


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "short": lambda data: data[:40],
    "cut": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "magic": flip(3),
    "features": flip(7),
    "segment size": flip(15),
    "segment digest": flip(23),
    "content digest": flip(31),
    "first count": flip(35),
    "second count": flip(39),
    "content": flip(60),
    "the end": flip(-1),
}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.rpartition("0.")[2])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_ignored_and_written_again(
    vfs: MemoryVfs, path: str, damage: str
) -> None:
    good = vfs.read_file(path)
    vfs.replace_file(path, DAMAGE[damage](good))
    assert covered(loaded(vfs)) == {**WHOLE, path: 0}
    shard = open_shard(vfs, HOME, **SIZES)
    for source in shard.view().sources(0):
        source.partitions.extend(source.entries)
        source.lists("key_code").extend(source.entries)
        source.times.extend(source.entries)
    shard.sync()
    shard.close()
    assert vfs.read_file(path) == good


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.rpartition("0.")[2])
def test_a_deleted_file_costs_time_only(vfs: MemoryVfs, path: str) -> None:
    vfs.remove(path)
    files = loaded(vfs)
    assert covered(files) == {**WHOLE, path: 0}
    segment = first_of(files)
    entries = files.entries(segment, segment.end)
    found = files.lists.postings(segment, "partition_id").lookup(entries, 1, 0, None)
    assert found.tolist() == list(range(1, 600, 3))
    assert files.lists.times(segment).first_from(entries, ROWS[333].received_time) == 333


def test_files_of_other_entries_are_ignored(vfs: MemoryVfs) -> None:
    """The segment was changed behind our back: same length, one partition another."""
    index = f"{HOME}/index/{0:020d}.index"
    vfs.open(index).pwrite(b"\0\0\0\x02", 28 * 7)
    assert set(covered(loaded(vfs)).values()) == {0}


def test_a_reader_drops_what_it_knew_of_entries_that_were_taken_back(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS[:800], HOME)
    files = loaded(memory_vfs)
    segment = first_of(files)
    entries = files.entries(segment, segment.end)
    files.lists.times(segment).extend(entries)
    files.lists.postings(segment, "partition_id").extend(entries)
    shard = open_shard(memory_vfs, HOME)
    shard.cut(28 * 100)
    shard.close()
    write_rows(memory_vfs, make_rows(800, partitions=2, start=5000), HOME)
    files.load(writable=False)
    files.forget_stale_lists()
    segment = first_of(files)
    assert files.lists.times(segment).covered == 0
    assert files.lists.postings(segment, "partition_id").covered == 0


def test_what_is_still_true_is_kept_when_a_reader_looks_again(vfs: MemoryVfs) -> None:
    files = loaded(vfs)
    assert covered(files) == WHOLE
    files.load(writable=False)
    files.forget_stale_lists()
    for path in FILES:
        vfs.remove(path)
    assert covered(files) == WHOLE


def test_a_cache_that_cannot_be_written_is_no_failure(vfs: MemoryVfs) -> None:
    files = loaded(vfs)
    segment = first_of(files)
    entries = files.entries(segment, segment.end)
    run = PartitionIndex("partition_id").merged(entries)

    class Full(MemoryVfs):
        def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
            raise OSError(28, "No space left on device")

    write_postings(Full(), HOME, segment, "partition_id", run)


def test_readers_and_a_fresh_start_see_the_same_through_kept_lists(vfs: MemoryVfs) -> None:
    shard = open_shard(vfs, HOME, **SIZES)
    view = shard.view()
    everything = scanned(view)
    for partition in range(3):
        assert partition_rows(view, partition) == [
            row for row in everything if row["partition_id"] == partition
        ]
    shard.close()
