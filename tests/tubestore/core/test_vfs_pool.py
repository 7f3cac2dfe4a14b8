"""Descriptors come from one bounded pool, whatever is open."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
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
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.store.topic import Topic
from tubestore.testing import FaultyVfs, MemoryVfs


def open_descriptors() -> int:
    gc.collect()  # what other tests left
    return len(os.listdir("/proc/self/fd"))


pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc here")


@pytest.mark.gate
def test_more_files_than_descriptors_can_be_used(tmp_path: Path) -> None:
    vfs = OsVfs(descriptors_max=8)
    before = open_descriptors()
    files = [vfs.open(str(tmp_path / str(n)), create=True) for n in range(50)]
    for number, file in enumerate(files):
        file.pwrite(b"%d" % number, 0)
        file.sync()
    for _ in range(3):
        for number, file in enumerate(files):
            assert file.pread(10, 0) == b"%d" % number
    assert open_descriptors() - before <= 10
    for file in files:
        file.close()
        file.close()
    assert open_descriptors() == before


def test_a_file_with_unsynced_writes_keeps_its_descriptor_as_long_as_it_can(
    tmp_path: Path,
) -> None:
    """Its next sync must see the errors of its writes, which the kernel tells a descriptor once."""
    vfs = OsVfs(descriptors_max=4)
    dirty = vfs.open(str(tmp_path / "dirty"), create=True)
    dirty.pwrite(b"x", 0)
    held = dirty.descriptor
    assert held is not None
    for number in range(20):
        vfs.open(str(tmp_path / str(number)), create=True).pread(1, 0)
    assert dirty.descriptor is held


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths as they are opened, in a process that may have 48 descriptors and keeps 4 at first."""
    monkeypatch.setattr("tubestore.core.local_files.DESCRIPTORS_MAX", 4)
    monkeypatch.setattr("resource.getrlimit", lambda which: (48, 48))
    paths: list[str] = []
    open_file = os.open

    def noting(path: Any, *rest: Any, **named: Any) -> int:
        paths.append(str(path))
        return open_file(path, *rest, **named)

    monkeypatch.setattr("os.open", noting)
    return paths


def use_in_turn(vfs: OsVfs, tmp_path: Path, count: int, rounds: int) -> list[Any]:
    files = [vfs.open(str(tmp_path / str(n)), create=True) for n in range(count)]
    for _ in range(rounds):
        for file in files:
            file.pwrite(b"x", 0)
    return files


def test_files_that_are_used_in_turn_stay_open_within_half_of_the_limit(
    tmp_path: Path, opened: list[str]
) -> None:
    files = use_in_turn(OsVfs(), tmp_path, 20, rounds=8)
    opened.clear()
    for file in files:
        file.pwrite(b"y", 0)
    assert opened == []


@pytest.mark.parametrize(("most", "count"), [(None, 40), (4, 20)])
def test_passes_over_more_files_than_may_be_open_and_a_bound_of_the_caller_leave_the_pool_small(
    tmp_path: Path, opened: list[str], most: int | None, count: int
) -> None:
    before = open_descriptors()
    files = use_in_turn(OsVfs(most), tmp_path, count, rounds=8)
    assert len(opened) >= 8 * count
    assert open_descriptors() - before <= 5
    assert len(files) == count


def test_a_closed_file_opens_again_when_it_is_used(tmp_path: Path) -> None:
    vfs = OsVfs()
    file = vfs.open(str(tmp_path / "a"), create=True)
    file.pwrite(b"abc", 0)
    view = file.view(3)
    file.close()
    assert file.pread(3, 0) == b"abc"
    file.close()
    assert bytes(view) == b"abc"


@pytest.mark.parametrize("position", [0, 1, (256 << 10) - 1, 3 << 20])
def test_a_large_write_is_whole_wherever_it_begins(tmp_path: Path, position: int) -> None:
    data = bytes(range(256)) * 4096 + b"the end"
    file = OsVfs().open(str(tmp_path / "f"), create=True)
    for given in (data, bytearray(data), memoryview(data)):
        file.truncate(0)
        file.pwrite(given, position)
        assert file.size() == position + len(data)
        assert file.pread(len(data) + 1, position) == data


