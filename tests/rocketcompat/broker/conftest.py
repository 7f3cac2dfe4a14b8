"""A broker that is stepped: a store on a disk in memory, and a clock that a test sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rocketcompat
from rocketcompat import MessageStoreConfig
from rocketcompat.broker.broker import Broker, BrokerOptions
from rocketcompat.store.default_message_store import DefaultMessageStore
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1 << 16,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=16,
    max_index_num=400,
    layouts=frozenset({"consume_queue", "index"}),
)


def opened(vfs: MemoryVfs, clock: ManualClock, **options: Any) -> DefaultMessageStore:
    config = CONFIG.changed(**options)
    return rocketcompat.open("/s", "w", config, vfs=vfs, clock=clock, background=False)


def broker_over(store: Any, vfs: MemoryVfs, clock: ManualClock, **options: Any) -> Broker:
    given = BrokerOptions(**options)
    return Broker(store, options=given, background=False, vfs=vfs, clock=clock)


@pytest.fixture
def store(memory_vfs: MemoryVfs, clock: ManualClock) -> Iterator[DefaultMessageStore]:
    with opened(memory_vfs, clock) as store:
        yield store


@pytest.fixture
def broker(
    store: DefaultMessageStore, memory_vfs: MemoryVfs, clock: ManualClock
) -> Iterator[Broker]:
    with broker_over(store, memory_vfs, clock) as broker:
        yield broker
