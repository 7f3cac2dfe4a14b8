"""Files of a shard that were removed are reported; nothing sound is hidden, no offset moves."""

from __future__ import annotations

import json

import pytest

from tests.support.engine.shard_files import (
    ALIKE,
    HOME,
    OWN,
    SMALL,
    copy,
    filled,
    findings,
    next_offset,
    remove_caches,
    sound,
    swap,
    wrong,
)
from tests.support.engine.shard_files import alike as alike
from tests.support.tube import (
    bodies,
    encode_rows,
    make_row,
    make_rows,
    open_shard,
    scanned,
    write_rows,
)
from tubestore.journal.root_journal import JournalPart
from tubestore.offline.check import check
from tubestore.offline.dump import dump
from tubestore.offline.repair import repair
from tubestore.options import StoreOptions
from tubestore.record.records import ENTRY_SIZE, entries_in
from tubestore.shard.reader import ShardReader
from tubestore.testing import Distinct, FaultyVfs, MemoryVfs, crash_states

STORE = b'{"version": 1, "uuid": "1"}'

SEED = 7
ROWS = make_rows(40)

BODIES = [row.payload for row in ROWS]


@pytest.fixture
def paths(memory_vfs: MemoryVfs) -> dict[str, list[str]]:
    """Write a shard of many files; returns those of each stream in order."""
    write_rows(memory_vfs, ROWS, HOME, **SMALL)
    tree = sorted(memory_vfs.tree())
    return {suffix: [p for p in tree if p.endswith(suffix)] for suffix in (".tube", ".index")}


def test_a_missing_first_index_file_is_made_again_from_the_records(
    memory_vfs: MemoryVfs, paths: dict[str, list[str]]
) -> None:
    first, second = paths[".index"][:2]
    whole = memory_vfs.read_file(first) + memory_vfs.read_file(second)
    memory_vfs.remove(first)
    memory_vfs.remove(second)
    assert (first, "missing_file", "error") in [
        (f.path, f.reason, f.severity) for f in findings(memory_vfs)
    ]
    shard = open_shard(memory_vfs, HOME, **SMALL)
    (problem,) = shard.recovered.problems
    assert problem.path == first
    assert problem.reason.startswith("10 messages had no index file")
    assert bodies(shard.view()) == BODIES
    assert next_offset(shard) == len(ROWS) * ENTRY_SIZE
    shard.close()
    assert memory_vfs.read_file(first) == whole
    assert findings(memory_vfs) == []
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert shard.recovered.problems == []
    assert bodies(shard.view()) == [*BODIES, b"after"]


def test_messages_whose_index_file_no_checkpoint_names_are_reported_and_left(
    memory_vfs: MemoryVfs, paths: dict[str, list[str]]
) -> None:
    """TubeMQ's retention removes an index file before the data."""
    remove_caches(memory_vfs)
    memory_vfs.remove(paths[".index"][0])
    assert findings(memory_vfs) == []
    memory_vfs.make_directories("/store/.tubestore")
    memory_vfs.replace_file("/store/.tubestore/store.json", STORE)
    (finding,) = findings(memory_vfs)
    assert (finding.path, finding.severity) == (paths[".index"][1], "warning")
    assert "5 or more intact messages" in finding.message
    for _ in range(2):
        shard = open_shard(memory_vfs, HOME, **SMALL)
        assert [(p.path, p.reason) for p in shard.recovered.problems] == [
            (finding.path, finding.message)
        ]
        assert bodies(shard.view()) == BODIES[5:]
        shard.close()
        assert findings(memory_vfs) == [finding]
    (made,) = repair("/store", vfs=memory_vfs, apply=True)
    assert (made.path, made.action) == (paths[".index"][0], "create_index")
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert bodies(shard.view()) == BODIES


def test_a_missing_index_file_is_not_made_over_damaged_records(
    memory_vfs: MemoryVfs, paths: dict[str, list[str]]
) -> None:
    memory_vfs.open(paths[".tube"][0]).pwrite(b"#####", 115)
    memory_vfs.remove(paths[".index"][0])
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert paths[".index"][0] in {p.path for p in shard.recovered.problems}
    assert bodies(shard.view()) == BODIES[5:]
    assert {f.reason for f in findings(memory_vfs)} >= {"missing_file", "hidden"}


