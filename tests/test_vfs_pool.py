"""Descriptors come from one bounded pool, whatever is open."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
import tubestore
from tubestore.manager import MessageStoreManager
from tubestore.testing import MemoryVfs
from tubestore.topic import Topic
from tubestore.vfs import OsVfs, Vfs


def open_descriptors() -> int:
    gc.collect()  # what other tests left
    return len(os.listdir("/proc/self/fd"))


pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc here")


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


def test_writing_to_many_shards_needs_few_descriptors(tmp_path: Path) -> None:
    before = open_descriptors()
    with tubestore.open(tmp_path, vfs=OsVfs(descriptors_max=16), background=False) as store:
        topic = write_to_many_shards(store)
        assert open_descriptors() - before <= 30
        topic.sync()
        assert open_descriptors() - before <= 30
    assert open_descriptors() == before


def test_a_store_of_many_shards_stays_below_1024_descriptors(tmp_path: Path) -> None:
    before = open_descriptors()
    with tubestore.open(tmp_path, background=False) as store:
        topic = store.create_topic("t", stores=600)
        for store_id in range(600):
            topic.append(b"x", partition=store_id * 10_000)
        assert open_descriptors() - before < 1000


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
    with pytest.raises(PermissionError):
        tubestore.open(tmp_path / "s")
    with pytest.raises(PermissionError):
        rocketcompat.open(tmp_path / "r", "w", background=False)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EAGAIN])
def test_what_lockf_says_of_a_lock_that_is_held_is_one_error(
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
