"""What a run cuts or replaces is in a directory of its own, under the paths that it had."""

from __future__ import annotations

import errno

import pytest

from tubestore.core.quarantine import Action, Quarantine
from tubestore.testing import FaultyVfs, MemoryVfs, crash_states

PLACE = "/s/.tubestore/quarantine"


@pytest.fixture
def vfs(memory_vfs: MemoryVfs) -> FaultyVfs:
    memory_vfs.make_directories("/s/log")
    memory_vfs.sync_directory("/")
    memory_vfs.sync_directory("/s")
    memory_vfs.replace_file("/s/log/0", b"head tail")
    memory_vfs.make_directories("/s/.tubestore")  # not synced, as a new store's may be
    return FaultyVfs(memory_vfs)


def test_a_file_that_moves_keeps_its_path_below_the_root(vfs: FaultyVfs) -> None:
    assert Quarantine(vfs, "/s").move("/s/log/0") == f"{PLACE}/1/log/0"
    assert not vfs.exists("/s/log/0")
    assert vfs.read_file(f"{PLACE}/1/log/0") == b"head tail"


def test_the_copy_of_a_tail_has_its_place_in_its_name_and_a_hole_before_it(vfs: FaultyVfs) -> None:
    place = Quarantine(vfs, "/s").copy("/s/log/0", 5)
    assert place == f"{PLACE}/1/log/0@5"
    assert vfs.read_file(place) == bytes(5) + b"tail"


def test_each_run_has_a_number_and_a_name_that_comes_again_gets_one(vfs: FaultyVfs) -> None:
    for number in (1, 2):
        kept = Quarantine(vfs, "/s")
        assert kept.path is None
        kept.copy("/s/log/0")
        assert kept.copy("/s/log/0") == f"{PLACE}/{number}/log/0~1"


def test_a_copy_without_room_leaves_nothing(vfs: FaultyVfs) -> None:
    vfs.fail("pwrite", path="quarantine", error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        Quarantine(vfs, "/s").copy("/s/log/0")
    assert vfs.entries(f"{PLACE}/1/log") == []


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("how", ["keep", "copy", "move"])
def test_the_bytes_survive_a_power_cut_at_any_time_and_are_kept_once_the_call_returned(
    vfs: FaultyVfs, memory_vfs: MemoryVfs, how: str, links: bool
) -> None:
    if not links:
        vfs.fail("link", error=errno.EOPNOTSUPP)
    journal = memory_vfs.record()
    place = getattr(Quarantine(vfs, "/s"), how)("/s/log/0")
    memory_vfs.mark("kept")
    for state in crash_states(journal, seed=1):
        tree = state.vfs().tree()
        assert b"head tail" in tree.values(), state
        assert not state.marks or tree[place] == b"head tail", state


def test_the_row_of_an_action_has_its_fields_in_their_order() -> None:
    row = Action("/s/a", "move", 3, 5, "why").as_row()
    assert list(row.items()) == [
        ("path", "/s/a"), ("action", "move"), ("position", 3), ("bytes", 5), ("message", "why"),
    ]  # fmt: skip
