"""A store of small files that go after a while, and what is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tubestore
from tubestore.clock import ManualClock
from tubestore.record.records import ENTRY_SIZE
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import Topic
from tubestore.testing import MemoryVfs

HOUR = 3_600_000
#: Five messages of 100 bytes and their headers fill a data file, seven entries an index file.
SMALL: dict[str, Any] = {
    "segment_size_bytes": 5 * 152,
    "index_segment_size_bytes": 7 * ENTRY_SIZE,
}


def open_small(vfs: Any, clock: ManualClock, mode: Any = "w", **how: Any) -> MessageStoreManager:
    settings = {**SMALL, **how}
    return tubestore.open("/s", mode, vfs=vfs, clock=clock, background=False, **settings)


@pytest.fixture
def small(memory_vfs: MemoryVfs, clock: ManualClock) -> Iterator[MessageStoreManager]:
    with open_small(memory_vfs, clock) as store:
        yield store


def fill(topic: Topic, clock: ManualClock, count: int = 23, partition: int = 0) -> None:
    """Append a message an hour, each in the files; the last one is of now."""
    for number in range(count):
        if number:
            clock.advance(HOUR)
        topic.append(b"%0100d" % number, partition=partition)
        topic.flush()


def numbers(topic: Topic, partition: int = 0) -> list[int]:
    return [int(m.body or b"-1") for m in topic.read(partition, limit=10_000)]


def gone(rows: list[tubestore.SegmentRow], stream: str = "data") -> list[int]:
    return [row.start for row in rows if row.stream == stream and row.verdict == "goes"]
