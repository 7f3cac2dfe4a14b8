"""A log alone, and records that are put into it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketcompat import Message, MessageStoreConfig
from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.options import LAYOUTS
from rocketcompat.record.prepare import prepare
from tests.support.rocket.inside import new_log
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs
from tubestore.testing import MemoryVfs

SIZE = 1000

CONFIG = MessageStoreConfig(mapped_file_size_commit_log=SIZE, layouts=LAYOUTS)

DIRECTORY = "/log"

#: A record without properties takes this many bytes more than its body and a topic of one byte.
FIXED = 91 + 1


def opened(vfs: Vfs, clock: ManualClock) -> CommitLog:
    log = new_log(vfs, DIRECTORY, CONFIG, clock)
    log.queue.load()
    log.start_at(0, 0)
    return log


@pytest.fixture
def log(memory_vfs: MemoryVfs, clock: ManualClock) -> Iterator[CommitLog]:
    log = opened(memory_vfs, clock)
    yield log
    log.close()


def put(log: CommitLog, size: int, topic: str = "T", **fields: int) -> tuple[int, int, int]:
    return log.put_one(prepare(Message(topic, b"x" * (size - FIXED), **fields), CONFIG))
