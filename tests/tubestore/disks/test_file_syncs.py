"""Files of many shards are synced with one call, few by themselves."""

from __future__ import annotations

import errno

import pytest

from tubestore.disks.file_syncs import FileSyncs
from tubestore.errors import StoreFailed
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.testing.faults import FaultyFileSystem


class FakeShard:
    """A shard with ten bytes in its files."""

    def __init__(self) -> None:
        self.end, self.noted, self.synced = 10, -1, 0

    def written_end(self) -> int:
        return self.end

    def note_synced(self, data_end: int) -> None:
        self.noted = data_end

    def sync(self) -> None:
        self.synced += 1


@pytest.fixture
def faulty() -> FaultyVfs:
    vfs = MemoryVfs()
    vfs.make_directories("/s")
    return FaultyVfs(vfs)


def opened(vfs: FaultyVfs) -> FileSyncs:
    syncs = FileSyncs(vfs, "/s")
    syncs.open()
    return syncs


def test_few_shards_are_synced_each(faulty: FaultyVfs) -> None:
    shards = [FakeShard() for _ in range(8)]
    opened(faulty).sync(shards, FakeShard.sync)
    assert [shard.synced for shard in shards] == [1] * 8
    assert faulty.calls["sync_file_system"] == 0


def test_many_shards_take_one_call_and_note_how_far_they_are_safe(faulty: FaultyVfs) -> None:
    shards = [FakeShard() for _ in range(9)]
    opened(faulty).sync(shards, FakeShard.sync)
    assert [(shard.synced, shard.noted) for shard in shards] == [(0, 10)] * 9
    assert faulty.calls["sync_file_system"] == 1


def test_what_is_written_during_the_call_is_not_noted(
    faulty: FaultyVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [FakeShard() for _ in range(9)]
    syncs = opened(faulty)
    ask = faulty.ask

    def write_on(kind: str, path: str) -> None:
        ask(kind, path)
        for shard in shards:
            shard.end = 20

    monkeypatch.setattr(faulty, "ask", write_on)
    syncs.sync(shards, FakeShard.sync)
    assert {shard.noted for shard in shards} == {10}


def test_after_a_failed_call_nothing_is_safe_any_more(faulty: FaultyVfs) -> None:
    """The system reports once what it could not write."""
    shards = [FakeShard() for _ in range(9)]
    syncs = opened(faulty)
    faulty.fail("sync_file_system", error=errno.EIO)
    for given in (shards, shards, shards[:1]):
        with pytest.raises(StoreFailed, match="sync of the file system"):
            syncs.sync(given, FakeShard.sync)
    assert syncs.failed
    assert {(shard.synced, shard.noted) for shard in shards} == {(0, -1)}


def test_the_file_system_is_held_from_the_opening_to_the_close(
    faulty: FaultyVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []
    opening = faulty.file_system

    def noted(directory: str) -> FaultyFileSystem:
        found = opening(directory)
        held.append(True)
        monkeypatch.setattr(found, "close", held.clear)
        return found

    monkeypatch.setattr(faulty, "file_system", noted)
    syncs = opened(faulty)
    syncs.open()
    assert len(held) == 1
    syncs.close()
    syncs.close()
    assert held == []
