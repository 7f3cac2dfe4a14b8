"""Files and directories as a whole: listed, copied, moved, removed."""

from __future__ import annotations

import errno

import pytest

from rocketcompat.formats import offset_name, parse_offset_name
from tubestore.core.trees import (
    copy_file,
    files_by_start,
    list_by_start,
    make_directory,
    move_file,
    remove_tree,
    tree_size,
)
from tubestore.testing import FaultyVfs, MemoryVfs


def filled() -> MemoryVfs:
    vfs = MemoryVfs()
    for path in ("/s/a", "/s/deep/b", "/s/deep/er/c"):
        make_directory(vfs, path.rpartition("/")[0])
        vfs.replace_file(path, b"12345")
    return vfs


def test_a_directory_goes_with_all_that_is_in_it() -> None:
    vfs = filled()
    assert tree_size(vfs, "/s") == (3, 15)
    assert remove_tree(vfs, "/s/deep") == 10
    assert remove_tree(vfs, "/s/a") == 5
    assert remove_tree(vfs, "/s/missing") == 0
    assert vfs.entries("/s") == []


def test_files_are_listed_by_the_number_in_their_name() -> None:
    vfs = filled()
    for start in (300, 20, 1000):
        vfs.replace_file(f"/s/{offset_name(start)}", bytes(start))
    found = files_by_start(vfs, "/s", parse_offset_name)
    assert found == [(n, f"/s/{offset_name(n)}", n) for n in (20, 300, 1000)]


@pytest.mark.parametrize("error", [None, errno.EXDEV])
def test_a_moved_file_replaces_another_one_on_any_file_system(error: int | None) -> None:
    vfs = filled()
    faulty = FaultyVfs(vfs)
    vfs.replace_file("/s/deep/b", b"other")
    if error is not None:
        faulty.fail("rename", error=error)
    move_file(faulty, "/s/a", "/s/deep/b")
    assert vfs.read_file("/s/deep/b") == b"12345"
    assert {path for path in vfs.tree() if path.startswith("/s/")} == {"/s/deep/b", "/s/deep/er/c"}


def test_a_failed_move_leaves_the_file_where_it_was() -> None:
    vfs = filled()
    faulty = FaultyVfs(vfs)
    faulty.fail("rename", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        move_file(faulty, "/s/a", "/s/moved")
    assert vfs.read_file("/s/a") == b"12345"


def test_a_copy_begins_with_a_hole_and_has_the_length_that_was_asked_for() -> None:
    vfs = filled()
    copy_file(vfs, "/s/a", "/s/whole").close()
    copy_file(vfs, "/s/a", "/s/tail", start=3).close()
    copy_file(vfs, "/s/a", "/s/cut", size=2).close()
    copy_file(vfs, "/s/a", "/s/grown", size=7).close()
    found = [vfs.read_file(f"/s/{name}") for name in ("whole", "tail", "cut", "grown")]
    assert found[0] == b"12345"
    assert (len(found[1]), found[1][3:]) == (5, b"45")
    assert found[2:] == [b"12", b"12345\0\0"]


def test_a_directory_is_listed_by_where_its_files_start_with_the_rest_apart(
    memory_vfs: MemoryVfs,
) -> None:
    memory_vfs.make_directories("/d/3")
    for name, data in (("10", b"ten"), ("2", b"two"), ("x", b"stray")):
        memory_vfs.replace_file(f"/d/{name}", data)
    found = list_by_start(memory_vfs, "/d", lambda name: int(name) if name.isdigit() else None)
    assert found.files == [(2, "/d/2", 3), (10, "/d/10", 3)]
    assert found.others == [("/d/3", True, 0), ("/d/x", False, 5)]
