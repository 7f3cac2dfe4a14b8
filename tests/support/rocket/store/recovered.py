"""Stores that are killed or damaged, and opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.messages import has_queue_unit
from rocketcompat.queues.recovery import sound_pieces
from rocketcompat.record.codec import decode_one
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import (
    index_of,
    log_of,
    parts_of,
    queues_of,
    shards_of,
)
from tubestore.clock import ManualClock
from tubestore.store.manager import engine_of
from tubestore.testing import MemoryVfs

ROOT = "/store"

LOG = f"{ROOT}/commitlog"

PROGRESS = f"{ROOT}/.tubestore/progress.json"

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1000,
    mapped_file_size_consume_queue=100,
    max_hash_slot_num=7,
    max_index_num=20,
    layouts=frozenset({"consume_queue", "index"}),
)


class Bench:
    """A disk in memory with a store on it that can be killed."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.vfs = MemoryVfs(clock)
        self.store: DefaultMessageStore | None = None

    def open(self, config: MessageStoreConfig = CONFIG, mode: Any = "w") -> DefaultMessageStore:
        self.store = rocketcompat.open(
            ROOT, mode, config, vfs=self.vfs, clock=self.clock, background=False
        )
        return self.store

    def put(self, count: int, *, first: int = 0) -> list[int]:
        assert self.store is not None
        places = []
        for i in range(first, first + count):
            message = Message(f"T{i % 2}", b"%03d" % i + b"x" * 57, "abc"[i % 3], f"k{i}")
            places.append(self.store.put_message(message).physical_offset)
        return places

    def kill(self) -> None:
        """End the process: nothing more is written, the locks are gone."""
        assert self.store is not None
        self.store._closed = True
        if parts_of(self.store).tube is not None:
            engine_of(shards_of(self.store).store).abandon("killed")
        self.vfs.release_locks()

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        file = self.vfs.open(path)
        file.pwrite(data, position)
        file.close()


@pytest.fixture
def bench(clock: ManualClock) -> Bench:
    return Bench(clock)


def log_file(number: int) -> str:
    return f"{LOG}/{number * 1000:020d}"


def bodies_of(store: DefaultMessageStore) -> list[int]:
    """Numbers of the messages in the log, having checked that queues and index agree with it."""
    wanted, numbers = {}, []
    for piece in sound_pieces(log_of(store), 0, 1 << 62):
        for start in piece.starts.tolist():
            record = decode_one(piece.data, start)
            numbers.append(int(record.body[:3]))
            if has_queue_unit(record.sys_flag):
                place = (record.topic, record.queue_id, record.queue_offset)
                assert place not in wanted
                wanted[place] = record.physical_offset
            found = index_of(store).select(record.topic, f"k{numbers[-1]}", 9, 0, 1 << 60)[0]
            assert found == [record.physical_offset]
    for queue in queues_of(store):
        for offset in range(queue.max_offset):
            place = wanted.pop((queue.topic, queue.queue_id, offset), None)
            unit = queue.unit(offset)
            if place is None:
                assert log_of(store).gaps.over(unit.physical_offset)
            else:
                assert unit.physical_offset == place
    assert wanted == {}
    return numbers


def reopened(bench: Bench, config: MessageStoreConfig = CONFIG) -> list[int]:
    """Open, look, close; again; what is there both times."""
    with bench.open(config) as store:
        first = bodies_of(store)
    with bench.open(config) as store:
        assert store.recovered.clean
        assert bodies_of(store) == first
    assert not bench.vfs.exists(f"{ROOT}/abort")
    return first


def open_by_another(bench: Bench) -> None:
    bench.clock.advance(1000)
    bench.overwrite(f"{ROOT}/lock", 0, b"lock")


def zero(file: Any, start: int) -> None:
    file.pwrite(bytes(file.size() - start), start)


#: What a full disk or a file system's repair leaves of a file, by name.
LOSSES: dict[str, Callable[[Any], None] | None] = {
    "removed": None,
    "emptied": lambda file: file.truncate(0),
    "zeroed": lambda file: zero(file, 0),
    "half zeroed": lambda file: zero(file, file.size() // 2),
}
