"""What `sync` and `close` promise of what an earlier process wrote and did not sync."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import tubestore
from tests.support.engine.mixed import TOPICS, bodies, killed, mixed, open_store
from tubestore.core import local_files
from tubestore.core.local_files import OsVfs
from tubestore.errors import StoreFailed
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.testing.power_cut import power_cut

CLOSED = "/s/.tubestore/closed"
Sync = Callable[[MessageStoreManager], None]
SYNCS: dict[str, Sync] = {
    "store": MessageStoreManager.sync,
    "topic": lambda store: store[TOPICS[0]].sync(),
    "close": MessageStoreManager.close,
}
every_sync = pytest.mark.parametrize("sync", SYNCS.values(), ids=SYNCS)


def left_by_a_kill(vfs: MemoryVfs) -> None:
    """Leave messages in shards and in the journal, none of them synced."""
    vfs.record()
    store = open_store(vfs)
    for number in range(24, 30):
        store[TOPICS[number % 3]].append(b"%d" % number, partition=0)
    store.append_batch(mixed(0))
    killed(store, vfs)


@every_sync
def test_a_sync_covers_shards_that_only_the_killed_process_had_opened(
    memory_vfs: MemoryVfs, sync: Sync
) -> None:
    left_by_a_kill(memory_vfs)
    store = open_store(memory_vfs)
    sync(store)
    killed(store, memory_vfs)
    assert memory_vfs.journal is not None
    disk = memory_vfs.journal.end()
    for variant in range(12):
        after = MemoryVfs(None, power_cut(disk, Random(variant), variant, "another boot"))
        with open_store(after) as again:
            assert bodies(again) == list(range(30)), variant


@every_sync
def test_the_file_system_is_synced_once_after_a_kill_and_no_shard_is_opened_for_it(
    memory_vfs: MemoryVfs, sync: Sync
) -> None:
    store = open_store(memory_vfs)
    for name in TOPICS:
        store[name].append(b"x")
    store.flush()
    killed(store, memory_vfs)
    counting = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=counting, background=False)
    assert counting.calls["sync_file_system"] == 0
    sync(store)
    if sync is not SYNCS["close"]:  # which gives each shard what the ring has of it
        assert list(engine_of(store).shards.written()) == []
        sync(store)
        store.close()
    assert counting.calls["sync_file_system"] == 1


@every_sync
def test_after_a_clean_close_the_file_system_is_not_synced(
    memory_vfs: MemoryVfs, sync: Sync
) -> None:
    """Nor for a new store."""
    counting = FaultyVfs(memory_vfs)
    for _ in range(2):
        with open_store(counting) as store:
            store[TOPICS[1]].append(b"x")
            assert not memory_vfs.exists(CLOSED)
            sync(store)
        assert memory_vfs.exists(CLOSED)
    assert counting.calls["sync_file_system"] == 0


@every_sync
def test_a_sync_of_the_file_system_that_fails_is_an_error_and_nothing_is_claimed(
    memory_vfs: MemoryVfs, sync: Sync
) -> None:
    left_by_a_kill(memory_vfs)
    faulty = FaultyVfs(memory_vfs)
    store = open_store(faulty)
    faulty.fail("sync_file_system")
    with pytest.raises(StoreFailed, match="file system"):
        sync(store)
    if sync is not SYNCS["close"]:
        with pytest.raises(StoreFailed, match="file system"):  # the system says it once only
            sync(store)
        with pytest.raises(StoreFailed, match="file system"):
            store.close()
    assert not memory_vfs.exists(CLOSED)
    assert memory_vfs.exists("/s/.tubestore/journal")
    with open_store(faulty):
        pass
    assert memory_vfs.exists(CLOSED)


def test_a_close_that_fails_leaves_no_mark(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = open_store(faulty)
    store[TOPICS[0]].append(b"x", durability="memory")
    faulty.fail("sync", path=".tube")
    with pytest.raises(StoreFailed):
        store.close()
    assert not memory_vfs.exists(CLOSED)


def test_a_reader_changes_nothing(memory_vfs: MemoryVfs) -> None:
    with open_store(memory_vfs):
        pass
    with tubestore.open("/s", "r", vfs=memory_vfs):
        assert memory_vfs.exists(CLOSED)
    memory_vfs.remove(CLOSED)
    with tubestore.open("/s", "r", vfs=memory_vfs):
        pass
    assert not memory_vfs.exists(CLOSED)


# -- the system's ------------------------------------------------------------------------------


def test_the_systems_call_reports_why_it_failed(tmp_path: Path) -> None:
    system = OsVfs().file_system(str(tmp_path))
    system.sync()
    system.close()
    if local_files._syncfs() is not None:
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            system.sync()
        assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(tmp_path))
    system.close()


def test_where_there_is_no_such_call_every_file_and_directory_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t-0/index", "u-0"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("t-0/index/a", "t-0/b", "u-0/c"):
        (tmp_path / name).write_bytes(b"x")
    synced = []
    monkeypatch.setattr(local_files, "_syncfs", lambda: None)
    monkeypatch.setattr(local_files, "_DARWIN", False)
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, call, lambda fd: synced.append(os.fstat(fd).st_ino))
    system = OsVfs().file_system(str(tmp_path))
    system.sync()
    system.close()
    assert sorted(synced) == sorted(p.stat().st_ino for p in (tmp_path, *tmp_path.rglob("*")))


@pytest.mark.parametrize(
    ("release", "reports"),
    [
        ("5.7.19", False),
        ("4.19.0-1", False),
        ("5.8", True),
        ("6.18.44-x", True),
        ("strange", False),
    ],
)
def test_a_linux_that_does_not_report_what_it_could_not_write_has_no_such_call(
    release: str, reports: bool
) -> None:
    assert local_files._reports_errors(release) is reports
