"""Locks on files: one holder, in this process or another, and the holder is named."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
import tubestore
from tubestore.core.locks import lock_owners
from tubestore.core.vfs import OsVfs
from tubestore.store.manager import engine_of
from tubestore.testing import FaultyVfs, MemoryVfs

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc here")


def test_a_lock_that_may_not_be_taken_is_not_called_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any, *_: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    tubestore.open(tmp_path / "s").close()
    rocketcompat.open(tmp_path / "r", "w", background=False).close()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match="Permission denied") as engine:
        tubestore.open(tmp_path / "s")
    with pytest.raises(OSError, match="Permission denied") as layer:
        rocketcompat.open(tmp_path / "r", "w", background=False)
    assert engine.value.errno == layer.value.errno == errno.EACCES


@pytest.mark.parametrize("number", [errno.EACCES, errno.EAGAIN])
def test_what_lockf_reports_of_a_lock_that_is_held_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def held(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", held)
    with pytest.raises(BlockingIOError):
        OsVfs().lock(str(tmp_path / "lock"), kind="lockf")


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    vfs = OsVfs()
    path = str(tmp_path / "lock")
    first = vfs.lock(path, kind="flock")
    with pytest.raises(BlockingIOError):
        vfs.lock(path, kind="flock")
    first.release()
    first.release()
    vfs.lock(path, kind="flock").release()


def test_a_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic"):
        OsVfs().lock(str(tmp_path / "lock"), kind="flock")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("kind", ["flock", "lockf"])
def test_a_lock_file_that_is_removed_lets_no_second_holder_in(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lock"
    first = OsVfs().lock(str(path), kind=kind)
    assert first.is_current()
    path.unlink()
    broker_may_come = kind == "lockf"
    assert first.is_current() is not broker_may_come
    with pytest.raises(BlockingIOError):
        OsVfs().lock(str(path), kind=kind)
    path.unlink()
    path.write_bytes(b"another file")
    assert first.is_current() is not broker_may_come
    first.release()
    OsVfs().lock(str(path), kind=kind).release()


@pytest.mark.parametrize("moved", [".", "own"])
def test_a_lock_with_a_moved_directory_lets_no_second_holder_into_the_root(
    tmp_path: Path, moved: str
) -> None:
    root = tmp_path / "root"
    (root / "own").mkdir(parents=True)
    path = str(root / "own" / "lock")
    first = OsVfs().lock(path, kind="flock", root=str(root))
    (root / moved).rename(tmp_path / "moved")
    (root / "own").mkdir(parents=True)
    assert not first.is_current()
    if moved == "own":
        with pytest.raises(BlockingIOError):
            OsVfs().lock(path, kind="flock", root=str(root))
    first.release()
    OsVfs().lock(path, kind="flock", root=str(root)).release()


def test_a_file_system_that_locks_no_directories_still_locks_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_directories(fd: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, "as NFS says")
        flock(fd, operation)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", refuse_directories)
    held = OsVfs().lock(str(tmp_path / "lock"), kind="flock")
    with pytest.raises(BlockingIOError):
        OsVfs().lock(str(tmp_path / "lock"), kind="flock")
    assert held.is_current()
    (tmp_path / "lock").unlink()
    assert not held.is_current()
    held.release()


def test_a_lock_of_a_file_that_is_replaced_while_it_is_locked_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls = tmp_path / "lock", []

    def replace_first(fd: int, operation: int) -> None:
        if not calls:
            path.unlink()
            path.write_bytes(b"")
        calls.append(fd)
        flock(fd, operation)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", replace_first)
    held = OsVfs().lock(str(path), kind="flock")
    assert held.is_current()
    held.release()


def test_a_forked_child_does_not_hold_its_parents_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    ready, wait = os.pipe(), os.pipe()
    held = OsVfs().lock(path, kind="flock")
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.read(wait[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    held.release()
    OsVfs().lock(path, kind="flock").release()
    os.write(wait[1], b"x")
    os.waitpid(child, 0)


@pytest.mark.parametrize("kind", ["lockf", "flock"])
def test_the_owner_of_a_lock_is_seen_without_opening_its_file(tmp_path: Path, kind: str) -> None:
    """Closing any descriptor of it would drop a lock that this process has (D9)."""
    if not Path("/proc/locks").exists():
        pytest.skip("this system does not list its locks")
    path = tmp_path / "lock"
    assert lock_owners(str(path)) == []
    path.write_bytes(b"lock")
    assert lock_owners(str(path)) == []
    lock = OsVfs().lock(str(path), kind=kind)
    assert lock_owners(str(path)) == [os.getpid()]
    assert lock_owners(str(path)) == [os.getpid()]
    lock.release()
    assert lock_owners(str(path)) == []


def test_without_a_table_of_locks_their_owners_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_bytes(b"lock")
    assert lock_owners(str(path), table="/nowhere") is None


def test_a_lock_in_memory_has_this_process_as_its_owner() -> None:
    vfs = MemoryVfs()
    lock = vfs.lock("/lock", kind="flock")
    assert vfs.lock_owners("/lock") == [os.getpid()]
    lock.release()
    assert vfs.lock_owners("/lock") == vfs.lock_owners("/missing") == []


NOTES = {
    "no file": None,
    "no JSON": b"{",
    "another form": b"[1]",
    "nested deeply": b"[" * 100_000,
    "a process that has ended": {"pid": 2**22 + 1, "since_ms": 0},
    "no process": {"pid": 10**30, "since_ms": 0},
    "no time": {"pid": 1, "since_ms": 10**30},
}


@pytest.mark.parametrize("note", NOTES.values(), ids=NOTES)
def test_a_holder_that_is_not_known_is_not_named(tmp_path: Path, note: Any) -> None:
    path = tmp_path / "lock"
    if note is not None:
        note = note if isinstance(note, bytes) else json.dumps({"host": platform.node(), **note})
        path.write_bytes(note if isinstance(note, bytes) else note.encode())
    assert OsVfs().lock_holder(str(path)) == ""


def test_a_refused_writer_learns_which_process_holds_the_store(tmp_path: Path) -> None:
    with (
        tubestore.open(tmp_path / "s", background=False),
        pytest.raises(tubestore.StoreLocked) as refused,
    ):
        tubestore.open(tmp_path / "s")
    assert f"process {os.getpid()} on {platform.node()!r} since 20" in str(refused.value)


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_lock_file_that_is_gone_changes_nothing_for_the_writer_and_for_the_next(
    tmp_path: Path, how: str
) -> None:
    root = tmp_path / "s"
    with tubestore.open(root, background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"before")
        lock = root / ".tubestore" / "lock"
        lock.unlink()
        if how == "replaced":
            lock.write_bytes(b"")
        store.maintain()
        topic.append(b"after")
        with pytest.raises(tubestore.StoreLocked):
            tubestore.open(root, background=False)
        assert store.problems == []
    with tubestore.open(root, background=False) as again:
        assert [m.body for m in again["t"].messages(0)] == [b"before", b"after"]


def test_a_writer_whose_state_directory_was_moved_stops_and_reports_why(tmp_path: Path) -> None:
    root, moved = tmp_path / "s", tmp_path / "moved"
    store = tubestore.open(root, background=False)
    topic = store.create_topic("t")
    topic.append(b"before")
    (root / ".tubestore").rename(moved)
    with pytest.raises(tubestore.StoreLocked):
        tubestore.open(root, background=False)
    store.maintain()
    with pytest.raises(tubestore.StoreClosed, match="was replaced"):
        topic.append(b"after")
    assert [type(p) for p in store.problems] == [tubestore.StoreFailed]
    with pytest.raises(tubestore.StoreFailed, match="was replaced"):
        store.close()
    (root / ".tubestore" / "lock").unlink()
    (root / ".tubestore").rmdir()
    moved.rename(root / ".tubestore")
    with tubestore.open(root, background=False) as again:
        assert [m.body for m in again["t"].messages(0)] == [b"before"]


class Replacing(FaultyVfs):
    """Calls `while_writing` once, in the midst of the next write of data."""

    while_writing: Callable[[], None] | None = None

    def ask_write(self, path: str, size: int) -> tuple[int, OSError | None]:
        if path.endswith(".tube") and self.while_writing is not None:
            call, self.while_writing = self.while_writing, None
            call()
        return super().ask_write(path, size)


def test_a_writer_that_loses_its_lock_during_an_append_completes_it_before_it_lets_others_in(
    tmp_path: Path,
) -> None:
    root, moved = tmp_path / "s", tmp_path / "moved"
    vfs = Replacing(OsVfs())
    # A frame in the ring is one copy under the shard's lock: nothing comes in between.
    store = tubestore.open(root, background=False, vfs=vfs, ring_journal=False)
    topic = store.create_topic("t")
    topic.append(b"before")
    (shard,) = engine_of(store).shards.written()
    stopping = threading.Thread(target=store.maintain)

    def lose_lock() -> None:
        (root / ".tubestore").rename(moved)
        stopping.start()
        while not shard.is_over():
            stopping.join(0.001)
        with pytest.raises(tubestore.StoreLocked):
            tubestore.open(root, background=False)

    vfs.while_writing = lose_lock
    ack = topic.append(b"under way")
    stopping.join()
    with pytest.raises(tubestore.StoreClosed, match="was replaced") as refused:
        topic.append(b"after")
    assert refused.value.taken == "no"
    with tubestore.open(root, background=False) as other:
        assert [(m.offset, m.body) for m in other["t"].messages(0)][1:] == [
            (ack.offset, b"under way")
        ]


def test_a_rocketmq_store_whose_lock_file_is_gone_stops_and_reports_why(tmp_path: Path) -> None:
    root = tmp_path / "r"
    store = rocketcompat.open(root, "w", background=False)
    store.put_message(rocketcompat.Message("t", b"before"))
    with pytest.raises(tubestore.StoreLocked, match="this process"):
        rocketcompat.open(root, "w")
    (root / "lock").unlink()
    with pytest.raises(tubestore.StoreFailed, match="lock file or its directory was replaced"):
        store.close()
