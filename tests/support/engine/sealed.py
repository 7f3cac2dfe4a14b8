"""A store of sealed files and their digests, and what check finds in it."""

from __future__ import annotations

from typing import Any

import tubestore
from tests.support.tube import T0
from tubestore.clock import ManualClock
from tubestore.offline.check import Finding, check
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.testing import MemoryVfs

ROOT = "/store"

SHARD = f"{ROOT}/t-0"

OWN = f"{SHARD}/.tubestore"

FIRST = f"{SHARD}/{0:020d}.tube"

FIRST_INDEX = f"{SHARD}/index/{0:020d}.index"

DIGESTS = f"{OWN}/{0:020d}.tube.digests"

SETTINGS: dict[str, Any] = {
    "segment_size_bytes": 300,
    "index_segment_size_bytes": 5 * INDEX_ENTRY.size,
}


def open_store(vfs: MemoryVfs, **more: Any) -> tubestore.MessageStoreManager:
    clock = ManualClock(T0)
    return tubestore.open(ROOT, vfs=vfs, clock=clock, background=False, **SETTINGS, **more)


def filled(messages: int = 12) -> MemoryVfs:
    """A closed store whose first files of both streams are sealed."""
    vfs = MemoryVfs(ManualClock(T0))
    with open_store(vfs) as store:
        topic = store.create_topic("t")
        for n in range(messages):
            topic.append(b"message %04d" % n)
            topic.flush()
    return vfs


def found(vfs: MemoryVfs) -> list[Finding]:
    return list(check(ROOT, vfs=vfs, wait=lambda _: None))


def flip(vfs: MemoryVfs, path: str, position: int, bit: int = 1) -> None:
    file = vfs.open(path)
    (byte,) = file.pread(1, position)
    file.pwrite(bytes([byte ^ bit]), position)
