"""One file of a RocketMQ store: full-size from the start, written by position.

RocketMQ maps its files; here they are written by position (D10). A sparse file that is mapped and
read ahead fills memory with zero pages, and a sync through a map holds the interpreter lock.
RocketMQ's way is an option (`mmap_file.py`). The positions have RocketMQ's names.

Always true:
- `flushed_position <= wrote_position <= file_size`; what is below `wrote_position` may be
  read, what is below `flushed_position` is on stable storage;
- a write that failed moves no position and leaves no bytes behind the position it began at; if
  they could not be zeroed for want of room, they are before the next write.

One thread writes at a time (the owner's lock); any thread may read or sync.
"""

from __future__ import annotations

import contextlib
import errno
import os

import numpy as np

from tubestore.core.layout import Buffer
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.errors import is_disk_full

#: Behind a cut, data is read and zeroed in steps of this many bytes.
_ZERO_STEP = 256 * 1024
#: The first ones are shorter: most files are cut where their data ends.
_ZERO_FIRST = 16 * 1024


class MappedFile:
    """A file of fixed size, named by the offset of its first byte."""

    __slots__ = ("_file", "_left_to", "_view", "file_from_offset", "file_size",
                 "flushed_position", "path", "wrote_position")  # fmt: skip

    def __init__(self, file: VfsFile, file_from_offset: int, file_size: int, wrote: int) -> None:
        self._file, self.path = file, file.path
        self.file_from_offset, self.file_size = file_from_offset, file_size
        self.wrote_position = wrote
        self.flushed_position = 0
        self._view: memoryview | None = None
        #: Up to here a failed write left bytes that could not be zeroed; 0 if none did.
        self._left_to = 0

    @classmethod
    def create(cls, vfs: Vfs, path: str, file_from_offset: int, file_size: int) -> MappedFile:
        """Create it with all its bytes as a hole; it has its full length when it gets its name.

        A broker does not start beside a file of another length, so a kill must leave none in the
        directory. A file in the making is beside the directory, where RocketMQ does not look.
        Raises OSError without room for it; then no file is left.
        """
        unborn = f"{os.path.dirname(path)}.new"
        try:
            file = vfs.open(unborn, create=True)
        except FileExistsError:  # a process was killed while it made one
            vfs.remove(unborn)
            file = vfs.open(unborn, create=True)
        try:
            cls._make_room(file, file_size)
            vfs.rename(unborn, path)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                vfs.remove(unborn)
            raise
        file.moved_to(path)
        return cls(file, file_from_offset, file_size, 0)

    @staticmethod
    def _make_room(file: VfsFile, file_size: int) -> None:
        """Give a new file its length, as a hole."""
        file.truncate(file_size)

    @property
    def committed_position(self) -> int:
        """As `wrote_position`; lower for a file with a transient buffer (`transient_pool.py`)."""
        return self.wrote_position

    @property
    def end_offset(self) -> int:
        """Offset of the byte behind the last one that was written."""
        return self.file_from_offset + self.wrote_position

    @property
    def end_of_file(self) -> int:
        """Offset of the byte behind the last one that fits in."""
        return self.file_from_offset + self.file_size

    @property
    def is_full(self) -> bool:
        """True if no byte is left."""
        return self.wrote_position == self.file_size

    def append(self, data: Buffer, claim: int | None = None) -> int:
        """Write at `wrote_position`; returns the position written at.

        `claim` moves the position further than the data (a blank record claims the rest).
        On OSError nothing has changed, and a later append may try again; see `WriteLeft`.
        """
        position = self.wrote_position
        end = position + len(data)
        if end > self.file_size:
            raise ValueError(f"{self.path}: {len(data)} bytes do not fit at {position}")
        self._write(data, position)
        self.wrote_position = end if claim is None else position + claim
        return position

    def write_at(self, position: int, data: Buffer) -> None:
        """Write anywhere; the written prefix grows to the end of the data if that is further."""
        end = position + len(data)
        if end > self.file_size:
            raise ValueError(f"{self.path}: {len(data)} bytes do not fit at {position}")
        self._file.pwrite(data, position)
        # What was flushed below is dirty again.
        self.flushed_position = min(self.flushed_position, position)
        self.wrote_position = max(self.wrote_position, end)

    def read(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes of the written prefix."""
        size = min(size, self.wrote_position - position)
        return self._file.pread(size, position) if size > 0 else b""

    def view(self, end: int) -> memoryview:
        """Map the written prefix, of which [0, end) is wanted; valid also after close and unlink.

        The map is kept, and used again as long as it reaches to `end`; what is not written yet
        is never read through it (D10).
        """
        view = self._view
        if view is None or len(view) < end:
            view = self._view = self._file.view(min(self.wrote_position, self._file.size()))
        return view[:end]

    def next_data(self, position: int) -> int | None:
        """Return the next position that may hold data, None if only a hole follows."""
        found = self._file.next_data(position)
        return None if found is None or found >= self.file_size else found

    def has_data(self, position: int) -> bool:
        """True if there is a byte that is not zero at a position or behind it."""
        data = self.next_data(position)
        while data is not None:
            end = min(data + _ZERO_STEP, self.file_size)
            if any(self._file.pread(end - data, data)):
                return True
            data = self.next_data(end) if end < self.file_size else None
        return False

    def sync(self) -> bool:
        """Bring what is written to stable storage; False if there was nothing to do."""
        wrote = self.wrote_position
        if wrote == self.flushed_position:
            return False
        self._file.sync()
        self.flushed_position = wrote
        return True

    def cut(self, position: int) -> int:
        """Drop everything from `position` on: zero it and go back; returns the bytes zeroed.

        It is zeroed and not truncated, since readers may have mapped the file. It is never left as
        it is: a later recovery would take stale bytes for good ones.
        """
        zeroed = self.zero_behind(position)
        self.wrote_position = position
        self.flushed_position = min(self.flushed_position, position)
        self._view = None
        return zeroed

    def zero_behind(self, position: int, limit: int | None = None) -> int:
        """Zero every byte from `position` on that is not zero; returns how many.

        `limit`: up to there only.

        Goes from the end to the front: after a crash in between the chain still ends at `position`,
        or at a record that the next recovery cuts in the same way.
        """
        steps = []
        limit = self.file_size if limit is None else limit
        data: int | None = self.next_data(position)
        step = _ZERO_FIRST
        while data is not None and data < limit:
            end = min(data - data % step + step, limit)
            steps.append((data, end))
            data = self.next_data(end) if end < limit else None
            step = min(2 * step, _ZERO_STEP)
        zeroed = 0
        for start, end in reversed(steps):
            content = self._file.pread(end - start, start)
            used = _used(content)
            if used:
                self._file.pwrite(bytes(used), start)
                self.flushed_position = min(self.flushed_position, start)
                zeroed += used
        return zeroed

    def sync_always(self) -> None:
        """Sync even if no position moved (after zeroing)."""
        self._file.sync()
        self.flushed_position = self.wrote_position

    def close(self) -> None:
        """Give the descriptor back; views stay valid."""
        self._file.close()

    def _write(self, data: Buffer, position: int) -> None:
        """Write at the end of the data; a write that fails leaves no bytes."""
        if self._left_to:
            self._zero(position, self._left_to)
        try:
            self._file.pwrite(data, position)
        except OSError as error:
            self._undo(position, position + len(data), error)
            raise

    def _undo(self, start: int, end: int, cause: OSError) -> None:
        """Undo a failed write: its bytes must not be found behind a shorter record later.

        Only bytes that arrived are zeroed: on a full disk, zeros in a hole would find no room
        either.
        """
        try:
            self._zero(start, end)
        except OSError as error:
            if not has_no_room(error):
                raise LeftOver(self.path, str(error)) from cause
            self._left_to = max(self._left_to, end)
            raise WriteLeft(cause.errno, cause.strerror, self.path) from cause

    def _zero(self, start: int, end: int) -> None:
        self.zero_behind(start, end)
        self._left_to = 0


def _used(content: bytes) -> int:
    """Return the length of `content` without the zeros at its end; a hundred times `rstrip`."""
    whole = len(content) - len(content) % 8
    words = np.flatnonzero(np.frombuffer(content, np.int64, whole // 8))
    if any(content[whole:]):
        return len(content.rstrip(b"\0"))
    return len(content[: 8 * int(words[-1]) + 8].rstrip(b"\0")) if len(words) else 0


def has_no_room(error: OSError) -> bool:
    """True if a write failed for want of room: of the disk, of a quota or of a file's size."""
    return is_disk_full(error) or error.errno == errno.EFBIG


class WriteLeft(OSError):
    """A write failed for want of room, and the bytes that arrived could not be zeroed.

    They are zeroed before the next write of the file. Until then, a process that opens the file may
    find whole records there.
    """


class LeftOver(Exception):
    """A write failed in the middle and its bytes could not be zeroed: the owner must stop."""

    def __init__(self, path: str, cause: str) -> None:
        super().__init__(path, cause)
        self.path, self.cause = path, cause
