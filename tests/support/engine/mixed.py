"""A store of twelve topics, batches over all of them, and a writer that is killed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import tubestore
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.testing import MemoryVfs

TOPICS = [f"t{n:02d}" for n in range(12)]

JOURNAL = "/s/.tubestore/journal"


def open_store(vfs: Vfs, **settings: Any) -> MessageStoreManager:
    store = tubestore.open("/s", vfs=vfs, clock=ManualClock(), background=False, **settings)
    for name in TOPICS:
        store.create_topic(name, partitions=2, exist_ok=True)
    return store


def mixed(first: int, rows: int = 24) -> pa.Table:
    """Return numbered messages, two of each topic."""
    numbers = range(first, first + rows)
    return pa.table(
        {
            "topic": [TOPICS[n % len(TOPICS)] for n in numbers],
            "partition": [n // len(TOPICS) % 2 for n in numbers],
            "body": [b"%d" % n for n in numbers],
        }
    )


def bodies(store: MessageStoreManager) -> list[int]:
    """Return the numbers of all messages, sorted."""
    rows = []
    for name in store.topics():
        with store[name].scan(columns=["body", "state"], verify=True) as reader:
            rows += reader.read_all().to_pylist()
    assert {row["state"] for row in rows} <= {"ok"}
    return sorted(int(row["body"]) for row in rows)


def killed(store: MessageStoreManager, vfs: MemoryVfs) -> None:
    engine_of(store).abandon("killed")
    vfs.release_locks()


def opened_shards(store: MessageStoreManager) -> int:
    return len(list(engine_of(store).shards.written()))