def test_missing_oldest_data_files_are_reported_until_retention_comes_there(
    memory_vfs: MemoryVfs, paths: dict[str, list[str]]
) -> None:
    gone, kept = paths[".tube"][:2], paths[".tube"][2]
    for path in gone:
        memory_vfs.remove(path)
    for _ in range(2):
        (finding,) = findings(memory_vfs)
        assert (finding.path, finding.reason) == (gone[0], "missing_file")
        shard = open_shard(memory_vfs, HOME, **SMALL)
        assert [p.path for p in shard.recovered.problems] == [gone[0]]
        assert bodies(shard.view()) == BODIES[-len(bodies(shard.view())) :]
        shard.sync()
        shard.close()
    shard = open_shard(memory_vfs, HOME, **SMALL)
    shard.remove_below(shard.files.data.start + memory_vfs.open(kept).size())
    shard.close()
    assert findings(memory_vfs) == []
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert shard.recovered.problems == []


@pytest.mark.parametrize("without", ["data", "data and index", "data and caches"])
def test_a_shard_without_data_files_goes_on_behind_the_offsets_that_it_gave_out(
    memory_vfs: MemoryVfs, paths: dict[str, list[str]], without: str
) -> None:
    for path in [*paths[".tube"], *(paths[".index"] if "index" in without else [])]:
        memory_vfs.remove(path)
    if "caches" in without:
        remove_caches(memory_vfs)
    else:
        assert paths[".tube"][0] in {f.path for f in findings(memory_vfs)}
    shard = open_shard(memory_vfs, HOME, **SMALL)
    lost = paths[".index"][-1] if "caches" in without else paths[".tube"][0]
    assert lost in {p.path for p in shard.recovered.problems}
    assert bodies(shard.view()) == []
    assert next_offset(shard) == len(ROWS) * ENTRY_SIZE
    shard.close()
    again = open_shard(memory_vfs, HOME, **SMALL)
    assert bodies(again.view()) == [b"after"]


