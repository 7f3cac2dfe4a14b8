"""`MemoryVfs` behaves like the system's file system: the same cases against both."""

from __future__ import annotations

import itertools

import pytest

from tests.support.engine.places import Place
from tests.support.engine.places import place as place
from tubestore.core.vfs import Vfs


def test_both_are_a_vfs(place: Place) -> None:
    assert isinstance(place[0], Vfs)


def test_a_write_is_read_back_at_its_position(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"hello", 3)
    file.pwrite(memoryview(b"HE"), 3)
    file.pwrite(bytearray(b"!"), 8)
    assert file.pread(100, 0) == b"\0\0\0HEllo!"
    assert file.pread(2, 4) == b"El"
    assert file.pread(5, 100) == b""
    assert file.size() == 9
    assert vfs.read_file(f"{root}/a") == b"\0\0\0HEllo!"


def test_a_buffer_is_filled_as_far_as_the_file_goes(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"hello", 0)
    buffer = bytearray(b"......")
    assert file.pread_into(memoryview(buffer)[:3], 1) == 3
    assert buffer == b"ell..."
    assert file.pread_into(memoryview(buffer), 3) == 2
    assert buffer == b"lol..."
    assert file.pread_into(memoryview(buffer), 5) == 0


def test_what_was_let_go_is_there_all_the_same(place: Place) -> None:
    vfs, root = place
    data = bytes(range(256)) * 64
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(data, 0)
    file.let_go(len(data), 0)
    file.sync()
    for _ in range(2):
        file.let_go(len(data), 0)
        file.let_go(1 << 30, 5000)
        assert file.pread(len(data) + 1, 0) == data


def test_a_write_far_behind_the_end_leaves_zeros(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"x", 10_000)
    assert file.pread(20_000, 0) == bytes(10_000) + b"x"


def test_an_empty_write_does_not_lengthen_a_file(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"", 10)
    assert file.size() == 0


def test_truncating_cuts_and_growing_again_shows_zeros(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"abcdef", 0)
    file.truncate(3)
    assert file.pread(9, 0) == b"abc"
    file.truncate(5)
    assert file.pread(9, 0) == b"abc\0\0"
    file.pwrite(b"z", 7)
    assert file.pread(9, 0) == b"abc\0\0\0\0z"


def test_missing_and_existing_files_are_errors(place: Place) -> None:
    vfs, root = place
    vfs.open(f"{root}/a", create=True)
    for missing in (f"{root}/b", f"{root}/no/b"):
        for call in (vfs.open, vfs.remove, vfs.read_file, vfs.modified_ms, vfs.sync_directory):
            with pytest.raises(FileNotFoundError):
                call(missing)
        with pytest.raises(FileNotFoundError):
            vfs.rename(missing, f"{root}/c")
    with pytest.raises(FileNotFoundError):
        vfs.open(f"{root}/no/b", create=True)
    with pytest.raises(FileNotFoundError):
        vfs.rename(f"{root}/a", f"{root}/no/a")
    with pytest.raises(FileExistsError):
        vfs.open(f"{root}/a", create=True)


def test_files_and_directories_are_not_taken_for_each_other(place: Place) -> None:
    vfs, root = place
    vfs.open(f"{root}/a", create=True)
    vfs.make_directories(f"{root}/d")
    with pytest.raises(IsADirectoryError):
        vfs.open(f"{root}/d")
    with pytest.raises(FileExistsError):
        vfs.open(f"{root}/d", create=True)
    with pytest.raises(OSError):  # noqa: PT011 - EISDIR on Linux, EPERM elsewhere
        vfs.remove(f"{root}/d")
    with pytest.raises(NotADirectoryError):
        vfs.open(f"{root}/a/b", create=True)
    with pytest.raises(NotADirectoryError):
        vfs.entries(f"{root}/a")
    with pytest.raises(NotADirectoryError):
        vfs.sync_directory(f"{root}/a")
    with pytest.raises(FileExistsError):
        vfs.make_directories(f"{root}/a")
    with pytest.raises(IsADirectoryError):
        vfs.rename(f"{root}/a", f"{root}/d")


def test_a_file_opened_for_reading_takes_no_writes(place: Place) -> None:
    vfs, root = place
    vfs.open(f"{root}/a", create=True).pwrite(b"abc", 0)
    file = vfs.open(f"{root}/a", writable=False)
    with pytest.raises(OSError):  # noqa: PT011 - the number differs between calls
        file.pwrite(b"x", 0)
    with pytest.raises(OSError):  # noqa: PT011
        file.truncate(0)
    assert file.pread(9, 0) == b"abc"


def test_entries_are_sorted_and_a_missing_directory_has_none(place: Place) -> None:
    vfs, root = place
    for name in ("b", "a.data", "a"):
        vfs.open(f"{root}/{name}", create=True)
    vfs.open(f"{root}/b").pwrite(b"12345", 0)
    vfs.make_directories(f"{root}/d/e")
    rows = [("a", False, 0), ("a.data", False, 0), ("b", False, 5), ("d", True, 0)]
    assert vfs.entries(root) == rows
    assert vfs.entries(f"{root}/d") == [("e", True, 0)]
    assert vfs.entries(f"{root}/none") == []
    assert vfs.exists(f"{root}/d/e")
    assert vfs.exists(f"{root}/b")
    assert not vfs.exists(f"{root}/d/b")


