"""An index as the specification has it, key by key; services, batches and keys for its tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from rocketcompat.index.index_service import IndexService
from rocketcompat.index.items import IndexGeometry
from tubestore.clock import ManualClock
from tubestore.core.vfs import Vfs

DIRECTORY = "/store/index"
Key = tuple[int, int, int]  # hash, physical offset, store time


@dataclass
class OneByOne:
    """The rules of `IndexFile` and `IndexService`, one key after the other, over files."""

    slots: int
    items: int
    files: list[bytearray] = field(default_factory=list)
    begin: list[int] = field(default_factory=lambda: [0, 0])  # time, offset
    end: list[int] = field(default_factory=lambda: [0, 0])
    used: int = 0
    count: int = 1

    def make_room(self) -> None:
        if not self.files or self.count >= self.items:
            self.begin, self.end = list(self.end), list(self.end)
            self.used, self.count = 0, 1
            self.files.append(bytearray(40 + 4 * self.slots + 20 * self.items))
            self._header(0)

    def put(self, key: Key) -> None:
        self.make_room()
        raw, (hash_, offset, time) = self.files[-1], key
        slot_at = 40 + 4 * (hash_ % self.slots)
        (previous,) = struct.unpack_from(">i", raw, slot_at)
        seconds = 0 if self.begin[0] <= 0 else max(0, (time - self.begin[0]) // 1000)
        at = 40 + 4 * self.slots + 20 * self.count
        struct.pack_into(">iqii", raw, at, hash_, offset, min(seconds, 2**31 - 1), previous)
        struct.pack_into(">i", raw, slot_at, self.count)
        if self.count <= 1:
            self.begin = [time, offset]
        self.used += previous == 0
        self.count += 1
        self.end = [time, offset]
        self._header(self.count)

    def _header(self, count: int) -> None:
        values = (self.begin[0], self.end[0], self.begin[1], self.end[1], self.used, count)
        struct.pack_into(">qqqqii", self.files[-1], 0, *values)


def service_of(vfs: Vfs, slots: int = 7, items: int = 12, **options: Any) -> IndexService:
    service = IndexService(vfs, DIRECTORY, IndexGeometry(slots, items), ManualClock(), **options)
    service.load()
    return service


def batch_of(keys: Sequence[Key], end: int | None = None) -> Any:
    """What the service reads of a DispatchBatch: one row a distinct physical offset."""
    offsets = sorted({offset for _, offset, _ in keys})
    times = {offset: time for _, offset, time in keys}
    return SimpleNamespace(
        start=offsets[0] if offsets else 0,
        end=end if end is not None else offsets[-1] + 100,
        physical_offsets=np.array(offsets, np.int64),
        store_timestamps=np.array([times[o] for o in offsets], np.int64),
        key_rows=np.array([offsets.index(o) for _, o, _ in keys], np.int64),
        key_hashes=np.array([h for h, _, _ in keys], np.int32),
    )


def contents(vfs: Vfs) -> list[bytes]:
    return [vfs.read_file(f"{DIRECTORY}/{name}") for name, _, _ in vfs.entries(DIRECTORY)]


def messages(*counts: int, start: int = 0) -> list[list[Key]]:
    """Keys of messages 100 bytes and 700 ms apart, so many each."""
    found, number = [], 0
    for place, count in enumerate(counts):
        keys = []
        for _ in range(count):
            number += 1
            keys.append((number * 5 % 23, start + 100 * place, 1_700_000_000_000 + 700 * place))
        found.append(keys)
    return found
