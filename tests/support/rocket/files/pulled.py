"""A small log, its queues and its index, as pulls and queries read them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from rocketcompat.commitlog.walk import NO_GAPS
from rocketcompat.index.index_service import IndexService
from rocketcompat.index.items import IndexGeometry, key_hash
from rocketcompat.messages import Message
from rocketcompat.options import MessageStoreConfig
from rocketcompat.queues.table import ConsumeQueueTable
from rocketcompat.reading.keys import look_message_by_offset
from rocketcompat.reading.pull import tag_codes
from rocketcompat.record.codec import encode_one
from rocketcompat.record.prepare import prepare
from rocketcompat.record.properties import keys_of
from tests.support.golden import Golden
from tubestore.clock import ManualClock
from tubestore.core.vfs import OsVfs
from tubestore.testing.memory_vfs import MemoryVfs

VERSIONS = ["4.9.8", "5.3.3"]


class FilesLog:
    """A log part over files that lie still."""

    def __init__(self, directory: Path, end: int) -> None:
        self._files = {int(path.name): path.read_bytes() for path in sorted(directory.iterdir())}
        self._size = len(next(iter(self._files.values())))
        self.min_offset, self.max_offset = min(self._files), end
        self.gaps, self.record_crc = NO_GAPS, False

    def read_at(self, physical_offset: int, size: int) -> bytes:
        start = physical_offset - physical_offset % self._size
        at = physical_offset - start
        return self._files.get(start, b"")[at : at + size]


class MemoryLog:
    """A log part of bytes."""

    min_offset = 0
    gaps, record_crc = NO_GAPS, False

    def __init__(self) -> None:
        self.data = b""

    @property
    def max_offset(self) -> int:
        return len(self.data)

    def read_at(self, physical_offset: int, size: int) -> bytes:
        return self.data[physical_offset : physical_offset + size]


def parts_of(real: Golden) -> Any:
    config = MessageStoreConfig.from_camel(real.meta["config"])
    (state,) = real.expected(type="store")
    vfs = OsVfs()
    queues = ConsumeQueueTable(
        vfs, str(real.store / "consumequeue"), config.consume_queue_file_size, writable=False
    )
    queues.load()
    queues.correct_min_offset(state["minPhyOffset"])
    geometry = IndexGeometry(config.max_hash_slot_num, config.max_index_num)
    index = IndexService(vfs, str(real.store / "index"), geometry, ManualClock(), writable=False)
    index.load()
    log = FilesLog(real.store / "commitlog", state["maxPhyOffset"])
    return SimpleNamespace(commit_log=log, queues=queues, index=index, config=config)


def small_store(*messages: Message, **options: Any) -> Any:
    """A store of one queue in memory."""
    config = MessageStoreConfig(**options)
    log, vfs = MemoryLog(), MemoryVfs()
    queues = ConsumeQueueTable(vfs, "/cq", config.consume_queue_file_size)
    index = IndexService(vfs, "/index", IndexGeometry(16, 400), ManualClock())
    queue = queues.find_or_create("T", 0)
    for number, message in enumerate(messages):
        prepared = prepare(message, config)
        offset, time = len(log.data), 1_000_000 + 400 * number
        log.data += encode_one(prepared, number, offset, time)
        tag = next(iter(tag_codes(message.tags) or {0}))
        queue.put_units(np.array([number]), [offset], [prepared.size], [tag])
        record = look_message_by_offset(SimpleNamespace(commit_log=log), offset)  # type: ignore[arg-type]
        assert record is not None
        keys = keys_of(record.properties)
        batch = SimpleNamespace(
            start=offset,
            end=len(log.data),
            physical_offsets=np.array([offset]),
            store_timestamps=np.array([time]),
            key_rows=np.zeros(len(keys), np.int64),
            key_hashes=np.array([key_hash("T", key) for key in keys], np.int32),
        )
        index.put(batch)  # type: ignore[arg-type]
    return SimpleNamespace(commit_log=log, queues=queues, index=index, config=config)
