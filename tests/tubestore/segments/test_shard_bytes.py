"""The files of a shard as they lie: records at another one's place are found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engine.shard_files import (
    ALIKE,
    HOME,
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
    encode_row,
    open_shard,
    scanned,
)
from tubestore.offline.check import Reason
from tubestore.offline.dump import dump
from tubestore.options import StoreOptions
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE
from tubestore.shard.reader import ShardReader
from tubestore.testing import FaultyVfs, MemoryVfs

MISPLACED: dict[str, tuple[Any, str, int, int, int]] = {
    # how, of which stream, from, to, messages that are there afterwards
    "two data files swapped": (swap, ".tube", 1, 2, 30),
    "the first and the last data file swapped": (swap, ".tube", 0, -1, 30),
    "a data file over a later one": (copy, ".tube", 1, 2, 35),
    "a data file over an earlier one": (copy, ".tube", 3, 1, 35),
    "a data file over the one before it": (copy, ".tube", 1, 0, 35),
    "a data file over the last one": (copy, ".tube", 0, -1, 35),
    "two index files swapped": (swap, ".index", 1, 2, 40),
    "an index file over a later one": (copy, ".index", 0, 3, 40),
    "an index file over an earlier one": (copy, ".index", 3, 1, 40),
    "an index file over the last one": (copy, ".index", 1, -1, 40),
}


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("name", MISPLACED)
def test_records_at_another_ones_place_are_reported_and_never_given_as_its_messages(
    alike: MemoryVfs, name: str, caches: bool
) -> None:
    how, suffix, source, target, there = MISPLACED[name]
    files = filled(alike, suffix)
    how(alike, files[source], files[target])
    if not caches:
        remove_caches(alike)
    kept = {p: data for p, data in alike.tree().items() if p.endswith(".tube") and data}
    reader = ShardReader(alike, HOME, "t", 0, StoreOptions())
    assert wrong(scanned(reader.view())) == []
    reader.close()
    named = {f.path for f in findings(alike) if f.severity == "error"}
    assert files[target] in named
    shown = [r for batch in dump("/store", vfs=alike) for r in batch.to_pylist()]
    assert wrong([{**row, "offset": row["index_offset"]} for row in shown]) == []
    shard = open_shard(alike, HOME, **SMALL)
    rows = scanned(shard.view())
    assert wrong(rows) == []
    assert sum(row["state"] == "ok" for row in rows) == there
    assert {p.path for p in shard.recovered.problems} <= named
    assert files[target] in {p.path for p in shard.recovered.problems}
    assert next_offset(shard) == ENTRY_SIZE * len(ALIKE)
    shard.close()
    assert {p: data for p, data in alike.tree().items() if p in kept} == kept
    if suffix == ".tube":  # it stays so, and is known again
        again = open_shard(alike, HOME, **SMALL)
        assert scanned(again.view())[: len(rows)] == rows
        assert files[target] in {p.path for p in again.recovered.problems}


def test_an_intact_shard_is_not_read_beyond_the_first_record_of_each_file(
    alike: MemoryVfs,
) -> None:
    faulty = FaultyVfs(alike)
    before = faulty.calls.copy()
    shard = open_shard(faulty, HOME, **SMALL)
    files = len(filled(alike, ".tube")) + len(filled(alike, ".index"))
    assert (faulty.calls - before)["pread"] <= 4 * files + 4
    shard.close()


def test_files_of_records_that_carry_offsets_a_second_time_are_not_misplaced(
    memory_vfs: MemoryVfs,
) -> None:
    """TubeMQ gave offsets twice after a crash, and an opening wrote all entries in order."""
    data, index, at = [b""], b"", 0
    for number, row in enumerate(ALIKE):
        named = number if number < 7 else number - 3
        (header, payload), entry = encode_row(row, ENTRY_SIZE * named, at)
        data[-1] += header + payload
        index, at = index + entry, at + len(header) + len(payload)
        if number % 5 == 4:
            data.append(b"")
    memory_vfs.make_directories(f"{HOME}/index")
    start = 0
    for content in data:
        memory_vfs.replace_file(f"{HOME}/{start:020d}.tube", content)
        start += len(content)
    memory_vfs.replace_file(f"{HOME}/index/{0:020d}.index", index)
    assert {f.reason for f in findings(memory_vfs)} == {Reason.OWN_OFFSET}
    shard = open_shard(memory_vfs, HOME, **SMALL)
    assert shard.recovered.problems == []
    assert sound(shard) == [row.payload for row in ALIKE]
    assert memory_vfs.read_file(f"{HOME}/index/{0:020d}.index") == index


@pytest.mark.parametrize("caches", [True, False])
def test_damage_before_a_misplaced_file_ends_where_that_file_begins(
    alike: MemoryVfs, caches: bool
) -> None:
    """It reached over the file, and at the end of the data all of it was cut."""
    files = filled(alike, ".tube")
    swap(alike, files[0], files[-1])
    file = alike.open(files[-2])
    file.pwrite(b"?", file.size() - 1)
    if not caches:
        remove_caches(alike)
    kept = {path: alike.read_file(path) for path in files}
    shard = open_shard(alike, HOME, **SMALL)
    assert (shard.recovered.data_cut, shard.recovered.index_cut) == (0, 0)
    (found,) = [d for d in shard.files.damages if not d.reason.startswith("the records of another")]
    misplaced = int(files[-1][-len("00000000000000000000.tube") :].removesuffix(".tube"))
    assert (found.start, found.end) == (misplaced - HEADER_SIZE - len(ALIKE[0].payload), misplaced)
    assert [row["offset"] for row in scanned(shard.view())] == [28 * n for n in range(40)]
    shard.close()
    assert {path: alike.read_file(path) for path in files} == kept
