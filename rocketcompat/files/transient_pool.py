"""Buffers in memory for the log's files: RocketMQ's `TransientStorePool`.

With the pool a put is acknowledged when its record is in a buffer. The buffers are copied to the
page cache ("committed") every 200 ms, in few large writes, and synced later. What is not committed
is never read, and is lost when the process dies.

A buffer is as large as a file, and its memory is taken as it is filled. RocketMQ locks the buffers
in memory; these may be swapped.

Always true: `flushed_position <= committed_position <= wrote_position`.

Guards: `TransientStorePool._lock` guards the free buffers, `BufferedFile._commit_lock` a copy
under way.
"""

from __future__ import annotations

import threading

from rocketcompat.files.mapped_file import MappedFile
from tubestore.core.layout import Buffer
from tubestore.core.vfs import Vfs, VfsFile


class TransientStorePool:
    """A fixed number of buffers; a file that gets none is written directly."""

    def __init__(self, count: int, file_size: int) -> None:
        self._lock = threading.Lock()
        self._left, self._file_size = count, file_size
        self._free: list[bytearray] = []

    @property
    def available(self) -> int:
        """How many buffers can be borrowed now."""
        with self._lock:
            return self._left + len(self._free)

    def borrow(self) -> bytearray | None:
        """Return a buffer with any content; None if all are in use."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if not self._left:
                return None
            self._left -= 1
        return bytearray(self._file_size)

    def give_back(self, buffer: bytearray) -> None:
        """Take a buffer back."""
        with self._lock:
            self._free.append(buffer)

    def new_file(self, vfs: Vfs, path: str, start: int, file_size: int) -> MappedFile:
        """Create a file that is written through a buffer, if there is one left."""
        file = BufferedFile.create(vfs, path, start, file_size)
        assert isinstance(file, BufferedFile)
        file.use(self)
        return file


class BufferedFile(MappedFile):
    """A file with appends that go to a buffer until `commit`."""

    __slots__ = ("_buffer", "_commit_lock", "_committed", "_data_end", "_pool")

    def __init__(self, file: VfsFile, file_from_offset: int, file_size: int, wrote: int) -> None:
        super().__init__(file, file_from_offset, file_size, wrote)
        self._commit_lock = threading.Lock()
        self._buffer: bytearray | None = None
        self._pool: TransientStorePool | None = None
        self._committed = self._data_end = wrote

    def use(self, pool: TransientStorePool) -> None:
        """Take a buffer; without one the file is written directly."""
        self._pool, self._buffer = pool, pool.borrow()

    @property
    def committed_position(self) -> int:
        """End of the part that was copied to the file, and may be read."""
        return self._committed if self._buffer is not None else self.wrote_position

    def append(self, data: Buffer, claim: int | None = None) -> int:
        """Put into the buffer at `wrote_position`; returns the position."""
        buffer = self._buffer
        if buffer is None:
            return super().append(data, claim)
        position = self.wrote_position
        end = position + len(data)
        if end > self.file_size:
            raise ValueError(f"{self.path}: {len(data)} bytes do not fit at {position}")
        buffer[position:end] = data
        self._data_end = end
        self.wrote_position = end if claim is None else position + claim
        return position

    def commit(self) -> None:
        """Copy the buffer's content to the file; after an OSError it may be tried again."""
        with self._commit_lock:
            buffer, pool, start = self._buffer, self._pool, self._committed
            if buffer is None or pool is None:
                return
            wrote = self.wrote_position
            end = min(self._data_end, wrote)
            if end > start:
                self._write(memoryview(buffer)[start:end], start)
            self._committed = wrote
            if wrote == self.file_size:
                self._buffer = None
                pool.give_back(buffer)

    def read(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes of what is committed."""
        return super().read(position, min(size, self.committed_position - position))

    def sync(self) -> bool:
        """Bring what is committed to stable storage; False if there was nothing to do."""
        committed = self.committed_position
        if committed == self.flushed_position:
            return False
        self._file.sync()
        self.flushed_position = committed
        return True
