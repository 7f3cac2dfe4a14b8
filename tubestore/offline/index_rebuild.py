"""Compare the index files of a shard with the rows that should be in them, and make new ones.

Rows come in order, from the first to the last that is kept; the files keep their starts. A file
in which nothing differs is not touched; one that does is written anew beside the old one
(`<name>.repair`) and takes its place at the end (decisions.md D10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tubestore.core.paths import join
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.record.names import INDEX_DIRECTORY, INDEX_SUFFIX, REPAIR_SUFFIX, segment_name
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.listing import ShardFiles, StoredFile

Array = np.ndarray[Any, Any]
#: Entries in a file where there is none that gives a size: TubeMQ's default.
_FILE_ENTRIES = 700_000
_COPY_BYTES = 8 << 20


@dataclass(slots=True)
class NewIndexFile:
    """An index file that differs from what it should be."""

    final: str
    start: int
    old: StoredFile | None
    #: First byte in the file that differs, and how many bytes of it are other or new ones.
    position: int
    changed: int = 0
    size: int = 0
    #: Bytes of the old file.
    before: int = 0
    #: The new file, if it was written.
    written: str = ""


class IndexRebuild:
    """Takes the rows of one shard; `finish` returns the files that differ.

    With `write` it makes new files.
    """

    def __init__(self, vfs: Vfs, shard: ShardFiles, *, write: bool) -> None:
        self._vfs, self._shard, self._write = vfs, shard, write
        self._directory = join(shard.directory, INDEX_DIRECTORY)
        self._files = list(shard.index)
        self._old: StoredFile | None = None
        self._old_file: VfsFile | None = None
        self._start = self._next = -1  # of the file that is compared now; where the next begins
        self._at = -1
        self._new: NewIndexFile | None = None
        self._new_file: VfsFile | None = None
        self.changed: list[NewIndexFile] = []

    def put(self, offset: int, entries: Array) -> None:
        """Take rows; each follows the one before it."""
        while len(entries):
            if self._at < 0 or self._at == self._next:
                self._begin(offset)
            count = len(entries)
            if self._next >= 0:
                count = min(count, (self._next - self._at) // ENTRY_SIZE)
            self._compare(entries[:count])
            offset += count * ENTRY_SIZE
            entries = entries[count:]

    def _begin(self, start: int) -> None:
        self._end_file()
        self._old = self._files.pop(0) if self._files and self._files[0].start == start else None
        self._start = self._at = start
        if self._files:
            self._next = self._files[0].start
        else:
            self._next = -1 if self._old else start + _FILE_ENTRIES * ENTRY_SIZE
        if self._old is not None:
            self._old_file = self._vfs.open(self._old.path, writable=False)

    def _compare(self, entries: Array) -> None:
        raw = np.ascontiguousarray(entries).tobytes()
        position = self._at - self._start
        self._at += len(raw)
        there = b"" if self._old_file is None else self._old_file.pread(len(raw), position)
        if there == raw:
            if self._new_file is not None:
                self._new_file.pwrite(raw, position)
            return
        same = min(len(there), len(raw)) // ENTRY_SIZE
        differs = np.frombuffer(raw, "V28", same) != np.frombuffer(there, "V28", same)
        rows = np.flatnonzero(differs)
        first = int(rows[0]) if len(rows) else same
        changed = len(rows) * ENTRY_SIZE + len(raw) - same * ENTRY_SIZE
        if self._new is None:
            self._differ(position + first * ENTRY_SIZE)
        assert self._new is not None
        self._new.changed += changed
        if self._new_file is not None:
            self._new_file.pwrite(raw, position)

    def _differ(self, position: int) -> None:
        """Note that the file differs from a position on; the bytes before it are copied."""
        final = self._old.path if self._old else ""
        if not final:
            final = join(self._directory, segment_name(self._start, INDEX_SUFFIX))
        before = self._old_file.size() if self._old_file is not None else 0
        self._new = NewIndexFile(final, self._start, self._old, position, before=before)
        self.changed.append(self._new)
        if not self._write:
            return
        if not self._vfs.exists(self._directory):
            self._vfs.make_directories(self._directory)
        self._new.written = final + REPAIR_SUFFIX
        if self._vfs.exists(self._new.written):
            self._vfs.remove(self._new.written)
        self._new_file = self._vfs.open(self._new.written, create=True)
        copied = 0
        while copied < position:
            assert self._old_file is not None
            data = self._old_file.pread(min(_COPY_BYTES, position - copied), copied)
            self._new_file.pwrite(data, copied)
            copied += len(data)

    def _end_file(self) -> None:
        size = self._at - self._start
        if self._old_file is not None and self._new is None and self._old_file.size() > size:
            self._differ(size)
        if self._new is not None:
            self._new.size = size
        if self._new_file is not None:
            self._new_file.sync()
            self._new_file.close()
        if self._old_file is not None:
            self._old_file.close()
        self._new = self._new_file = self._old_file = None

    def finish(self, end: int) -> tuple[list[NewIndexFile], list[StoredFile]]:
        """End the index here. Returns the files that differ and the surplus ones."""
        if self._at < 0 and self._files:
            self._begin(self._files[0].start)
        if self._at >= 0:
            assert self._at == end
            self._end_file()
        return self.changed, self._files
