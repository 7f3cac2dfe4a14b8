"""The generation of a root's writer: what the next one takes from it, and when it notices."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.faults import UnlockedVfs
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.disks.writer_lock import Overtaken, WriterLock, take_writer_lock
from tubestore.errors import StoreLocked
from tubestore.testing import FaultyVfs, MemoryVfs


class UnlockedOsVfs(OsVfs):
    """The disk of the machine, with locks that exclude nobody."""

    lock = UnlockedVfs.lock  # type: ignore[assignment]


@pytest.fixture(params=["memory", "disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Vfs, str]:
    vfs: Vfs = UnlockedVfs() if request.param == "memory" else UnlockedOsVfs()
    root = str(tmp_path / "root")
    vfs.make_directories(f"{root}/own")
    return vfs, root


def taken(vfs: Vfs, root: str = "/store") -> WriterLock:
    path = f"{root}/own/lock"
    return take_writer_lock(vfs, path, kind="flock", root=root, own=f"{root}/own", note=path)


def written(vfs: Vfs, path: str) -> str:
    vfs.open(path, create=True).close()
    return path


def test_each_writer_takes_the_next_generation_and_the_directory_of_the_last_one_goes(
    disk: tuple[Vfs, str],
) -> None:
    vfs, root = disk
    for number in (1, 2, 3):
        lock = taken(vfs, root)
        written(vfs, f"{lock.drafts}/draft")
        assert [name for name, _, _ in vfs.entries(f"{root}/own/writers")] == [f"{number:020d}"]
        lock.check()
        assert lock.is_current()
        lock.release()


def test_what_an_overtaken_writer_has_drafted_can_neither_be_linked_nor_renamed(
    disk: tuple[Vfs, str],
) -> None:
    vfs, root = disk
    first = taken(vfs, root)
    draft = written(vfs, f"{first.drafts}/draft")
    second = taken(vfs, root)
    with pytest.raises(FileNotFoundError):
        vfs.link(draft, f"{root}/own/record")
    with pytest.raises(FileNotFoundError):
        vfs.rename(draft, f"{root}/own/record")
    with pytest.raises(FileNotFoundError):
        written(vfs, draft)
    assert not first.is_current()
    with pytest.raises(Overtaken, match="generation 1 has ended with generation 2"):
        first.check()
    second.check()


def test_a_number_that_another_process_takes_first_is_not_taken_twice() -> None:
    vfs = UnlockedVfs()
    vfs.make_directories("/store/own")
    others: list[WriterLock] = []

    class Slow(FaultyVfs):
        def ask(self, call: str, path: str) -> None:
            if call == "create" and len(others) < 3:
                others.append(taken(vfs))

    mine = taken(Slow(vfs))
    assert mine.drafts > max(other.drafts for other in others)
    mine.check()
    for other in others:
        with pytest.raises(Overtaken):
            other.check()


def test_a_writer_that_came_later_and_took_a_lower_number_begins_again() -> None:
    vfs = UnlockedVfs()
    vfs.make_directories("/store/own")
    vfs.make_directories("/store/own/writers/00000000000000000007")

    class Stale(FaultyVfs):
        """Lists the writers for the first time as they were before the seventh."""

        def entries(self, directory: str) -> list[tuple[str, bool, int]]:
            self.calls["entries"] += 1
            return [] if self.calls["entries"] == 1 else self.inner.entries(directory)

    assert taken(Stale(vfs)).drafts.endswith("8")
    assert [name[-1] for name, _, _ in vfs.entries("/store/own/writers")] == ["8"]


def test_a_process_that_goes_on_drafting_keeps_the_next_one_out() -> None:
    vfs = UnlockedVfs()
    vfs.make_directories("/store/own")
    first = taken(vfs)

    class Drafting(FaultyVfs):
        def ask(self, call: str, path: str) -> None:
            if call == "remove_directory":
                written(vfs, f"{path}/draft")

    with pytest.raises(StoreLocked, match=r"goes on writing in /store/own/writers/0+1;"):
        taken(Drafting(vfs))
    with pytest.raises(Overtaken):
        first.check()


def test_a_full_disk_lets_a_writer_in_and_refuses_it_when_it_publishes() -> None:
    vfs = MemoryVfs()
    vfs.make_directories("/store/own")
    full = FaultyVfs(vfs)
    full.fail("make_directories", error=errno.ENOSPC, forever=True)
    lock = taken(full)
    assert lock.is_current()
    with pytest.raises(OSError, match="No space left"):
        lock.check()
    full.heal()
    lock.check()
    assert lock.drafts.endswith("1")


def test_a_lock_is_given_back_where_no_generation_can_be_taken() -> None:
    vfs = MemoryVfs()
    vfs.make_directories("/store/own")
    broken = FaultyVfs(vfs)
    broken.fail("create")
    with pytest.raises(OSError, match="Input/output error"):
        taken(broken)
    taken(vfs)
