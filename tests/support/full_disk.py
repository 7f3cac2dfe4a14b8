"""A disk that runs full and has room again: writes into holes fail, writes over blocks do not."""

from __future__ import annotations

import errno
import os
from typing import Any

from tubestore.core.layout import Buffer
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.testing import FaultyVfs
from tubestore.testing.faults import FaultyFile

BLOCK = 4096


class KilledBySigbus(BaseException):
    """A write through a map to a block for which there is no room: the process would be dead."""


class FullDisk(FaultyVfs):
    """A file system whose free blocks can be taken away and given back."""

    def __init__(self, inner: Vfs) -> None:
        super().__init__(inner)
        #: Blocks that are left; None: as many as are wanted.
        self.left: int | None = None

    def fill(self, left: int = 0) -> None:
        """Leave so many free blocks."""
        self.left = left

    def free(self) -> None:
        """Have room again."""
        self.left = None

    def take(self, path: str) -> None:
        """Take a block, or raise ENOSPC."""
        if self.left is not None:
            if not self.left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            self.left -= 1

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> FullFile:
        """Open a file; one that is made takes a block."""
        if create:
            self.take(path)
        return FullFile(self, self.inner.open(path, create=create, writable=writable))

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write a small file whole, which takes a block."""
        self.take(path)
        super().replace_file(path, data, sync=sync)


class FullFile(FaultyFile):
    """A file of such a disk; blocks with a byte that is not zero, or allocated, are on the disk."""

    def __init__(self, vfs: FullDisk, inner: VfsFile) -> None:
        super().__init__(vfs, inner)
        self._disk, self._blocks = vfs, set[int]()

    def _take(self, position: int, size: int) -> int:
        """Take the blocks of a write; returns how many of its bytes there is room for."""
        for block in range(position // BLOCK, -(-(position + size) // BLOCK)):
            if block in self._blocks:
                continue
            if self._inner.pread(BLOCK, block * BLOCK).strip(b"\0"):
                self._blocks.add(block)
                continue
            try:
                self._disk.take(self.path)
            except OSError:
                return max(0, block * BLOCK - position)
            self._blocks.add(block)
        return size

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write as much as there is room for, then fail."""
        raw = memoryview(data).cast("B")
        room = self._take(position, len(raw))
        super().pwrite(raw[:room], position)
        if room < len(raw):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def allocate(self, size: int) -> None:
        """Take the blocks of the first bytes."""
        if self._take(0, size) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        super().allocate(size)

    def shared_map(self, size: int, *, fill: bool = False) -> Any:
        """Map the first bytes."""
        return FullMap(self, super().shared_map(size))


class FullMap:
    """A map of such a file."""

    def __init__(self, file: FullFile, inner: Any) -> None:
        self._file, self._inner = file, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, data: Buffer, position: int) -> None:
        """Write to blocks that are there."""
        if self._file._take(position, len(data)) < len(data):
            raise KilledBySigbus
        self._inner.write(data, position)
