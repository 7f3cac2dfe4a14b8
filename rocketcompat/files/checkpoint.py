"""The checkpoint: store times up to which each structure is on stable storage.

RocketMQ's `StoreCheckpoint`: 4096 bytes, five numbers, the rest zero. After a crash a
broker chooses by it where its recovery begins. So a time may be set only after everything up to it
was synced (trap 19). 0 is always safe: a broker then reads everything.

Guards: one thread flushes; the numbers may be set by any.
"""

from __future__ import annotations

import os

from rocketcompat.formats import CHECKPOINT, CHECKPOINT_FILE_SIZE
from tubestore.core.vfs import Vfs

#: A broker goes back by this much, since times of records are not quite in order.
MIN_TIMESTAMP_SLACK_MS = 3000


class StoreCheckpoint:
    """The five numbers; times are ms since the epoch, offsets physical."""

    def __init__(self, vfs: Vfs, path: str) -> None:
        """Read the file; a missing or short one counts as zeros."""
        self._vfs, self._path = vfs, path
        try:
            raw = vfs.read_file(path)[: CHECKPOINT.size]
        except FileNotFoundError:
            raw = b""
        row = CHECKPOINT.unpack_from(raw.ljust(CHECKPOINT.size, b"\0"))
        self.physic_msg_timestamp: int = row.physic_msg_timestamp
        self.logics_msg_timestamp: int = row.logics_msg_timestamp
        self.index_msg_timestamp: int = row.index_msg_timestamp
        self.master_flushed_offset: int = row.master_flushed_offset
        self.confirm_physical_offset: int = row.confirm_physical_offset

    @property
    def min_timestamp(self) -> int:
        """Time from which a broker's recovery of log and queues may begin."""
        least = min(self.physic_msg_timestamp, self.logics_msg_timestamp)
        return max(0, least - MIN_TIMESTAMP_SLACK_MS)

    @property
    def min_timestamp_index(self) -> int:
        """Time from which a broker's recovery may begin, the index included."""
        return min(self.min_timestamp, self.index_msg_timestamp)

    def lower(self, store_time: int, log_end: int) -> bool:
        """Lower the marks that are above the log's end; True if any was."""
        before = vars(self).copy()
        self.physic_msg_timestamp = min(self.physic_msg_timestamp, store_time)
        self.logics_msg_timestamp = min(self.logics_msg_timestamp, store_time)
        self.index_msg_timestamp = min(self.index_msg_timestamp, store_time)
        self.confirm_physical_offset = min(self.confirm_physical_offset, log_end)
        return vars(self) != before

    def flush(self, *, sync: bool = True) -> None:
        """Write the file in place.

        It is not replaced by a temporary file: only a store's own files may remain in the
        directory. 40 bytes at the start of a block are written at once or not at all.
        """
        row = CHECKPOINT.pack(
            physic_msg_timestamp=self.physic_msg_timestamp,
            logics_msg_timestamp=self.logics_msg_timestamp,
            index_msg_timestamp=self.index_msg_timestamp,
            master_flushed_offset=self.master_flushed_offset,
            confirm_physical_offset=self.confirm_physical_offset,
        )
        exists = self._vfs.exists(self._path)
        file = self._vfs.open(self._path, create=not exists)
        if file.size() != CHECKPOINT_FILE_SIZE:
            file.truncate(CHECKPOINT_FILE_SIZE)
        file.pwrite(row, 0)
        if sync:
            file.sync()
        file.close()
        if sync and not exists:
            self._vfs.sync_directory(os.path.dirname(self._path))
