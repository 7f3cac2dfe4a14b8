"""A root that is a mirror."""

from __future__ import annotations

import pytest

from rocketcompat import MessageStoreConfig
from rocketcompat.ha.slave_store import SlaveRoot
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1000, layouts=frozenset({"consume_queue", "index"})
)


@pytest.fixture
def vfs(clock: ManualClock) -> MemoryVfs:
    return MemoryVfs(clock)


@pytest.fixture
def root(vfs: MemoryVfs, clock: ManualClock) -> SlaveRoot:
    return SlaveRoot.of("/s", CONFIG, vfs, clock)
