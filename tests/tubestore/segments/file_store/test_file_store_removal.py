"""Taking the oldest files of a shard away: whole ones, in an order that no crash can spoil."""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import Any

import pytest

from tests.support.crashes import some_states
from tests.support.tube import bodies, make_rows, open_shard, scanned, write_rows
from tubestore.clock import ManualClock
from tubestore.core.trash import trash_of
from tubestore.errors import StoreClosed, StoreFailed
from tubestore.offline.check import check
from tubestore.record.records import ENTRY_SIZE
from tubestore.shard.message_store import MessageStore
from tubestore.shard.reader import ShardReader
from tubestore.testing import CrashState, FaultyVfs, MemoryVfs

HOME = "/store/t-0"
CHECKPOINT = f"{HOME}/.tubestore/checkpoint.json"
ROWS = make_rows(60)
BODIES = [row.payload for row in ROWS]
SMALL: dict[str, Any] = {"segment_size_bytes": 300, "index_segment_size_bytes": 5 * ENTRY_SIZE}


@pytest.fixture
def shard(memory_vfs: MemoryVfs) -> MessageStore:
    write_rows(memory_vfs, ROWS, HOME, **SMALL)
    return open_shard(memory_vfs, HOME, **SMALL)


def data_starts(shard: MessageStore) -> list[int]:
    return [s.start for s in shard.files.data]


def first_message_at(shard: MessageStore, data_offset: int) -> int:
    """The number of the first message whose data stands at `data_offset` or behind it."""
    entries = [e for source in shard.view().sources(0) for e in source.entries]
    return next(n for n, entry in enumerate(entries) if entry["data_offset"] >= data_offset)


def test_data_and_index_go_together_and_the_rest_stays_where_it_was(
    memory_vfs: MemoryVfs, shard: MessageStore
) -> None:
    before = scanned(shard.view())
    for start in data_starts(shard)[1:]:
        first = first_message_at(shard, start) + shard.files.index.start // ENTRY_SIZE
        shard.remove_below(start)
        assert data_starts(shard)[0] == start
        assert scanned(shard.view()) == before[first:]
        assert shard.view().index_start == first * ENTRY_SIZE
        oldest = next(iter(shard.files.index))
        assert oldest.end > first * ENTRY_SIZE, "an index file outlived all that it points to"
        assert oldest.start <= first * ENTRY_SIZE
        assert list(check("/store", vfs=memory_vfs)) == []
        reader = ShardReader(memory_vfs, HOME, "t", 0, shard._options)
        assert scanned(reader.view()) == before[first:]
    shard.append(make_rows(1, start=60)[0], "fsync")
    shard.close()


def test_the_files_that_are_written_to_stay(shard: MessageStore) -> None:
    last = data_starts(shard)[-1]
    shard.append(ROWS[0], "page_cache")
    shard.append(ROWS[0], "memory")
    assert shard.remove_below(shard.files.data.end) > 0
    assert data_starts(shard) == [last]
    assert len(bodies(shard.view())) >= 2
    shard.close()


def test_what_is_all_too_old_is_sealed_and_goes_too(
    memory_vfs: MemoryVfs, shard: MessageStore
) -> None:
    end, index_end = shard.files.data.end, shard.files.index.end
    shard.remove_below(end)
    assert [(s.start, s.size) for s in shard.files.data] == [(end, 0)]
    assert [(s.start, s.size) for s in shard.files.index] == [(index_end, 0)]
    view = shard.view()
    assert (view.index_start, view.index_end, bodies(view)) == (index_end, index_end, [])
    assert shard.append(ROWS[0], "fsync") == index_end
    shard.close()
    again = open_shard(memory_vfs, HOME, **SMALL)
    assert again.recovered.problems == []
    assert bodies(again.view()) == [BODIES[0]]
    assert again.remove_below(end) == 0
    again.close()


def test_a_view_that_was_taken_before_reads_on(memory_vfs: MemoryVfs, shard: MessageStore) -> None:
    view = shard.view()
    starts = data_starts(shard)
    for segment in (*shard.files.data, *shard.files.index):
        segment.close()  # as the pool of descriptors does with files that are not used
    shard.remove_below(starts[4])
    assert bodies(view) == BODIES
    shard.close()
    assert bodies(view) == BODIES


def test_a_reader_in_another_process_finds_what_it_saw_in_the_trash(
    memory_vfs: MemoryVfs, shard: MessageStore
) -> None:
    reader = ShardReader(memory_vfs, HOME, "t", 0, shard._options)
    view = reader.view()
    reader.close()  # its descriptors
    shard.remove_below(data_starts(shard)[4])
    assert bodies(view) == BODIES
    moved = [path for path in memory_vfs.tree() if path.startswith(trash_of(HOME))]
    assert len(moved) >= 5
    shard.close()


def test_a_segment_that_waits_in_the_trash_is_not_part_of_the_shard(
    memory_vfs: MemoryVfs, shard: MessageStore
) -> None:
    start = data_starts(shard)[3]
    shard.remove_below(start)
    shard.close()
    again = open_shard(memory_vfs, HOME, **SMALL)
    assert data_starts(again)[0] == start
    again.close()


