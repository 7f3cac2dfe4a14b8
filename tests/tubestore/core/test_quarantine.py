"""What repair takes out of a store is kept, under a name that shows where it was."""

from __future__ import annotations

import errno

import pytest

from tests.support.engine.trees_of_crashes import power_trees
from tubestore.core.quarantine import Action, Quarantine
from tubestore.testing import FaultyVfs, MemoryVfs

ROOT = "/s"
FILE = "/s/t-0/index/0.index"
KEPT = "/s/.tubestore/quarantine/20231114T221320.123000Z"
NOW = 1_700_000_000_123


@pytest.fixture
def vfs() -> MemoryVfs:
    vfs = MemoryVfs()
    vfs.make_directories("/s/t-0/index")
    vfs.replace_file(FILE, b"0123456789")
    return vfs


def test_a_moved_file_is_in_the_folder_of_its_run_with_its_path_as_its_name(vfs: MemoryVfs) -> None:
    quarantine = Quarantine(vfs, ROOT, NOW)
    assert not vfs.exists(quarantine.directory), "the folder is made with the first thing in it"
    quarantine.move(FILE)
    assert vfs.tree() == {f"{KEPT}/t-0+index+0.index": b"0123456789"}


def test_a_copy_begins_at_its_position_and_the_file_stays(vfs: MemoryVfs) -> None:
    Quarantine(vfs, ROOT, NOW).copy(FILE, 4)
    assert vfs.tree() == {FILE: b"0123456789", f"{KEPT}/t-0+index+0.index@4": b"456789"}


def test_two_things_of_one_name_are_both_kept(vfs: MemoryVfs) -> None:
    quarantine = Quarantine(vfs, ROOT, NOW)
    for content in (b"first", b"second", b"third"):
        vfs.replace_file(FILE, content)
        quarantine.move(FILE)
    assert [vfs.tree()[f"{KEPT}/t-0+index+0.index{mark}"] for mark in ("", "~1", "~2")] == [
        b"first", b"second", b"third",
    ]  # fmt: skip


def test_a_power_cut_behind_a_move_or_a_copy_takes_neither_back(vfs: MemoryVfs) -> None:
    vfs.sync_all()
    vfs.record()
    quarantine = Quarantine(vfs, ROOT, NOW)
    quarantine.copy(FILE, 4)
    quarantine.move(FILE)
    assert power_trees(vfs) == [vfs.tree()] * 60


def test_a_copy_that_fails_leaves_no_part_and_the_file_as_it_was(vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(vfs)
    fault = faulty.fail("pwrite", error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        Quarantine(faulty, ROOT, NOW).copy(FILE)
    assert fault.struck == 1
    assert vfs.tree() == {FILE: b"0123456789"}


def test_the_row_of_an_action_has_its_fields_in_their_order() -> None:
    row = Action("/s/a", "move", 3, 5, "why").as_row()
    assert list(row.items()) == [
        ("path", "/s/a"), ("action", "move"), ("position", 3), ("bytes", 5), ("message", "why"),
    ]  # fmt: skip
