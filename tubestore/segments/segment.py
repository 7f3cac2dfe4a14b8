"""One file of a shard: bytes from `start` to `end` of a data or index stream.

Invariants:
- bytes below `end` never change; a write goes to `end` and moves it only when all is there;
- a failed write is cut back; where that fails too, the next write goes over what it left;
- `synced_end <= end`; a failed sync is remembered by the shard, not here.

Guards: appends, syncs and seals come from one thread at a time (the shard's flush lock); reads come
from any thread, and stay below an `end` that they took before.
"""

from __future__ import annotations

import contextlib
from os.path import basename, dirname

from tubestore.core import trash
from tubestore.core.layout import Buffer
from tubestore.core.paths import join
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.record.names import INDEX_DIRECTORY
from tubestore.segments.digests import digests_path, drop_digests

#: Reads of at least this many bytes go through a map, shorter ones through pread.
MAPPED_READ_MIN = 64 << 10


class FileSegment:
    """A file named by the absolute offset of its first byte."""

    __slots__ = ("_vfs", "_view", "end", "file", "path", "sealed", "shortened",
                 "start", "synced_end")  # fmt: skip

    def __init__(
        self, file: VfsFile, start: int, size: int, *, sealed: bool, vfs: Vfs | None = None
    ) -> None:
        self.file, self.path, self.start = file, file.path, start
        self._vfs = vfs
        self.end = start + size
        self.synced_end = start
        self.sealed = sealed
        #: Cut since the last sync: a power cut could bring back the bytes behind `end`.
        self.shortened = False
        self._view = memoryview(b"")

    @property
    def size(self) -> int:
        """Bytes in the segment."""
        return self.end - self.start

    def append(self, data: Buffer) -> None:
        """Write `data` at the end (page cache); OSError leaves the segment as it was."""
        try:
            self.file.pwrite(data, self.end - self.start)
        except OSError:
            with contextlib.suppress(OSError):
                self.file.truncate(self.end - self.start)
            raise
        self.end += len(data)

    def restore(self, data: Buffer, offset: int) -> None:
        """Write bytes again that were lost: at the end, or over what is no record (recovery)."""
        self.overwrite(data, offset)
        self.end = max(self.end, offset + len(data))
        self.synced_end = min(self.synced_end, offset)
        if self.sealed:
            self.file.sync()  # it is not synced again

    def overwrite(self, data: Buffer, offset: int) -> None:
        """Write over existing bytes (recovery); the caller syncs it."""
        if self.sealed and self._vfs is not None:
            drop_digests(self._vfs, digests_path(self.path, self.start))
        self.file.pwrite(data, offset - self.start)

    def sync(self) -> int:
        """Bring everything appended so far to stable storage; returns the offset that is safe."""
        end = self.end
        if self.synced_end < end or self.shortened:
            self.shortened = False
            self.file.sync()
            self.synced_end = end
        return end

    def cut(self, end: int) -> None:
        """Cut the file at `end`: no reader has seen what is behind it (decisions.md D10)."""
        self.file.truncate(end - self.start)
        self.end = end
        self.shortened = True
        self.synced_end = min(self.synced_end, end)
        self._view = memoryview(b"")

    def adopt(self, size: int) -> None:
        """Take over `size` bytes that were written behind the end, and synced."""
        self.end += size
        self.synced_end = self.end

    def grown_to(self, size: int) -> None:
        """Take over the size of a file that another process may have written to."""
        self.end = self.start + size
        self._view = memoryview(b"")  # the other process may have cut it, too

    def seal(self) -> None:
        """Mark it as sealed: nothing is appended any more."""
        self.sealed = True

    def view(self, end: int) -> memoryview:
        """Return the bytes from `start` to `end`, mapped; valid as long as it is held."""
        size = end - self.start
        view = self._view
        if len(view) < size:
            # A live segment is mapped as far as it has grown, and again when it is twice as long
            # or asked for more: only written bytes, never a sparse tail.
            view = self._view = self._map(self.end - self.start)
        return view[:size]

    def _map(self, size: int) -> memoryview:
        try:
            return self.file.view(size)
        except FileNotFoundError as error:
            self._find_again(error)
            return self.file.view(size)

    def read(self, offset: int, size: int) -> Buffer:
        """Return up to `size` bytes at the absolute `offset`."""
        position = offset - self.start
        size = min(size, self.end - offset)
        if len(self._view) >= position + size:
            return self._view[position : position + size]
        if size >= MAPPED_READ_MIN:
            return self.view(self.end)[position : position + size]
        try:
            return self.file.pread(size, position)
        except FileNotFoundError as error:
            self._find_again(error)
            return self.file.pread(size, position)

    def read_at(self, position: int, size: int) -> Buffer:
        """As `read`, at a position in the file."""
        return self.read(self.start + position, size)

    def _find_again(self, error: FileNotFoundError) -> None:
        """Find the file where retention has moved it to; raises `error` if it is gone."""
        path = find_moved(self._vfs, self.path) if self._vfs is not None else None
        if path is None:
            raise error
        self.moved_to(path)

    def moved_to(self, path: str) -> None:
        """Take note that the file has another name now."""
        self.path = path
        self.file.moved_to(path)

    def close(self) -> None:
        """Give the descriptor back; views stay valid."""
        self.file.close()


def find_moved(vfs: Vfs, path: str) -> str | None:
    """Return the path of a segment that is no longer at `path`; None if it is gone.

    It is in its shard's trash, or in the root's with the whole shard.
    """
    shard, inside = dirname(path), basename(path)
    if basename(shard) == INDEX_DIRECTORY:
        shard, inside = dirname(shard), join(INDEX_DIRECTORY, inside)
    found = trash.latest(vfs, trash.trash_of(shard), basename(path))
    if found is not None:
        return found
    moved = trash.latest(vfs, trash.trash_of(dirname(shard)), basename(shard))
    if moved is None:
        return None
    if vfs.exists(join(moved, inside)):
        return join(moved, inside)
    return trash.latest(vfs, trash.trash_of(moved), basename(path))
