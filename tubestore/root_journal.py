"""One file that takes a batch over many shards with one write, before each shard has its own (D6).

    <root>/.tubestore/journal

A frame is one batch: `JOURNAL_FRAME`, a `JOURNAL_PART` for each shard, the shards' names with
`\\n` in between, all index entries, all records; a part's entries and records follow each other
in the order of the parts, and are the bytes that the shard's own files will have. A frame counts
when its digest (xxh3 of everything behind the header) is right and its generation is that of the
first one. A generation begins with a frame of no parts, whose names are the boot of the machine
(the page cache lives as long as it), and ends when all its messages stand in the shards' files:
the next one is written over it.

It is read once by the next opening for writing, which gives each shard what it lacks, so a kill
loses nothing of it; and by readers beside the writer (`journal_overlay.py`).

Guards: the lock of `JournalledAppends`, held from placing a batch to writing its frame: frames
stand in the order of offsets.

Next to read: `journalled.py`, which fills it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import xxhash

from tubestore.filenames import JOURNAL_FILE, OWN_DIRECTORY, join
from tubestore.formats import INDEX_ENTRY, JOURNAL_FRAME, JOURNAL_MAGIC, JOURNAL_PART
from tubestore.layout import Buffer
from tubestore.vfs import Vfs, VfsFile

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]


class JournalPart(NamedTuple):
    """What a frame says of one shard: where its messages stand, their entries and records."""

    shard: str
    index_start: int
    data_start: int
    entries: Array
    data: Buffer


class LeftJournal(NamedTuple):
    """What a journal holds: its whole frames, which are all of one generation and boot."""

    generation: int
    boot_id: str
    #: Bytes of these frames.
    size: int
    parts: list[JournalPart]


class RootJournal:
    """The journal of a store that is open for writing."""

    def __init__(self, vfs: Vfs, root: str, generation: int) -> None:
        self._vfs = vfs
        self._boot_id = vfs.boot_id()
        self._directory = join(root, OWN_DIRECTORY)
        self.path = join(self._directory, JOURNAL_FILE)
        self.generation = generation
        self.size = 0
        self._file: VfsFile | None = None
        self._named = False

    def write(self, names: bytes, parts: Array, entries: Buffer, data: Buffer) -> None:
        """Append a frame, in the page cache when this returns; OSError leaves none.

        `parts`: a structured array, a row a shard, in the order of `entries` and `data`; `names`:
        their shards', joined by line feeds.
        """
        file = self._opened()
        front = self._front(names, parts.tobytes(), entries, data)
        if self.size == 0:
            front = self._front(self._boot_id.encode(), b"", b"", b"") + front
        file.pwrite(data, self.size + len(front))
        file.pwrite(front, self.size)  # last: it is what makes the frame count
        self.size += len(front) + len(data)

    def _front(self, names: bytes, parts: bytes, entries: Buffer, data: Buffer) -> bytes:
        """Return all of a frame but the records."""
        head = parts + names
        digest = xxhash.xxh3_64(head)
        digest.update(entries)
        digest.update(data)
        header = JOURNAL_FRAME.pack(
            magic=JOURNAL_MAGIC,
            parts=len(parts) // JOURNAL_PART.size,
            names_size=len(names),
            entries=len(entries) // INDEX_ENTRY.size,
            data_size=len(data),
            generation=self.generation,
            digest=digest.intdigest().to_bytes(8, "big"),
        )
        return b"".join((header, head, entries))

    def _opened(self) -> VfsFile:
        if self._file is None:
            exists = self._vfs.exists(self.path)
            self._file = self._vfs.open(self.path, create=not exists)
        return self._file

    def sync(self) -> None:
        """Bring every frame to stable storage."""
        if self._file is not None:
            self._file.sync()
            if not self._named:
                self._vfs.sync_directory(self._directory)
                self._named = True

    def go_on(self, left: LeftJournal) -> None:
        """Write behind the frames of a process that was killed; OSError if that cannot be done."""
        file = self._opened()
        if file.size() > left.size:  # part of a frame
            file.truncate(left.size)
        self.generation, self.size = left.generation, left.size

    def begin_anew(self, generation: int) -> None:
        """Forget all frames: what they hold stands in the shards.

        The next frame is written over the first one. Old ones that a power cut brings back hold
        what the shards have, or had.
        """
        self.generation, self.size = generation, 0

    def forget(self) -> None:
        """Have no frame in the file either, durably; after `begin_anew`."""
        if self._file is not None:
            self._file.truncate(0)
            self._file.sync()

    def remove(self) -> None:
        """End with nothing in it, durably; what a store that was closed looks like."""
        self.close()
        if self._vfs.exists(self.path):
            self._vfs.remove(self.path)
            self._vfs.sync_directory(self._directory)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_journal(vfs: Vfs, root: str, known: LeftJournal | None = None) -> LeftJournal | None:
    """Return what the frames of a journal hold, in their order; None if there is none.

    Ends at the first frame that is not whole or belongs to an older generation. If the
    generation is that of `known`, which was read before, only with the parts that came since.
    """
    try:
        file = vfs.open(join(root, OWN_DIRECTORY, JOURNAL_FILE), writable=False)
    except FileNotFoundError:
        return None
    with contextlib.closing(file):
        first = _read_frame(file, 0)
        if first is None:
            return None
        boot_id = "" if first.header.parts else bytes(first.body).decode(errors="replace")
        generation, position = first.header.generation, 0
        if known is not None and known.generation == generation:
            position = known.size
        parts: list[JournalPart] = []
        while (frame := _read_frame(file, position)) and frame.header.generation == generation:
            parts += frame.split()
            position += frame.size
    return LeftJournal(generation, boot_id, position, parts)


class _Frame(NamedTuple):
    header: Any
    body: memoryview

    @property
    def size(self) -> int:
        return JOURNAL_FRAME.size + len(self.body)

    def split(self) -> Iterator[JournalPart]:
        """Go through the parts; they share the frame's memory."""
        header, body = self.header, self.body
        parts = np.frombuffer(body, JOURNAL_PART.dtype, header.parts)
        names_at = parts.nbytes
        entries_at = names_at + header.names_size
        if not header.parts:
            return
        names = bytes(body[names_at:entries_at]).decode().split("\n")
        entries = np.frombuffer(body, INDEX_ENTRY.dtype, header.entries, entries_at)
        row, at = 0, entries_at + entries.nbytes
        for name, (count, index_start, data_start, size) in zip(names, parts.tolist(), strict=True):
            mine = entries[row : row + count]
            yield JournalPart(name, index_start, data_start, mine, body[at : at + size])
            row, at = row + count, at + size


def _read_frame(file: VfsFile, position: int) -> _Frame | None:
    raw = file.pread(JOURNAL_FRAME.size, position)
    if len(raw) < JOURNAL_FRAME.size:
        return None
    header = JOURNAL_FRAME.unpack_from(raw)
    sizes = (header.parts, header.names_size, header.entries, header.data_size)
    if header.magic != JOURNAL_MAGIC or min(sizes) < 0:
        return None
    size = header.parts * JOURNAL_PART.size + header.names_size
    size += header.entries * INDEX_ENTRY.size + header.data_size
    if position + JOURNAL_FRAME.size + size > file.size():  # before memory is asked for
        return None
    body = file.pread(size, position + JOURNAL_FRAME.size)
    if xxhash.xxh3_64_intdigest(body).to_bytes(8, "big") != header.digest:
        return None
    return _Frame(header, memoryview(body))