def test_a_full_disk_has_no_trash(memory_vfs: MemoryVfs, shard: MessageStore) -> None:
    """Retention is what makes room: it does not wait for a directory entry that has no room."""
    shard.close()
    faulty = FaultyVfs(memory_vfs)
    again = open_shard(faulty, HOME, **SMALL)
    faulty.fail("rename", error=errno.ENOSPC, forever=True)
    start = data_starts(again)[3]
    again.remove_below(start)
    assert data_starts(again)[0] == start
    assert not [path for path in memory_vfs.tree() if "/trash/" in path]
    again.close()


@pytest.mark.parametrize("nth", [1, 2, 4, 6])
def test_a_file_that_cannot_be_moved_leaves_a_whole_shard(
    memory_vfs: MemoryVfs, shard: MessageStore, nth: int
) -> None:
    shard.close()
    faulty = FaultyVfs(memory_vfs)
    again = open_shard(faulty, HOME, **SMALL)
    start = data_starts(again)[4]
    faulty.fail("rename", nth=nth, error=errno.EACCES)
    with pytest.raises(PermissionError):
        again.remove_below(start)
    found = bodies(again.view())
    assert found == BODIES[-len(found) :]
    assert list(check("/store", vfs=memory_vfs)) == []
    again.append(ROWS[0], "fsync")
    again.remove_below(start)
    assert data_starts(again)[0] == start
    again.close()


def test_a_failed_sync_of_the_names_fails_the_shard(
    memory_vfs: MemoryVfs, shard: MessageStore
) -> None:
    shard.close()
    faulty = FaultyVfs(memory_vfs)
    again = open_shard(faulty, HOME, **SMALL)
    faulty.fail("sync_directory")
    with pytest.raises(StoreFailed):
        again.remove_below(data_starts(again)[4])
    with pytest.raises(StoreFailed):
        again.append(ROWS[0], "page_cache")
    with pytest.raises(StoreFailed):
        again.close()


def test_a_closed_shard_refuses(shard: MessageStore) -> None:
    start = data_starts(shard)[1]
    shard.close()
    with pytest.raises(StoreClosed):
        shard.remove_below(start)


def test_posting_lists_of_what_is_gone_go_too(shard: MessageStore) -> None:
    shard.view().counts()
    first = shard.files.index.now.first
    assert first is not None
    assert shard.files.lists.postings(first, "partition_id").covered
    shard.remove_below(shard.files.data.end)
    assert not shard.files.lists.postings(first, "partition_id").covered
    shard.close()


def test_a_checkpoint_from_below_the_first_file_is_not_trusted(
    memory_vfs: MemoryVfs, shard: MessageStore
) -> None:
    """Where nothing was left its digest is that of no bytes, and fits where nothing is again."""
    shard.remove_below(shard.files.data.end)
    shard.sync()
    for row in ROWS[:10]:
        shard.append(row, "page_cache")
    shard.remove_below(shard.files.data.end)
    shard.append(ROWS[0], "page_cache")
    shard.abandon(StoreClosed("killed"))
    again = open_shard(memory_vfs, HOME, **SMALL)
    assert again.recovered.problems == []
    assert bodies(again.view()) == [BODIES[0]]
    again.close()


# -- crashes ---------------------------------------------------------------------------------


@pytest.mark.gate
@pytest.mark.crash
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_crash_at_any_point_leaves_a_whole_shard(
    clock: ManualClock, seed: int, everything: bool
) -> None:
    vfs = MemoryVfs(clock)
    write_rows(vfs, ROWS, HOME, **SMALL)
    shard = open_shard(vfs, HOME, **SMALL)
    journal = vfs.record()
    starts = data_starts(shard)
    for start in (starts[2], starts[5]):
        shard.remove_below(start)
    kept = BODIES[first_message_at(shard, starts[5]) + shard.files.index.start // ENTRY_SIZE :]
    if everything:
        shard.remove_below(shard.files.data.end)
        kept = []
    shard.abandon(StoreClosed("killed"))
    states = some_states(journal, 50, seed=seed, variants=10)
    for state in states:
        _check_state(state, state.vfs(clock), kept)
        verified = state.vfs(clock)
        if verified.exists(CHECKPOINT):
            verified.remove(CHECKPOINT)
        _check_state(state, verified, kept)
    assert len(states) > 15


def _check_state(state: CrashState, vfs: MemoryVfs, kept: list[bytes]) -> None:
    assert list(check("/store", vfs=vfs)) == [], f"check before opening: {state}"
    shard = open_shard(vfs, HOME, **SMALL)
    report = shard.recovered
    assert (report.problems, report.data_cut, report.index_cut) == ([], 0, 0), state
    rows = scanned(shard.view(), verify=True)
    found = [row["body"] for row in rows]
    assert {row["state"] for row in rows} <= {"ok"}, state
    assert found == BODIES[len(BODIES) - len(found) :], state
    assert len(found) >= len(kept), state
    numbers = [row["offset"] // ENTRY_SIZE for row in rows]
    assert numbers == list(range(len(BODIES) - len(found), len(BODIES))), state
    assert all(one.end == other.start for one, other in pairwise(shard.files.data)), state
    assert shard.append(ROWS[0], "fsync") == len(BODIES) * ENTRY_SIZE
    shard.close()