def test_a_shard_that_lost_its_only_data_file_and_part_of_the_index_gives_no_offset_twice(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    memory_vfs.remove(f"{HOME}/{0:020d}.tube")
    memory_vfs.open(f"{HOME}/index/{0:020d}.index").truncate(7 * ENTRY_SIZE)
    shard = open_shard(memory_vfs, HOME)
    assert next_offset(shard) == len(ROWS) * ENTRY_SIZE
    shard.close()
    again = open_shard(memory_vfs, HOME)
    assert bodies(again.view()) == [b"after"]


@pytest.mark.parametrize(
    ("index_size", "journalled"),
    [
        *[(size, True) for size in (ENTRY_SIZE, ENTRY_SIZE + 5, 3 * ENTRY_SIZE)],
        *[(size, False) for size in (None, 0, ENTRY_SIZE, ENTRY_SIZE + 5, 3 * ENTRY_SIZE)],
    ],
)
def test_a_crash_while_a_shard_goes_on_behind_its_lost_files_moves_no_offset(
    memory_vfs: MemoryVfs, index_size: int | None, journalled: bool
) -> None:
    """A file is made again and the index filled: any part of it can be on the disk."""
    write_rows(memory_vfs, ROWS[:3], HOME)
    memory_vfs.remove(f"{HOME}/{0:020d}.tube")
    if index_size is None:
        memory_vfs.remove(f"{HOME}/index/{0:020d}.index")
    else:
        memory_vfs.open(f"{HOME}/index/{0:020d}.index").truncate(index_size)
    left: list[JournalPart] = []
    if journalled:
        remove_caches(memory_vfs)
        before = len(encode_rows(ROWS[:3], 0, 0).data)
        batch = encode_rows(ROWS[3:5], 3 * ENTRY_SIZE, before)
        left = [JournalPart("t-0", 3 * ENTRY_SIZE, before, batch.entries, batch.data.tobytes())]
    memory_vfs.reboot()
    journal = memory_vfs.record()
    open_shard(memory_vfs, HOME, journalled=left).files.close()
    distinct = Distinct()
    for state in crash_states(journal, seed=SEED, variants=12):
        if not distinct.is_new(state):
            continue
        shard = open_shard(state.vfs(), HOME, journalled=left)
        later = [(3, BODIES[3]), (4, BODIES[4])] if journalled else []
        shown = [(row["offset"] // ENTRY_SIZE, row["body"]) for row in scanned(shard.view())]
        assert shown == later, state
        assert next_offset(shard) == ENTRY_SIZE * (3 + len(later)), state
        shard.close()
    assert len(distinct) > 3, f"seed {SEED}"


@pytest.mark.parametrize("index_too", [False, True])
def test_missing_newest_data_files_leave_their_offsets_taken(
    memory_vfs: MemoryVfs, paths: dict[str, list[str]], index_too: bool
) -> None:
    for path in [*paths[".tube"][-2:], *(paths[".index"][-2:] if index_too else [])]:
        memory_vfs.remove(path)
    assert any(f.severity == "error" for f in findings(memory_vfs))
    shard = open_shard(memory_vfs, HOME, **SMALL)
    (problem,) = shard.recovered.problems
    assert "that were synced are missing" in problem.reason
    left = sound(shard)
    assert left == BODIES[: len(left)]
    assert len(left) >= 30
    assert next_offset(shard) == len(ROWS) * ENTRY_SIZE
    shard.close()
    assert {f.severity for f in findings(memory_vfs)} == {"error"}
    again = open_shard(memory_vfs, HOME, **SMALL)
    assert sound(again) == [*left, b"after"]
    assert [str(p) for p in again.recovered.problems] == [str(problem)]


def test_an_index_that_is_made_again_behind_what_retention_removed_misses_nothing(
    memory_vfs: MemoryVfs, paths: dict[str, list[str]]
) -> None:
    shard = open_shard(memory_vfs, HOME, **SMALL)
    shard.remove_below(shard.files.data.end // 2)
    shard.close()
    kept = bodies(open_shard(memory_vfs, HOME, **SMALL).view())
    for name, _, _ in memory_vfs.entries(f"{HOME}/index"):
        memory_vfs.remove(f"{HOME}/index/{name}")
    for _ in range(2):
        shard = open_shard(memory_vfs, HOME, **SMALL)
        assert shard.recovered.problems == []
        assert bodies(shard.view()) == kept
        shard.close()


def test_data_that_a_power_cut_took_before_they_were_synced_are_not_missed_later(
    memory_vfs: MemoryVfs,
) -> None:
    shard = open_shard(memory_vfs, HOME)
    shard.sync()
    for row in ROWS[:3]:
        shard.append(row, "page_cache")
    shard.files.close()
    memory_vfs.remove(f"{HOME}/{0:020d}.tube")
    memory_vfs.reboot()
    shard = open_shard(memory_vfs, HOME)
    assert next_offset(shard) == 3 * ENTRY_SIZE
    shard.close()
    assert findings(memory_vfs) == []
    assert open_shard(memory_vfs, HOME).recovered.problems == []


def test_what_a_shard_is_cut_back_to_is_not_missing_later(memory_vfs: MemoryVfs) -> None:
    write_rows(memory_vfs, ROWS, HOME, **SMALL)
    shard = open_shard(memory_vfs, HOME, **SMALL)
    shard.cut(12 * ENTRY_SIZE)
    shard.files.close()  # as a kill leaves it
    assert findings(memory_vfs) == []
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert shard.recovered.problems == []
    assert next_offset(shard) == 12 * ENTRY_SIZE


@pytest.mark.parametrize("name", ["index_end", "data_end", "index_start", "data_start"])
def test_a_changed_number_in_a_checkpoint_takes_nothing_for_missing(
    memory_vfs: MemoryVfs, paths: dict[str, list[str]], name: str
) -> None:
    shard = open_shard(memory_vfs, HOME, **SMALL)
    shard.remove_below(shard.files.data.end // 2)
    shard.close()
    kept = bodies(open_shard(memory_vfs, HOME, **SMALL).view())
    path = f"{OWN}/checkpoint.json"
    content = json.loads(memory_vfs.read_file(path))
    content[name] += -ENTRY_SIZE if name.endswith("start") else 10 * ENTRY_SIZE
    memory_vfs.replace_file(path, json.dumps(content).encode())
    assert [f for f in findings(memory_vfs) if f.severity == "error"] == []
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert shard.recovered.problems == []
    assert bodies(shard.view()) == kept
    assert next_offset(shard) == len(ROWS) * ENTRY_SIZE


def test_a_checkpoint_of_a_version_without_beginnings_takes_nothing_for_missing(
    memory_vfs: MemoryVfs, paths: dict[str, list[str]]
) -> None:
    path = f"{OWN}/checkpoint.json"
    content = json.loads(memory_vfs.read_file(path))
    for name in ("index_start", "data_start", "digest"):
        del content[name]
    memory_vfs.replace_file(path, json.dumps(content).encode())
    memory_vfs.remove(paths[".tube"][0])
    for _ in range(2):
        assert [f for f in findings(memory_vfs) if f.reason == "missing_file"] == []
        shard = open_shard(memory_vfs, HOME, **SMALL)
        assert shard.recovered.problems == []
        assert next_offset(shard) >= len(ROWS) * ENTRY_SIZE
        shard.close()


def test_files_of_a_shard_that_were_emptied_leave_their_offsets_taken(
    memory_vfs: MemoryVfs,
) -> None:
    write_rows(memory_vfs, ROWS, HOME)
    for path in (f"{HOME}/{0:020d}.tube", f"{HOME}/index/{0:020d}.index"):
        memory_vfs.open(path).truncate(0)
    shard = open_shard(memory_vfs, HOME)
    (problem,) = shard.recovered.problems
    assert "40 messages that were synced are missing" in problem.reason
    assert next_offset(shard) == len(ROWS) * ENTRY_SIZE
    shard.close()
    assert sound(open_shard(memory_vfs, HOME)) == [b"after"]


@pytest.mark.parametrize("index_files", [0, 1, 2, 3])
@pytest.mark.parametrize("data_files", [0, 1, 2])
def test_what_a_broker_removed_since_the_checkpoint_hides_nothing_that_is_left(
    memory_vfs: MemoryVfs, paths: dict[str, list[str]], index_files: int, data_files: int
) -> None:
    """TubeMQ's retention removes files of index and data separately, and records nothing."""
    entries = entries_in(memoryview(b"".join(map(memory_vfs.read_file, paths[".index"]))))
    begins = int(paths[".tube"][data_files].rpartition("/")[2].partition(".")[0])
    starts = entries["data_offset"].tolist()
    intact = [body for body, start in zip(BODIES, starts, strict=True) if start >= begins]
    for path in paths[".index"][:index_files] + paths[".tube"][:data_files]:
        memory_vfs.remove(path)
    for _ in range(2):
        shard = open_shard(memory_vfs, HOME, **SMALL)
        assert sound(shard) == intact
        shard.close()
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert next_offset(shard) == len(ROWS) * ENTRY_SIZE
    assert sound(shard) == [*intact, b"after"]


def test_damaged_entries_without_any_data_file_keep_their_offsets(
    memory_vfs: MemoryVfs, paths: dict[str, list[str]]
) -> None:
    remove_caches(memory_vfs)
    for path in paths[".tube"]:
        memory_vfs.remove(path)
    memory_vfs.open(paths[".index"][3]).pwrite(bytes(ENTRY_SIZE), ENTRY_SIZE)
    memory_vfs.open(paths[".index"][5]).pwrite(b"\xff" * ENTRY_SIZE, 0)
    memory_vfs.open(paths[".index"][5]).pwrite(b"\xff" * ENTRY_SIZE, 2 * ENTRY_SIZE)
    damaged = memory_vfs.read_file(paths[".index"][5])
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert next_offset(shard) == len(ROWS) * ENTRY_SIZE
    shard.close()
    assert bodies(open_shard(memory_vfs, HOME, **SMALL).view()) == [b"after"]
    kept = [b for p, b in memory_vfs.tree().items() if "/quarantine/" in p]
    assert any(content in damaged and b"\xff" * ENTRY_SIZE in content for content in kept)


def test_repair_puts_swapped_data_files_back(alike: MemoryVfs) -> None:
    files = filled(alike, ".tube")
    before = {path: alike.read_file(path) for path in files}
    swap(alike, files[0], files[-1])
    for one, other in ((1, 2), (2, 3)):  # three that changed places in a circle
        swap(alike, files[one], files[other])
    open_shard(alike, HOME, **SMALL).close()
    done = list(repair("/store", vfs=alike, apply=True))
    moved = {action.path for action in done if action.action == "move_file"}
    assert moved == {files[n] for n in (0, 1, 2, 3, -1)}
    assert {path: alike.read_file(path) for path in files} == before
    assert findings(alike) == []
    shard = open_shard(alike, HOME, **SMALL)
    assert (shard.recovered.problems, bodies(shard.view())) == ([], [r.payload for r in ALIKE])


def test_repair_takes_a_copy_of_another_data_file_out(alike: MemoryVfs) -> None:
    files = filled(alike, ".tube")
    copy(alike, files[1], files[-1])
    done = list(repair("/store", vfs=alike, apply=True))
    assert (files[-1], "quarantine_file") in [(a.path, a.action) for a in done]
    assert alike.read_file(files[1]) in [d for p, d in alike.tree().items() if "/quarantine/" in p]
    shard = open_shard(alike, HOME, **SMALL)
    assert sound(shard) == [row.payload for row in ALIKE[:35]]
    assert next_offset(shard) == ENTRY_SIZE * len(ALIKE)


@pytest.mark.crash
def test_moving_data_files_back_can_be_interrupted_anywhere(alike: MemoryVfs) -> None:
    files = filled(alike, ".tube")
    before = {path: alike.read_file(path) for path in files}
    swap(alike, files[1], files[2])
    swap(alike, files[2], files[4])
    journal = alike.record()
    list(repair("/store", vfs=alike, apply=True))
    distinct = Distinct()
    for state in crash_states(journal, seed=1, variants=4):
        if distinct.is_new(state):
            again = state.vfs()
            list(repair("/store", vfs=again, apply=True))
            assert {path: again.read_file(path) for path in files} == before, state
    assert len(distinct) > 5


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("position", [0, 280, 290, 1036])
@pytest.mark.parametrize("change", ["bytes came in", "bytes went"])
def test_entries_that_moved_are_written_anew_and_none_is_given_as_another_message(
    memory_vfs: MemoryVfs, change: str, position: int, caches: bool
) -> None:
    write_rows(memory_vfs, ALIKE, HOME)
    if not caches:
        remove_caches(memory_vfs)
    (path,) = filled(memory_vfs, ".index")
    whole = memory_vfs.read_file(path)
    rest = position if change == "bytes came in" else position + ENTRY_SIZE
    foreign = b"\xa5" * ENTRY_SIZE if change == "bytes came in" else b""
    memory_vfs.replace_file(path, whole[:position] + foreign + whole[rest:])
    reader = ShardReader(memory_vfs, HOME, "t", 0, StoreOptions())
    assert wrong(scanned(reader.view())) == []
    reader.close()
    assert path in {f.path for f in findings(memory_vfs)}
    rows = [r for batch in dump("/store", vfs=memory_vfs) for r in batch.to_pylist()]
    good = [row for row in rows if row["state"] == "ok"]
    assert [row["index_offset"] for row in good] == [ENTRY_SIZE * n for n in range(len(ALIKE))]
    repaired = MemoryVfs()
    for name, data in memory_vfs.tree().items():
        repaired.make_directories(name.rpartition("/")[0])
        repaired.replace_file(name, data)
    list(repair("/store", vfs=repaired, apply=True))
    assert repaired.read_file(path) == whole
    shard = open_shard(memory_vfs, HOME)
    assert sound(shard) == [row.payload for row in ALIKE]
    assert next_offset(shard) == ENTRY_SIZE * len(ALIKE)
    shard.close()
    assert memory_vfs.read_file(path)[: len(whole)] == whole


def test_a_new_shard_looks_for_no_lost_files_and_check_reads_each_checkpoint_once(
    memory_vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(memory_vfs)
    shard = open_shard(faulty, HOME)
    assert faulty.calls["read_file"] == 0
    shard.append(make_row(b"x"), "fsync")
    shard.close()
    counting = faulty.fail("read_file", nth=100, path="checkpoint.json")
    assert list(check("/store", vfs=faulty, wait=lambda _: None)) == []
    assert 100 - counting.nth == 1


def test_a_copy_of_a_data_file_in_the_place_of_the_empty_last_one_adds_no_messages(
    alike: MemoryVfs,
) -> None:
    data = sorted(p for p in alike.tree() if p.endswith(".tube"))
    assert alike.read_file(data[-1]) == b""
    copy(alike, data[0], data[-1])
    assert (data[-1], "misplaced") in [(f.path, f.reason) for f in findings(alike)]
    shown = [r for batch in dump("/store", vfs=alike) for r in batch.to_pylist()]
    assert [row["body"] for row in shown] == [row.payload for row in ALIKE]
    shard = open_shard(alike, HOME, **SMALL)
    assert data[-1] in {problem.path for problem in shard.recovered.problems}
    assert bodies(shard.view()) == [row.payload for row in ALIKE]
    assert next_offset(shard) == ENTRY_SIZE * len(ALIKE)
    shard.close()
    list(repair("/store", vfs=alike, apply=True))
    again = open_shard(alike, HOME, **SMALL)
    assert sound(again) == [*(row.payload for row in ALIKE), b"after"]


@pytest.mark.parametrize("left", [0, 20, 150])
def test_repair_of_a_shortened_end_has_the_next_opening_keep_the_lost_offsets(
    alike: MemoryVfs, left: int
) -> None:
    last = filled(alike, ".tube")[-1]
    empty = max(p for p in alike.tree() if p.endswith(".tube"))
    alike.remove(empty)
    alike.open(last).truncate(left)
    done = list(repair("/store", vfs=alike, apply=True))
    assert [a.path.rpartition("/")[2] for a in done if a.action == "leave"] != []
    shard = open_shard(alike, HOME, **SMALL)
    there = 35 + left // 65
    assert sound(shard) == [row.payload for row in ALIKE[:there]]
    assert next_offset(shard) == ENTRY_SIZE * len(ALIKE)


@pytest.mark.parametrize("caches", [True, False])
def test_copies_of_earlier_records_behind_the_last_one_are_no_messages(
    memory_vfs: MemoryVfs, caches: bool
) -> None:
    write_rows(memory_vfs, ALIKE, HOME)
    if not caches:
        remove_caches(memory_vfs)
    (path,) = filled(memory_vfs, ".tube")
    data = memory_vfs.read_file(path)
    memory_vfs.open(path).pwrite(data[650:1300], len(data))
    assert (path, "unreferenced") in [(f.path, f.reason) for f in findings(memory_vfs)]
    shown = [r for batch in dump("/store", vfs=memory_vfs) for r in batch.to_pylist()]
    assert [row["body"] for row in shown] == [row.payload for row in ALIKE]
    shard = open_shard(memory_vfs, HOME)
    assert path in {problem.path for problem in shard.recovered.problems}
    assert bodies(shard.view()) == [row.payload for row in ALIKE]
    assert next_offset(shard) == ENTRY_SIZE * len(ALIKE)
    shard.close()
    list(repair("/store", vfs=memory_vfs, apply=True))
    again = open_shard(memory_vfs, HOME)
    assert sound(again) == [*(row.payload for row in ALIKE), b"after"]
