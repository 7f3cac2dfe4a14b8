"""What a power cut leaves: what was synced, and of the rest any part that a disk may keep."""

from __future__ import annotations

from tests.support.engine.trees_of_crashes import FILE, durable_file, power_trees
from tests.support.engine.trees_of_crashes import vfs as vfs
from tubestore.testing import MemoryVfs, crash_states


def test_what_was_synced_survives_every_power_cut(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"safe")
    vfs.open(FILE).pwrite(b" and not", 4)
    trees = power_trees(vfs)
    assert all(tree[FILE][:4] == b"safe" for tree in trees)
    assert {FILE: b"safe"} in trees
    assert {FILE: b"safe and not"} in trees


def test_a_link_is_there_or_not_until_its_directory_is_synced(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"abc")
    vfs.link(FILE, "/d/other")
    vfs.remove(FILE)
    both = {FILE: b"abc", "/d/other": b"abc"}
    assert {str(t) for t in power_trees(vfs)} == {
        str(t) for t in ({FILE: b"abc"}, both, {"/d/other": b"abc"})
    }
    vfs.sync_directory("/d")
    assert {str(t) for t in power_trees(vfs)} == {str({"/d/other": b"abc"})}


def test_a_link_needs_no_more_than_its_own_directory(vfs: MemoryVfs) -> None:
    """The other name, and the directory that it is in, may be gone (4)."""
    vfs.make_directories("/d/drafts")
    draft = vfs.open("/d/drafts/one", create=True)
    draft.pwrite(b"abc", 0)
    draft.sync()
    vfs.make_directories("/d/places")
    vfs.sync_directory("/d")
    vfs.link("/d/drafts/one", "/d/places/one")
    vfs.sync_directory("/d/places")
    trees = power_trees(vfs)
    assert all(tree["/d/places/one"] == b"abc" for tree in trees)
    assert {"/d/places/one": b"abc"} in trees


def test_the_length_may_be_new_and_the_data_a_hole(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"safe")
    vfs.open(FILE).pwrite(b"lost", 4)
    assert {FILE: b"safe\0\0\0\0"} in power_trees(vfs)


def test_a_later_write_may_survive_an_earlier_one(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"")
    file = vfs.open(FILE)
    file.pwrite(b"1", 0)
    file.pwrite(b"2", 1)
    assert {FILE: b"\x002"} in power_trees(vfs)


def test_a_write_tears_at_borders_of_sectors_and_inside(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"")
    vfs.open(FILE).pwrite(b"x" * 2000, 0)
    lengths = {len(tree[FILE].rstrip(b"\0")) for tree in power_trees(vfs, 200)}
    assert lengths & {512, 1024, 1536}
    assert any(length % 512 and length < 2000 for length in lengths)
    middle = {
        tree[FILE][512:1024] for tree in power_trees(vfs, 400) if tree[FILE][1024:1025] == b"x"
    }
    assert bytes(512) in middle


def test_a_cut_that_was_not_synced_may_be_undone(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"old tail")
    vfs.open(FILE).truncate(4)
    trees = power_trees(vfs)
    assert {FILE: b"old tail"} in trees
    assert {FILE: b"old "} in trees


def test_a_new_name_lives_from_the_sync_of_its_directory_on(vfs: MemoryVfs) -> None:
    file = vfs.open(FILE, create=True)
    file.pwrite(b"data", 0)
    file.sync()
    assert {} in power_trees(vfs)
    vfs.sync_directory("/d")
    assert power_trees(vfs) == [{FILE: b"data"}] * 60


def test_a_file_goes_with_its_directory(vfs: MemoryVfs) -> None:
    vfs.make_directories("/d/new")
    file = vfs.open("/d/new/file", create=True)
    file.sync()
    vfs.sync_directory("/d/new")
    assert {} in power_trees(vfs)
    vfs.sync_directory("/d")
    assert {} not in power_trees(vfs)


def test_names_of_a_directory_change_in_order(vfs: MemoryVfs) -> None:
    for name in ("1", "2", "3"):
        vfs.open(f"/d/{name}", create=True)
    trees = {frozenset(tree) for tree in power_trees(vfs, 100)}
    assert trees == {
        frozenset(),
        frozenset({"/d/1"}),
        frozenset({"/d/1", "/d/2"}),
        frozenset({"/d/1", "/d/2", "/d/3"}),
    }


def test_a_replaced_file_is_the_old_one_or_the_new_one(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"old")
    vfs.replace_file(FILE, b"new")
    assert vfs.journal is not None
    for state in crash_states(vfs.journal, seed=1, variants=30):
        if state.step > 4:  # the old one was made by then
            assert state.disk.tree()[FILE] in (b"old", b"new")
    assert power_trees(vfs) == [{FILE: b"new"}] * 60


def test_a_file_replaced_without_a_sync_may_be_empty(vfs: MemoryVfs) -> None:
    durable_file(vfs, b"old")
    vfs.replace_file(FILE, b"new", sync=False)
    found = {tree[FILE] for tree in power_trees(vfs)}
    assert {b"old", b"", b"new"} <= found


def test_a_temporary_file_that_a_crash_left_gives_a_replaced_file_no_content(
    vfs: MemoryVfs,
) -> None:
    durable_file(vfs, b"old")
    vfs.open(f"{FILE}.tmp", create=True).pwrite(b"older", 0)
    vfs.open(f"{FILE}.tmp").sync()
    vfs.sync_directory("/d")
    vfs.replace_file(FILE, b"new", sync=False)
    assert b"older" not in {tree[FILE] for tree in power_trees(vfs)}
