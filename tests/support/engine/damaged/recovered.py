"""Shards that are damaged, opened, and compared with what has to be left."""

from __future__ import annotations

from tests.support.tube import (
    bodies,
    make_row,
    make_rows,
    open_shard,
    scanned,
)
from tubestore.options import StoreOptions
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE, entries_in, entry_of, inspect
from tubestore.shard.message_store import MessageStore
from tubestore.shard.reader import ShardReader
from tubestore.testing import MemoryVfs

HOME = "/store/t-0"

DATA = f"{HOME}/{0:020d}.tube"

INDEX = f"{HOME}/index/{0:020d}.index"

CHECKPOINT = f"{HOME}/.tubestore/checkpoint.json"

ROWS = make_rows(20)

BODIES = [row.payload for row in ROWS]


def starts_of(vfs: MemoryVfs) -> list[int]:
    """Return where each record of a one-file shard starts."""
    return [int(p) for p in entries_in(vfs.read_file(INDEX))["data_offset"]]


def patch(vfs: MemoryVfs, path: str, position: int, data: bytes) -> None:
    vfs.open(path).pwrite(data, position)


def cut(vfs: MemoryVfs, path: str, by: int) -> None:
    file = vfs.open(path)
    file.truncate(file.size() - by)


def append_and_read_back(vfs: MemoryVfs, shard: MessageStore, expected: list[bytes | None]) -> None:
    """After any recovery: append, close, open, and find the same and the new message.

    Damage that was found stays known, by the checkpoint, without another look at it.
    """
    known = [str(p) for p in shard.recovered.problems if p.path.endswith(".tube")]
    shard.append(make_row(b"after"), "fsync")
    shard.close()
    again = open_shard(vfs, HOME)
    assert bodies(again.view()) == [*expected, b"after"]
    assert [str(problem) for problem in again.recovered.problems] == known
    if known:  # what is sealed is not looked at, and damage in it not known
        assert scanned(again.view()) == scanned(again.view(), verify=True)
    reader = ShardReader(vfs, HOME, "t", 0, StoreOptions())
    assert scanned(reader.view()) == scanned(again.view())
    reader.close()
    again.close()
    check_invariants(vfs)


def check_invariants(vfs: MemoryVfs) -> None:
    """Every index file is whole entries; each record says where its entry stands."""
    data = {int(p[-25:-5]): b for p, b in vfs.tree().items() if p.endswith(".tube")}
    for path, raw in vfs.tree().items():
        if path.endswith(".index"):
            assert len(raw) % ENTRY_SIZE == 0
            for number, entry in enumerate(entries_in(raw)):
                for start, content in data.items():
                    at = int(entry["data_offset"]) - start
                    if 0 <= at < len(content):
                        header, reason = inspect(content, at, len(content))
                        if reason is None and header.length + 4 == entry["data_size"]:
                            offset = int(path[-26:-6]) + number * ENTRY_SIZE
                            assert header.queue_logic_offset == offset
                            assert entry_of(header, start + at) == entry.tobytes()


LAST = HEADER_SIZE + len(BODIES[-1])
