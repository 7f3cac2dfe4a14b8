"""A log whose batches a follower notes."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from rocketcompat import Message, MessageStoreConfig
from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.messages import DispatchBatch
from rocketcompat.options import LAYOUTS
from rocketcompat.record.encode import encode_columns
from rocketcompat.record.prepare import prepare
from tests.support.rocket.inside import (
    new_log,
)
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs


@dataclass
class Recorder:
    """A follower that remembers what it was given; `fails` at a batch that begins there."""

    name: str
    fails: int | None = None
    error: int = errno.EIO
    batches: list[DispatchBatch] = field(default_factory=list)

    def put(self, batch: DispatchBatch) -> None:
        if batch.start == self.fails:
            raise OSError(self.error, os.strerror(self.error))
        self.batches.append(batch)

    @property
    def offsets(self) -> list[int]:
        return [int(offset) for batch in self.batches for offset in batch.physical_offsets]


CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1000, dispatch_batch_bytes_max=400, layouts=LAYOUTS
)


@pytest.fixture
def log(memory_vfs: MemoryVfs, clock: ManualClock) -> CommitLog:
    log = new_log(memory_vfs, "/log", CONFIG, clock)
    log.queue.load()
    log.start_at(0, 0)
    return log


def put(log: CommitLog, count: int, **fields: Any) -> list[int]:
    messages = [Message("T", b"x" * 40, keys=f"k{i}", **fields) for i in range(count)]
    return [log.put_one(prepare(message, log.config))[0] for message in messages]


MANY = MessageStoreConfig(layouts=frozenset({"consume_queue", "index"}))


@pytest.fixture
def wide_log(memory_vfs: MemoryVfs, clock: ManualClock) -> CommitLog:
    """A log that keeps the columns of batches: no shards follow it."""
    log = new_log(memory_vfs, "/log", MANY.changed(mapped_file_size_commit_log=1 << 16), clock)
    log.queue.load()
    log.start_at(0, 0)
    return log


def put_columns(log: CommitLog, count: int, queues: int, **columns: Any) -> list[int]:
    numbers = np.arange(count)
    table = {
        "topic": [f"T{n % 3}" for n in range(count)],
        "queue_id": numbers % queues,
        "body": [b"x" * (n % 50) for n in range(count)],
        "tags": [f"tag{n % 4}" if n % 5 else None for n in range(count)],
        "keys": [[f"k{n}", "all"] if n % 2 else [] for n in range(count)],
    } | columns
    return list(log.put_columns(encode_columns(table, log.config, have_offsets=True))[0])