def test_a_rename_replaces_its_target_and_keeps_the_open_file(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"new", 0)
    vfs.open(f"{root}/b", create=True).pwrite(b"old", 0)
    vfs.rename(f"{root}/a", f"{root}/b")
    assert vfs.entries(root) == [("b", False, 3)]
    assert vfs.read_file(f"{root}/b") == b"new"
    file.pwrite(b"er", 3)
    assert vfs.read_file(f"{root}/b") == b"newer"


def test_a_renamed_directory_takes_everything_along(place: Place) -> None:
    vfs, root = place
    vfs.make_directories(f"{root}/d/e")
    vfs.make_directories(f"{root}/dd")
    vfs.open(f"{root}/d/e/f", create=True).pwrite(b"abc", 0)
    vfs.rename(f"{root}/d", f"{root}/g")
    assert vfs.read_file(f"{root}/g/e/f") == b"abc"
    assert vfs.entries(root) == [("dd", True, 0), ("g", True, 0)]
    with pytest.raises(OSError):  # noqa: PT011 - ENOTEMPTY has no class of its own
        vfs.rename(f"{root}/dd", f"{root}/g")


def test_a_link_is_a_second_name_and_takes_no_name_that_is_there(place: Place) -> None:
    vfs, root = place
    vfs.open(f"{root}/a", create=True).pwrite(b"abc", 0)
    vfs.link(f"{root}/a", f"{root}/b")
    with pytest.raises(FileExistsError):
        vfs.link(f"{root}/a", f"{root}/b")
    with pytest.raises(FileNotFoundError):
        vfs.link(f"{root}/none", f"{root}/c")
    vfs.open(f"{root}/a").pwrite(b"x", 1)
    vfs.remove(f"{root}/a")
    assert vfs.entries(root) == [("b", False, 3)]
    assert vfs.read_file(f"{root}/b") == b"axc"


def test_only_an_empty_directory_is_removed(place: Place) -> None:
    vfs, root = place
    vfs.make_directories(f"{root}/d/e")
    vfs.open(f"{root}/f", create=True)
    for path in (f"{root}/d", f"{root}/f", f"{root}/none"):
        with pytest.raises(OSError):  # noqa: PT011 - three numbers
            vfs.remove_directory(path)
    vfs.remove_directory(f"{root}/d/e")
    vfs.remove_directory(f"{root}/d")
    assert vfs.entries(root) == [("f", False, 0)]


def test_replace_file_leaves_the_whole_new_file_and_nothing_else(place: Place) -> None:
    vfs, root = place
    for data, sync in itertools.product((b"first", b"second, longer", b"3"), (True, False)):
        vfs.replace_file(f"{root}/a", data, sync=sync)
        assert vfs.read_file(f"{root}/a") == data
    assert vfs.entries(root) == [("a", False, 1)]


def test_a_lock_excludes_until_it_is_released(place: Place) -> None:
    vfs, root = place
    first = vfs.lock(f"{root}/lock", kind="flock")
    with pytest.raises(BlockingIOError):
        vfs.lock(f"{root}/lock", kind="flock")
    first.release()
    second = vfs.lock(f"{root}/lock", kind="flock")
    first.release()
    with pytest.raises(BlockingIOError):
        vfs.lock(f"{root}/lock", kind="flock")
    second.release()
    vfs.lock(f"{root}/lock", kind="lockf").release()


def test_paths_may_be_written_in_more_than_one_way(place: Place) -> None:
    vfs, root = place
    vfs.make_directories(f"{root}/d/")
    vfs.open(f"{root}/d/../d//a", create=True).pwrite(b"abc", 0)
    assert vfs.read_file(f"{root}/./d/a") == b"abc"


def test_syncs_and_times_are_accepted(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"abc", 0)
    file.sync()
    vfs.sync_directory(root)
    assert vfs.modified_ms(f"{root}/a") > 1_600_000_000_000
    assert vfs.boot_id() == vfs.boot_id()


def test_what_a_map_writes_is_in_the_file_and_what_the_file_gets_is_in_the_map(
    place: Place,
) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"0123", 0)
    file.allocate(10_000)
    assert file.size() == 10_000
    mapped = file.shared_map(10_000)
    mapped.write(b"ab", 4)
    file.pwrite(b"cd", 6)
    assert file.pread(10, 0) == mapped.read(10, 0) == b"0123abcd\0\0"
    mapped.write(memoryview(b"end"), 9_997)
    mapped.sync(9_997, 10_000)
    assert vfs.read_file(f"{root}/a")[-3:] == b"end"
    with pytest.raises(ValueError, match="behind the end"):
        mapped.write(b"xy", 9_999)
    file.close()
    vfs.remove(f"{root}/a")
    assert mapped.read(2, 4) == b"ab"


def test_allocating_shortens_nothing_and_changes_no_byte(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    file.pwrite(b"x" * 9_000, 0)
    file.allocate(5_000)
    assert vfs.read_file(f"{root}/a") == b"x" * 9_000


def test_the_size_of_a_file_is_that_of_now_and_a_missing_one_has_none(place: Place) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/a", create=True)
    assert vfs.size_of(f"{root}/a") == 0
    file.pwrite(b"hello", 3)
    assert vfs.size_of(f"{root}/a") == 8
    assert vfs.size_of(f"{root}/b") is None
    assert vfs.size_of(f"{root}/a/b") is None


def test_a_directory_that_is_missing_has_no_settled_names(place: Place) -> None:
    vfs, root = place
    assert vfs.settled_names(f"{root}/none") is None
