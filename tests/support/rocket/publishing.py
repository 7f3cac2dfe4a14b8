"""A log to publish into, what jobs stage for it, and what is in it then."""

from __future__ import annotations

from typing import Any

import pytest

import rocketcompat
from rocketcompat import MessageStoreConfig
from rocketcompat.check.whole import check_store
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.columns import RecordColumns
from rocketcompat.staging.pieces import StagedPiece
from rocketcompat.staging.writer import StagedLogWriter
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.cli import command_fixture  # noqa: F401
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs
from tubestore.testing import MemoryVfs

ROOT = "/store"


CLOCK = ManualClock()


CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=16,
    max_index_num=40,
    layouts=frozenset({"consume_queue", "index"}),
)


def opened(vfs: Vfs, mode: Any = "w", config: MessageStoreConfig = CONFIG) -> DefaultMessageStore:
    return rocketcompat.open(ROOT, mode, config, vfs=vfs, clock=CLOCK, background=False)


@pytest.fixture
def vfs() -> MemoryVfs:
    return MemoryVfs(CLOCK)


def batch(bodies: list[bytes], topic: str = "orders", **columns: Any) -> dict[str, Any]:
    queues = [n % 3 for n in range(len(bodies))]
    keys = [f"k{n}" for n in range(len(bodies))]
    return {"topic": [topic] * len(bodies), "queue_id": queues, "body": bodies, "keys": keys,
            "tags": ["t"] * len(bodies), **columns}  # fmt: skip


def numbered(name: str, count: int, size: int = 60) -> list[bytes]:
    return [f"{name} {n:05d}".encode().ljust(size, b".") for n in range(count)]


def stage(
    vfs: Vfs, job_id: str, *batches: Any, attempt: str = "0", config: MessageStoreConfig = CONFIG
) -> list[StagedPiece]:
    with StagedLogWriter(ROOT, job_id, attempt, config=config, vfs=vfs) as writer:
        for one in batches:
            writer.write(one)
        return writer.finish()


def bodies(vfs: Vfs) -> list[bytes]:
    """Every body of the log in its order, as the windows show it; they must find nothing wrong."""
    directory = StoreDirectory(ROOT, {}, vfs)
    found = []
    for piece in directory.scan_log():
        assert isinstance(piece, RecordColumns), piece
        found += piece.bodies().to_pylist()
    return found


def findings(vfs: Vfs) -> list[Any]:
    options = {"maxHashSlotNum": 16, "maxIndexNum": 40}
    return [(f["reason"], f["message"]) for f in check_store(StoreDirectory(ROOT, options, vfs))]


def pulled(store: DefaultMessageStore, topic: str = "orders") -> list[list[bytes]]:
    """The bodies that consumers of the first three queues get."""
    found: list[list[bytes]] = [[], [], []]
    for queue, got in enumerate(found):
        while page := list(store.get_message(topic, queue, len(got), 32)):
            got += [message.body for message in page]
    return found


def counted(queues: list[list[bytes]]) -> int:
    return sum(map(len, queues))
