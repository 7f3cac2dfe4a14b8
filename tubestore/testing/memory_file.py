"""The bytes of a file in memory, and the handle on them; made by `MemoryVfs.open`."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import Protocol

from tubestore.core.layout import Buffer

#: A file takes room on a disk, and has holes, in blocks of this size.
BLOCK = 4096
#: A file that was viewed has room to grow in place, so that views go on showing it as maps do.
_VIEW_ROOM = 1 << 16
_NOT_ZERO = re.compile(rb"[^\0]")


def os_error(number: int, path: str) -> OSError:
    """Return the error that the system raises, as the subclass that it raises."""
    return OSError(number, os.strerror(number), path)


class Inode:
    """The bytes of a file. `data` may be shorter than `size`: the rest is zeros."""

    __slots__ = ("blocks", "data", "modified_ms", "number", "size", "viewed")

    def __init__(self, number: int, data: bytes, size: int, modified_ms: int) -> None:
        self.number, self.size, self.modified_ms = number, size, modified_ms
        self.viewed = False
        #: The blocks that the file takes on a disk of limited size; None where there is no limit.
        self.blocks: set[int] | None = None
        self.data: bytes | bytearray = data  # bytes until the first write: shared with other states

    def read(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes at `position`."""
        end = min(position + size, self.size)
        found = self.data[position:end]
        data = found if isinstance(found, bytes) else bytes(found)
        missing = end - position - len(data)
        return data + bytes(missing) if missing > 0 else data

    def write(self, data: Buffer, position: int) -> None:
        """Write in place where there is room."""
        end = position + len(data)
        self.reserve(end)
        self.data[position:end] = data  # type: ignore[index]
        self.size = max(self.size, end)

    def reserve(self, size: int) -> None:
        """Have a buffer of our own that reaches to `size`; views keep the one they have."""
        have = self.data
        if isinstance(have, bytearray) and len(have) >= size:
            return
        room = bytearray(max(size, 2 * len(have)) if isinstance(have, bytearray) else size)
        if len(room) < len(have):
            room = bytearray(len(have))
        room[: len(have)] = have
        self.data = room

    def cut(self, size: int) -> None:
        """Cut or grow; a cut leaves the bytes that views show."""
        if size < self.size:
            self.data = bytearray(self.data[:size])
            self.viewed = False
            if self.blocks is not None:
                self.blocks = {block for block in self.blocks if block * BLOCK < size}
        self.size = size

    def new_blocks(self, position: int, size: int) -> list[int]:
        """Return the blocks of a range, in order, that the file does not take yet."""
        assert self.blocks is not None
        blocks = range(position // BLOCK, -(-(position + size) // BLOCK))
        return [block for block in blocks if block not in self.blocks]


class Owner(Protocol):
    """The file system of a file: it finds the bytes again and orders what changes them."""

    def inode_at(self, path: str, /) -> Inode:
        """Return the bytes of the file that has this name now."""

    def write(self, inode: Inode, path: str, data: memoryview, position: int, /) -> None:
        """Write, and take note of it."""

    def cut(self, inode: Inode, path: str, size: int, /) -> None:
        """Cut or grow, and take note of it."""

    def sync(self, inode: Inode, path: str, /) -> None:
        """Take note that data and length are durable."""

    def allocate(self, inode: Inode, path: str, size: int, /) -> None:
        """Take room on the disk for the first `size` bytes."""

    def reserve(self, inode: Inode, size: int, /) -> None:
        """Have room for `size` bytes."""


class MemoryMap:
    """A shared map of a file in memory: a write is a `pwrite` of the journal, a sync a `sync`."""

    def __init__(self, vfs: Owner, path: str, inode: Inode, size: int) -> None:
        self._vfs, self._path, self._inode, self._size = vfs, path, inode, size

    def read(self, size: int, position: int) -> bytes:
        """Read `size` bytes at `position`."""
        return self._inode.read(min(size, self._size - position), position)

    def write(self, data: Buffer, position: int) -> None:
        """Write at `position`."""
        raw = memoryview(data).cast("B")
        if position + len(raw) > self._size:
            raise ValueError(f"{position + len(raw) - self._size} bytes behind the end of the map")
        if len(raw):
            self._vfs.write(self._inode, self._path, raw, position)

    def pieces_from(self, position: int) -> Callable[[Buffer], object]:
        """Return a function that writes pieces one behind the other, the first at `position`."""
        at = position

        def write(data: Buffer) -> None:
            nonlocal at
            self.write(data, at)
            at += len(data)

        return write

    def sync(self, start: int, end: int) -> None:
        """Sync the file; a range alone would promise less."""
        self._vfs.sync(self._inode, self._path)


class MemoryFile:
    """A file in memory; made by `MemoryVfs.open`."""

    __slots__ = ("_inode", "_number", "_vfs", "_writable", "path")

    def __init__(self, vfs: Owner, path: str, inode: Inode, writable: bool) -> None:
        self.path, self._vfs, self._writable = path, vfs, writable
        self._inode: Inode | None = inode
        self._number = inode.number

    def _hold(self) -> Inode:
        if self._inode is None:
            found = self._vfs.inode_at(self.path)
            if found.number != self._number:
                raise os_error(errno.ENOENT, self.path)
            self._inode = found
        return self._inode

    def size(self) -> int:
        """Bytes in the file now."""
        return self._hold().size

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes at `position`."""
        if size < 0 or position < 0:
            raise os_error(errno.EINVAL, self.path)
        return self._hold().read(size, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Read into a buffer from `position`."""
        found = self.pread(len(buffer), position)
        buffer[: len(found)] = found
        return len(found)

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`."""
        inode = self._hold()
        if not self._writable:
            raise os_error(errno.EBADF, self.path)
        if position < 0:
            raise os_error(errno.EINVAL, self.path)
        raw = memoryview(data).cast("B")
        if len(raw):
            self._vfs.write(inode, self.path, raw, position)

    def truncate(self, size: int) -> None:
        """Make the file `size` bytes long."""
        inode = self._hold()
        if size < 0 or not self._writable:
            raise os_error(errno.EINVAL, self.path)
        self._vfs.cut(inode, self.path, size)

    def sync(self) -> None:
        """Bring data and length to stable storage: here, record it in the journal."""
        self._vfs.sync(self._hold(), self.path)

    def let_go(self, size: int, position: int) -> None:
        """Do nothing: what is in memory is all there is."""

    def view(self, size: int) -> memoryview:
        """Return the first `size` bytes, read-only."""
        inode = self._hold()
        if size > inode.size:
            raise ValueError(f"a view of {size} bytes is longer than {self.path}")
        if not inode.viewed or size > len(inode.data):
            self._vfs.reserve(inode, max(_VIEW_ROOM, 4 * size))
            inode.viewed = True
        return memoryview(inode.data)[:size].toreadonly()

    def allocate(self, size: int) -> None:
        """Make the file `size` bytes long at least, with room on the disk for them."""
        inode = self._hold()
        if not self._writable:
            raise os_error(errno.EBADF, self.path)
        self._vfs.allocate(inode, self.path, size)
        if size > inode.size:
            self._vfs.cut(inode, self.path, size)

    def shared_map(self, size: int, *, fill: bool = False) -> MemoryMap:
        """Map the first `size` bytes, to read and to write."""
        inode = self._hold()
        if not self._writable:
            raise os_error(errno.EACCES, self.path)
        if not 0 < size <= inode.size:
            raise ValueError(f"a map of {size} bytes is longer than {self.path}")
        return MemoryMap(self._vfs, self.path, inode, size)

    def next_data(self, position: int) -> int | None:
        """Return the first position >= `position` that may hold data."""
        inode = self._hold()
        found = _NOT_ZERO.search(inode.data, position, inode.size)
        if found is None:
            return None
        return max(position, found.start() - found.start() % BLOCK)

    def close(self) -> None:
        """Let go; the object finds the file by its path when it is used again."""
        self._inode = None

    def is_current(self) -> bool:
        """True if its name still leads to this file."""
        try:
            return self._vfs.inode_at(self.path).number == self._number
        except OSError:
            return False

    def moved_to(self, path: str) -> None:
        """Take note of a renaming."""
        self.path = path
