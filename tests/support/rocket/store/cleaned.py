"""A store with expired files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.store.clean_service import CleanService
from rocketcompat.store.cleaning import LogFile
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import opened_of
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs

HOUR = 3_600_000

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=16,
    max_index_num=12,
    layouts=frozenset({"consume_queue", "index"}),
    delete_when="",
)


def files(now: int, *ages: float) -> list[LogFile]:
    """Files of 1,000 bytes, changed so many hours ago."""
    return [
        LogFile(f"{place}", place * 1000, 1000, now - int(age * HOUR))
        for place, age in enumerate(ages)
    ]


class Disk:
    """How full the disk is said to be."""

    def __init__(self) -> None:
        self.percent = 50

    def __call__(self, path: str) -> int:
        return self.percent


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def filled(
    memory_vfs: MemoryVfs, clock: ManualClock, disk: Disk
) -> Iterator[tuple[DefaultMessageStore, CleanService]]:
    """A store of 100 messages in five files of the log, one written every hour."""
    with rocketcompat.open(
        "/s", "w", CONFIG, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        for number in range(100):
            topic = "old" if number < 10 else "T"
            store.put_message(Message(topic, b"x" * 80, keys=f"k{number}"))
            clock.advance(HOUR // 20)
        store.flush()
        cleaner = opened_of(store).cleaner
        cleaner._disk_used = disk
        yield store, cleaner
