"""A store with many small sealed files side by side, as jobs of earlier versions left them."""

from __future__ import annotations

from typing import Any

import tubestore
from tubestore.clock import ManualClock
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.listing import find_shards
from tubestore.store.manager import MessageStoreManager
from tubestore.testing import MemoryVfs

ROOT = "/s"
HOUR = 3_600_000
#: Messages of 100 bytes with their headers: two fill a data file, three entries an index file.
TINY: dict[str, Any] = {"segment_size_bytes": 2 * 152, "index_segment_size_bytes": 3 * ENTRY_SIZE}
#: Twenty messages fill a data file, and an index file.
ROOMY: dict[str, Any] = {
    "segment_size_bytes": 20 * 152,
    "index_segment_size_bytes": 20 * ENTRY_SIZE,
}


def open_store(
    vfs: Any, clock: ManualClock, mode: Any = "w", **settings: Any
) -> MessageStoreManager:
    settings = {**ROOMY, **settings}
    return tubestore.open(ROOT, mode, vfs=vfs, clock=clock, background=False, **settings)


def body(number: int) -> bytes:
    return b"%0100d" % number


def fill(vfs: Any, clock: ManualClock, count: int = 40, **topic: Any) -> None:
    """Make a store with a message an hour in tiny files; the last ones are written to."""
    with open_store(vfs, clock, **TINY) as store:
        filled = store.create_topic("t", partitions=2, **topic)
        for number in range(count):
            clock.advance(HOUR)
            filled.append(body(number), partition=number % 2)
            filled.flush()


def small_files(count: int = 40, **topic: Any) -> tuple[MemoryVfs, ManualClock]:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    fill(vfs, clock, count, **topic)
    return vfs, clock


def rows(store: MessageStoreManager) -> list[dict[str, Any]]:
    """Every message of the store, with its place and time."""
    columns = ["partition", "offset", "body", "state", "received_time_ms", "msg_id"]
    return list(store["t"].scan(columns=columns, verify=True).read_all().to_pylist())


def files(vfs: Any, stream: str = "data") -> list[tuple[int, int]]:
    """(start, bytes) of the files of a stream."""
    (shard,) = find_shards(ROOT, vfs)
    return [(file.start, file.size) for file in getattr(shard, stream)]


def segments(vfs: MemoryVfs) -> dict[str, bytes]:
    """The segments that are in their places, with their bytes."""
    return {
        path: data
        for path, data in vfs.tree().items()
        if path.endswith((".tube", ".index")) and "/.tubestore/" not in path
    }
