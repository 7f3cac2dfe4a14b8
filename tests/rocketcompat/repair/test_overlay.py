"""A directory as it would be after planned changes; nothing is written."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rocketcompat.repair.overlay import FileChange, OverlayVfs
from tubestore.testing import MemoryVfs

FILE, OTHER = "/d/a", "/d/b"


@pytest.fixture
def disk() -> MemoryVfs:
    vfs = MemoryVfs()
    vfs.make_directories("/d")
    vfs.replace_file(FILE, b"0123456789")
    vfs.replace_file(OTHER, b"other")
    return vfs


def planned(
    disk: MemoryVfs, *changes: FileChange, removed: Any = (), moves: Any = ()
) -> OverlayVfs:
    return OverlayVfs(disk, {c.path: c for c in changes}, {*removed}, dict(moves))


@pytest.mark.parametrize(
    ("change", "content"),
    [
        (FileChange(FILE, 10, ((2, b"ab"), (9, b"c"))), b"01ab45678c"),
        (FileChange(FILE, 4), b"0123"),
        (FileChange(FILE, 12, zero_from=8), b"01234567\0\0\0\0"),
        (FileChange(FILE, 4, ((1, b"x"),), fresh=True), b"\0x\0\0"),
        (FileChange("/d/new", 3, ((0, b"new"),)), b"new"),
    ],
)
def test_a_changed_file_is_read_as_it_will_be(
    disk: MemoryVfs, change: FileChange, content: bytes
) -> None:
    before = disk.tree()
    vfs = planned(disk, change)
    assert vfs.read_file(change.path) == content
    file = vfs.open(change.path, writable=False)
    assert file.size() == len(content)
    for position in range(len(content) + 2):
        assert file.pread(3, position) == content[position : position + 3]
    assert bytes(file.view(len(content))) == content
    file.close()
    assert (change.path.rpartition("/")[2], False, len(content)) in vfs.entries("/d")
    assert disk.tree() == before


def test_a_part_of_any_changed_file_is_that_part_of_the_whole() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    disk = MemoryVfs()
    disk.make_directories("/d")
    for _ in range(100):
        disk.replace_file(FILE, rng.randbytes(rng.randrange(40)))
        size = rng.randrange(40)
        starts = [rng.randrange(size) for _ in range(rng.randrange(4)) if size]
        patches = tuple((at, rng.randbytes(rng.randrange(1, size - at + 1))) for at in starts)
        zero_from = rng.choice([None, rng.randrange(size + 1)])
        change = FileChange(FILE, size, patches, zero_from, rng.random() < 0.3)
        vfs = planned(disk, change)
        whole = vfs.read_file(FILE)
        low, count = rng.randrange(size + 1), rng.randrange(45)
        buffer = bytearray(count)
        file = vfs.open(FILE, writable=False)
        assert file.pread(count, low) == whole[low : low + count], change
        assert file.pread_into(memoryview(buffer), low) == len(whole[low : low + count])
        found = file.next_data(low)
        assert not any(whole[low : size if found is None else found]), change
        file.close()


def test_what_is_removed_is_gone_and_what_is_moved_has_the_other_name(disk: MemoryVfs) -> None:
    vfs = planned(disk, removed=[FILE], moves=[("/d/c", OTHER)])
    assert [name for name, _, _ in vfs.entries("/d")] == ["c"]
    assert [vfs.exists(path) for path in (FILE, OTHER, "/d/c")] == [False, False, True]
    with pytest.raises(FileNotFoundError):
        vfs.read_file(FILE)
    moved = vfs.open("/d/c", writable=False)
    assert moved.pread(9, 0) == b"other"
    moved.close()


def test_two_files_that_change_places_have_the_content_of_the_other(disk: MemoryVfs) -> None:
    vfs = planned(disk, moves=[(FILE, OTHER), (OTHER, FILE)])
    for path, content in ((FILE, b"other"), (OTHER, b"0123456789")):
        file = vfs.open(path, writable=False)
        assert file.pread(20, 0) == content
        file.close()


def test_a_planned_directory_takes_no_write(disk: MemoryVfs) -> None:
    vfs = planned(disk, FileChange(FILE, 4))
    file = vfs.open(FILE, writable=False)
    refused: list[Any] = [
        lambda: vfs.open(FILE), lambda: vfs.open("/d/x", create=True, writable=False),
        lambda: vfs.remove(FILE), lambda: vfs.rename(FILE, OTHER),
        lambda: vfs.replace_file(FILE, b""), lambda: vfs.make_directories("/e"),
        lambda: file.pwrite(b"x", 0), lambda: file.truncate(0), lambda: file.moved_to(OTHER),
    ]  # fmt: skip
    for call in refused:
        with pytest.raises(OSError, match="read-only"):
            call()
    file.close()
