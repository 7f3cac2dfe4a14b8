"""A store that counts what is put and read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.store.default_message_store import DefaultMessageStore
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=16,
    max_index_num=40,
    layouts=frozenset({"consume_queue", "index"}),
)


@pytest.fixture
def opened(memory_vfs: MemoryVfs, clock: ManualClock) -> Iterator[DefaultMessageStore]:
    """Ten messages, one a second, in two queues; each names its number as a property."""
    with rocketcompat.open(
        "/s", "w", CONFIG, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        for number in range(10):
            message = Message(
                "T", b"%d" % number, queue_id=number % 2, properties={"number": str(number)}
            )
            store.put_message(message)
            clock.advance(1000)
        store.flush()
        yield store
