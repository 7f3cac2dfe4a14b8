"""The positions of a group on disk: appended, found again, followed by other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os.path import dirname

import numpy as np
import pytest

from tests.support.crashes import state_now
from tubestore.errors import CorruptRecord
from tubestore.groups import positions_log
from tubestore.groups.positions import PositionRows, encode_frame
from tubestore.groups.positions_log import PositionsLog, log_name
from tubestore.options import Durability
from tubestore.testing import FaultyVfs, MemoryVfs

ROOT, PLACE = "/s", "/s/.tubestore/groups/g"
FIRST = f"{PLACE}/{log_name(1)}"


@pytest.fixture
def vfs(memory_vfs: MemoryVfs) -> MemoryVfs:
    memory_vfs.make_directories(PLACE)
    return memory_vfs


def open_log(vfs: object) -> PositionsLog:
    log = PositionsLog(vfs, ROOT, PLACE)  # type: ignore[arg-type]
    log.refresh(locked=True)
    return log


def commit(log: PositionsLog, offsets: dict[int, int], level: Durability = "page_cache") -> None:
    log.refresh(locked=True)
    rows = {"t": PositionRows(7, np.array([*offsets]), np.array([*offsets.values()]))}
    log.append(log.positions.change(1000, rows), level)


def found(vfs: MemoryVfs) -> dict[int, int]:
    return open_log(vfs).positions.topics().get("t", {})


@contextmanager
def small_logs(size: int = 300) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions_log, "GROWN_BYTES", size)
        yield


def logs(vfs: MemoryVfs) -> list[str]:
    return [name for name, _, _ in vfs.entries(PLACE) if name.endswith(".log")]


def test_what_was_committed_is_found_again(vfs: MemoryVfs) -> None:
    log = open_log(vfs)
    commit(log, {0: 28, 10_001: 56})
    commit(log, {0: 84})
    assert found(vfs) == {0: 84, 10_001: 56}


def test_a_group_without_a_log_has_no_positions_and_makes_none_by_reading(vfs: MemoryVfs) -> None:
    assert found(vfs) == {}
    assert logs(vfs) == []


def test_another_process_reads_on_where_it_was(vfs: MemoryVfs) -> None:
    one, other = open_log(vfs), open_log(vfs)
    commit(one, {0: 28})
    commit(other, {0: 56, 1: 28})
    commit(one, {1: 84})
    other.refresh()
    assert one.positions == other.positions
    assert one.positions.topics() == {"t": {0: 56, 1: 84}}


def test_a_commit_writes_what_changed_and_not_what_there_is(vfs: MemoryVfs) -> None:
    log = open_log(vfs)
    commit(log, dict.fromkeys(range(10_000), 28))
    before = vfs.open(FIRST).size()
    commit(log, {5: 56})
    assert vfs.open(FIRST).size() - before < 100


def test_a_grown_log_is_followed_by_a_snapshot_and_the_one_before_it_stays(vfs: MemoryVfs) -> None:
    log, other = open_log(vfs), open_log(vfs)
    with small_logs():
        for n in range(40):
            commit(log, {n % 3: 28 * n})
            other.refresh()
            assert other.positions == log.positions
    assert len(logs(vfs)) == 2
    assert log_name(1) not in logs(vfs)
    assert found(vfs) == {0: 28 * 39, 1: 28 * 37, 2: 28 * 38}


def test_a_log_that_is_mostly_its_snapshot_is_not_written_anew_for_each_commit(
    vfs: MemoryVfs,
) -> None:
    log = open_log(vfs)
    with small_logs():
        commit(log, dict.fromkeys(range(1000), 28))
        commit(log, {0: 56})
        for n in range(50):
            commit(log, {0: 28 * n})
    assert log_name(3) not in logs(vfs)


@pytest.mark.parametrize("left", [1, 5, 30, 50])
def test_the_beginning_of_a_frame_at_the_end_is_cut_off_without_a_problem(
    vfs: MemoryVfs, left: int
) -> None:
    log = open_log(vfs)
    commit(log, {0: 28})
    size = vfs.open(FIRST).size()
    commit(log, {0: 56})
    vfs.open(FIRST).truncate(size + left)
    again = open_log(vfs)
    assert again.positions.topics() == {"t": {0: 28}}
    commit(again, {1: 84})
    assert again.problems == []
    assert found(vfs) == {0: 28, 1: 84}
    assert open_log(vfs).problems == []


def flip(vfs: MemoryVfs, path: str, at: int) -> None:
    file = vfs.open(path)
    file.pwrite(bytes([file.pread(1, at)[0] ^ 4]), at)


def test_a_damaged_frame_is_a_problem_and_leaves_the_position_before_it(vfs: MemoryVfs) -> None:
    log = open_log(vfs)
    commit(log, {0: 28, 1: 28})
    at = vfs.open(FIRST).size()
    commit(log, {0: 56})
    commit(log, {1: 84})
    flip(vfs, FIRST, at + 60)
    again = open_log(vfs)
    assert again.positions.topics() == {"t": {0: 28, 1: 84}}
    assert [(p.path, p.position) for p in again.problems] == [(FIRST, at)]
    commit(again, {0: 112})
    assert found(vfs) == {0: 112, 1: 84}


def test_damage_at_the_end_stays_where_it_is_and_commits_go_on_behind_it(vfs: MemoryVfs) -> None:
    log = open_log(vfs)
    commit(log, {0: 28})
    at = vfs.open(FIRST).size()
    commit(log, {0: 56})
    flip(vfs, FIRST, at + 60)
    size = vfs.open(FIRST).size()
    again = open_log(vfs)
    assert len(again.problems) == 1
    commit(again, {1: 28})
    assert vfs.open(FIRST).size() > size
    assert found(vfs) == {0: 28, 1: 28}


def test_a_reader_without_the_lock_takes_the_end_for_a_write_under_way(vfs: MemoryVfs) -> None:
    log, reader = open_log(vfs), open_log(vfs)
    commit(log, {0: 28})
    at = vfs.open(FIRST).size()
    commit(log, {0: 56})
    flip(vfs, FIRST, at + 60)
    reader.refresh()
    assert reader.problems == []
    assert reader.positions.topics() == {"t": {0: 28}}
    flip(vfs, FIRST, at + 60)  # the write is complete
    reader.refresh()
    assert reader.positions.topics() == {"t": {0: 56}}


def grown(vfs: MemoryVfs) -> tuple[PositionsLog, str]:
    """A log that has been followed by another one; returns the path of the last."""
    log = open_log(vfs)
    with small_logs():
        for _ in range(20):
            commit(log, {0: 28, 1: 28})
            if len(logs(vfs)) == 2:
                break
    commit(log, {1: 84})
    return log, f"{PLACE}/{logs(vfs)[-1]}"


def test_a_damaged_snapshot_is_recovered_from_the_log_before_it(vfs: MemoryVfs) -> None:
    _, last = grown(vfs)
    flip(vfs, last, 50)
    again = open_log(vfs)
    assert again.positions.topics() == {"t": {0: 28, 1: 84}}
    assert [(p.path, p.reason) for p in again.problems] == [
        (last, "the snapshot of all positions is damaged")
    ]
    commit(again, {0: 56})  # begins a new log, with a sound snapshot
    assert found(vfs) == {0: 56, 1: 84}
    assert open_log(vfs).problems == []


def test_positions_that_are_lost_are_an_error_and_not_a_new_beginning(vfs: MemoryVfs) -> None:
    _, last = grown(vfs)
    flip(vfs, last, 50)
    flip(vfs, f"{PLACE}/{logs(vfs)[0]}", 3)
    before = vfs.tree()
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="snapshot of all positions is damaged"):
            open_log(vfs)
    assert vfs.tree() == before
    log = PositionsLog(vfs, ROOT, PLACE)
    log.begin_anew()
    assert found(vfs) == {}
    assert sum(".tubestore/quarantine" in path for path in vfs.tree()) == 2
    commit(log, {0: 28})
    assert found(vfs) == {0: 28}


def test_a_damaged_log_goes_to_quarantine_where_another_one_is_removed(vfs: MemoryVfs) -> None:
    log = open_log(vfs)
    commit(log, {0: 28})
    commit(log, {0: 56})
    flip(vfs, FIRST, vfs.open(FIRST).size() - 5)
    log = open_log(vfs)
    with small_logs():
        for n in range(40):
            commit(log, {n: 28})
    assert [
        path for path in vfs.tree() if path.endswith(f"/{log_name(1)}") and "/quarantine/" in path
    ]


def test_fsync_syncs_each_commit_and_page_cache_none(memory_vfs: MemoryVfs) -> None:
    memory_vfs.make_directories(PLACE)
    log = open_log(memory_vfs)
    commit(log, {0: 28})
    log = open_log(memory_vfs)
    journal = memory_vfs.record()
    commit(log, {0: 56})
    assert [call.kind for call in journal.calls] == ["pwrite"]
    commit(log, {0: 84}, "fsync")
    kinds = [call.kind for call in journal.calls]
    assert kinds == ["pwrite", "pwrite", "sync", *["sync_directory"] * 4]
    commit(log, {0: 112}, "fsync")
    assert [call.kind for call in journal.calls][len(kinds) :] == ["pwrite", "sync"]


def test_the_first_position_of_a_topic_is_synced_at_any_level(memory_vfs: MemoryVfs) -> None:
    journal = memory_vfs.record()
    memory_vfs.make_directories(PLACE)
    memory_vfs.sync_directory("/")
    log = open_log(memory_vfs)
    commit(log, {0: 28})
    commit(log, {0: 56})
    assert found(state_now(journal, "power")) == {0: 28}


def test_a_missing_log_is_an_error_until_the_positions_begin_anew(vfs: MemoryVfs) -> None:
    log = open_log(vfs)
    commit(log, {0: 28})
    log.close()
    vfs.remove(FIRST)
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="log of positions is missing"):
            log.refresh()
    assert "missing" in str(log.problems[0])
    log.begin_anew()
    commit(log, {0: 56})
    assert found(vfs) == {0: 56}


def test_names_that_a_killed_process_did_not_sync_are_durable_with_the_first_synced_commit(
    memory_vfs: MemoryVfs,
) -> None:
    memory_vfs.make_directories(PLACE)
    commit(open_log(memory_vfs), {0: 28})
    journal = memory_vfs.record()
    log = open_log(memory_vfs)
    log.refresh()
    commit(log, {0: 56}, "fsync")
    synced = [call.path for call in journal.calls if call.kind == "sync_directory"]
    places = [PLACE]
    while len(places) < 4:
        places.append(dirname(places[-1]))
    assert synced == places


def test_a_write_that_failed_leaves_the_positions_and_the_next_commit_goes_on(
    vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(vfs)
    log = open_log(faulty)
    commit(log, {0: 28})
    faulty.fail("pwrite", written=20)
    with pytest.raises(OSError, match="Input/output error"):
        commit(log, {0: 56})
    assert log.positions.topics() == {"t": {0: 28}}
    commit(log, {0: 84})
    assert found(vfs) == {0: 84}


def test_a_foreign_file_beside_the_logs_is_left_alone(vfs: MemoryVfs) -> None:
    vfs.replace_file(f"{PLACE}/positions-1.log", b"other")
    log = open_log(vfs)
    commit(log, {0: 28})
    assert vfs.read_file(f"{PLACE}/positions-1.log") == b"other"
    assert vfs.read_file(FIRST).startswith(encode_frame(PositionsLog(
        vfs, ROOT, "/none").positions.snapshot()))  # fmt: skip
