"""Files of a shard that were removed are reported; nothing sound is hidden, no offset moves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.tube import bodies, make_row, make_rows, open_shard, scanned, write_rows
from tubestore.offline.check import Finding, check
from tubestore.offline.repair import repair
from tubestore.record.records import ENTRY_SIZE, entries_in
from tubestore.shard.message_store import MessageStore
from tubestore.testing import MemoryVfs

HOME = "/store/t-0"
OWN = f"{HOME}/.tubestore"
STORE = b'{"version": 1, "uuid": "1"}'
ROWS = make_rows(40)
BODIES = [row.payload for row in ROWS]
#: Files of a few messages each.
SMALL: dict[str, Any] = {"segment_size_bytes": 300, "index_segment_size_bytes": 5 * ENTRY_SIZE}


@pytest.fixture
def paths(memory_vfs: MemoryVfs) -> dict[str, list[str]]:
    """Write a shard of many files; returns those of each stream in order."""
    write_rows(memory_vfs, ROWS, HOME, **SMALL)
    tree = sorted(memory_vfs.tree())
    return {suffix: [p for p in tree if p.endswith(suffix)] for suffix in (".tube", ".index")}


def remove_caches(vfs: MemoryVfs) -> None:
    for name, _, _ in vfs.entries(OWN):
        vfs.remove(f"{OWN}/{name}")


def findings(vfs: MemoryVfs) -> list[Finding]:
    found = check("/store", vfs=vfs, wait=lambda _: None)
    return [f for f in found if f.reason != "stale_cache"]


def next_offset(shard: MessageStore) -> int:
    return shard.append(make_row(b"after"), "fsync")


def sound(shard: MessageStore) -> list[bytes | None]:
    return [row["body"] for row in scanned(shard.view()) if row["state"] == "ok"]


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
    memory_vfs.open(paths[".index"][5]).pwrite(b"\xff" * ENTRY_SIZE, 2 * ENTRY_SIZE)
    damaged = memory_vfs.read_file(paths[".index"][5])
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert next_offset(shard) == len(ROWS) * ENTRY_SIZE
    shard.close()
    assert bodies(open_shard(memory_vfs, HOME, **SMALL).view()) == [b"after"]
    kept = [b for p, b in memory_vfs.tree().items() if "/quarantine/" in p]
    assert any(content in damaged and b"\xff" * ENTRY_SIZE in content for content in kept)