def test_threads_share_a_small_pool(tmp_path: Path) -> None:
    vfs = OsVfs(descriptors_max=3)
    files = [vfs.open(str(tmp_path / str(n)), create=True) for n in range(12)]
    for number, file in enumerate(files):
        file.pwrite(b"%04d" % number, 0)
        file.sync()
    wrong: list[int] = []

    def read() -> None:
        for _ in range(50):
            for number, file in enumerate(files):
                if file.pread(4, 0) != b"%04d" % number:
                    wrong.append(number)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def write_to_many_shards(store: MessageStoreManager) -> Topic:
    topic = store.create_topic("t", stores=60)
    for _ in range(3):
        partitions = [n * 10_000 for n in range(60)]
        assert len(topic.append_batch({"body": [b"x"] * 60, "partition": partitions})) == 60
    return topic


@pytest.mark.gate
def test_writing_to_many_shards_needs_few_descriptors(tmp_path: Path) -> None:
    before = open_descriptors()
    with tubestore.open(tmp_path, vfs=OsVfs(descriptors_max=16), background=False) as store:
        topic = write_to_many_shards(store)
        assert open_descriptors() - before <= 30
        topic.sync()
        assert open_descriptors() - before <= 30
    assert open_descriptors() == before


@pytest.mark.gate
def test_a_store_of_many_shards_stays_below_1024_descriptors(tmp_path: Path) -> None:
    before = open_descriptors()
    with tubestore.open(tmp_path, background=False) as store:
        topic = store.create_topic("t", stores=600)
        for store_id in range(600):
            topic.append(b"x", partition=store_id * 10_000)
        assert open_descriptors() - before < 1000


@pytest.mark.gate
def test_reading_many_shards_needs_few_descriptors(tmp_path: Path) -> None:
    before = open_descriptors()
    with tubestore.open(tmp_path, vfs=OsVfs(descriptors_max=16), background=False) as store:
        topic = write_to_many_shards(store)
        assert topic.scan().read_all().num_rows == 180
        assert open_descriptors() - before <= 30


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


def test_a_file_that_was_renamed_is_opened_again_under_its_new_name(tmp_path: Path) -> None:
    vfs = OsVfs()
    file = vfs.open(str(tmp_path / "a"), create=True)
    file.pwrite(b"hello", 0)
    file.close()
    vfs.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    with pytest.raises(FileNotFoundError):
        file.pread(5, 0)
    file.moved_to(str(tmp_path / "b"))
    assert file.pread(5, 0) == b"hello"


@pytest.mark.parametrize("in_memory", [False, True])
def test_another_file_under_the_same_name_is_not_taken_for_it(
    tmp_path: Path, memory_vfs: MemoryVfs, in_memory: bool
) -> None:
    """Mapped by the old one's length, a shorter file would kill the process."""
    vfs: Vfs = memory_vfs if in_memory else OsVfs()
    path = "/a" if in_memory else str(tmp_path / "a")
    file = vfs.open(path, create=True)
    file.pwrite(b"hello", 0)
    file.close()
    vfs.replace_file(path, b"hel")
    for read in (lambda: file.view(5), lambda: file.pread(5, 0)):
        with pytest.raises(FileNotFoundError):
            read()


def test_a_small_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"untouched")
    (tmp_path / "a.tmp").symlink_to(other)
    OsVfs().replace_file(str(tmp_path / "a"), b"new")
    assert (other.read_bytes(), (tmp_path / "a").read_bytes()) == (b"untouched", b"new")
    assert not (tmp_path / "a").is_symlink()


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
    store = tubestore.open(root, background=False, vfs=vfs)
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


def test_files_that_retention_removed_give_their_descriptors_and_their_room_back(
    tmp_path: Path,
) -> None:
    with tubestore.open(
        tmp_path, segment_size_bytes=10_000, trash_grace_ms=0, background=False
    ) as store:
        topic = store.create_topic("t", max_bytes=20_000)
        for _ in range(20):
            for _ in range(10):
                topic.append(bytes(2_000))
            topic.retain()
            store.empty_trash(0)
        assert sum(batch.num_rows for batch in topic.scan()) < 50
        assert [path for path in open_paths() if path.endswith("(deleted)")] == []


def open_paths() -> list[str]:
    """The names of the files below this test's folders that are open."""
    gc.collect()
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            paths.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in paths if ".tube" in path or ".index" in path]
