"""Where removed files wait."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tubestore.core import trash
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.testing import FaultyVfs, MemoryVfs

HOME = "/store/t-0"
DATA = f"{HOME}/{0:020d}.tube"
INDEX = f"{HOME}/index/{0:020d}.index"


@pytest.fixture
def shard(memory_vfs: MemoryVfs) -> MemoryVfs:
    memory_vfs.make_directories(f"{HOME}/index")
    for path in (DATA, INDEX):
        memory_vfs.open(path, create=True).pwrite(path.encode(), 0)
    return memory_vfs


def test_the_last_one_removed_under_a_name_is_found(shard: MemoryVfs) -> None:
    place = trash.trash_of(HOME)
    assert trash.latest(shard, place, f"{0:020d}.tube") is None
    for content, now_ms in ((DATA.encode(), 999), (b"second", 1000)):
        moved = trash.move(shard, DATA, place, now_ms)
        assert moved == trash.latest(shard, place, f"{0:020d}.tube")
        assert moved is not None
        assert shard.read_file(moved) == content
        assert not shard.exists(DATA)
        shard.open(DATA, create=True).pwrite(b"second", 0)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_purge_deletes_what_is_old_enough_and_not_kept(on_disk: bool, tmp_path: Path) -> None:
    vfs: Vfs = OsVfs() if on_disk else MemoryVfs()
    root = str(tmp_path) if on_disk else "/store"
    home = f"{root}/t-0"
    place = trash.trash_of(root)
    vfs.make_directories(f"{home}/index")
    for path in (f"{home}/{0:020d}.tube", f"{home}/index/{0:020d}.index", f"{root}/lone"):
        vfs.open(path, create=True).pwrite(b"12345", 0)
    trash.move(vfs, home, place, 1000)
    trash.move(vfs, f"{root}/lone", place, 2000)
    vfs.make_directories(f"{place}/not.ours")

    assert [(w.name, w.removed_ms) for w in trash.waiting(vfs, place)] == [
        ("lone", 2000),
        ("t-0", 1000),
    ]
    assert trash.purge(vfs, place, 999, lambda _: False) == 0
    assert trash.purge(vfs, place, 5000, lambda w: True) == 0
    assert trash.purge(vfs, place, 1999, lambda w: False) == 10
    assert [w.name for w in trash.waiting(vfs, place)] == ["lone"]
    assert trash.purge(vfs, place, 2000, lambda w: w.name != "lone") == 5
    assert [name for name, _, _ in vfs.entries(place)] == ["not.ours"]


def test_an_error_other_than_a_full_disk_leaves_the_file(shard: MemoryVfs) -> None:
    faulty = FaultyVfs(shard)
    faulty.fail("rename", error=errno.EACCES)
    with pytest.raises(PermissionError):
        trash.move(faulty, DATA, trash.trash_of(HOME), 1000)
    assert shard.exists(DATA)
    faulty.fail("make_directories", error=errno.ENOSPC)
    faulty.fail("rename", error=errno.EDQUOT)
    assert trash.move(faulty, INDEX, trash.trash_of("/elsewhere"), 1000) is None
    assert not shard.exists(INDEX)
