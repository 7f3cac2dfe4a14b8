"""Read the entries and records of a shard's files as they lie, some at a time.

Reads with `pread` and maps nothing: in a map a writer that cuts a torn tail would kill this process
(decisions.md D10). Holds some MiB, whatever the size of the store.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tubestore.core import kernels
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.record.attributes import LENGTH_SIZE
from tubestore.record.layouts import DATA_HEADER, RECORD_SIZE_MAX, TOKEN_MESSAGE, record_size
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE, entries_in, has_attributes, inspect
from tubestore.record.search import RecordSearch
from tubestore.segments.listing import ShardFiles, StoredFile, chained
from tubestore.segments.lost_files import Piece, Places
from tubestore.segments.segment import find_moved

Array = np.ndarray[Any, Any]

#: Index entries and data bytes that are held at a time. They are decoded at once, and should still
#: be in the processor's cache: with 8 MiB decoding cost a third more.
CHUNK_ENTRIES = 32_768
WINDOW_BYTES = 1 << 20
#: Records this far apart are still read together: decoding costs by the window, and reading
#: what lies between one partition's records costs less.
_SLACK_BYTES = 1 << 20


class Window(NamedTuple):
    """Rows [first, end) of some entries and the bytes that hold their records, if a file does."""

    first: int
    end: int
    data: memoryview | None
    data_start: int


class ShardBytes:
    """Reads the files of a listing; holds one descriptor at a time. Not thread-safe."""

    def __init__(self, vfs: Vfs, shard: ShardFiles) -> None:
        self._vfs, self.shard = vfs, shard
        self._open: VfsFile | None = None
        self._opened = ""
        #: Where the bytes of the listed file begin in the open one.
        self._begins = 0
        #: The search for intact records, and its file.
        self._search: RecordSearch | None = None
        self._searched: StoredFile | None = None
        #: Data files that hold the records of another place, with the offset of the first one's
        #: entry and the reason.
        self.misplaced: dict[StoredFile, tuple[int, str]] = {}
        with contextlib.suppress(OSError):  # `check` reports what cannot be read
            self.misplaced = self._find_misplaced()
        data = tuple(file for file in shard.data if file not in self.misplaced)
        listed = chained(shard.data)[0]
        #: Files without what overlaps others, and what is misplaced (findings of `check`).
        self.index, self.data = chained(shard.index)[0], chained(data)[0]
        self._data_start = listed[0].start if listed else 0
        self._data_end = listed[-1].end if listed else 0
        self._start_list = [f.start for f in self.data]
        self._starts = np.array(self._start_list, np.int64)
        self._ends = np.array([f.end for f in self.data], np.int64)

    @cached_property
    def places(self) -> Places:
        """What compares the places of all files with what their records name."""
        return Places(map(self.piece, self.shard.index), map(self.piece, self.shard.data))

    def piece(self, file: StoredFile) -> Piece:
        """Return a file with what reads it."""
        return Piece(file.start, file.end, partial(self._read, file))

    def _find_misplaced(self) -> dict[StoredFile, tuple[int, str]]:
        found = self.places.misplaced
        return {file: found[file.start] for file in self.shard.data if file.start in found}

    @property
    def data_start(self) -> int:
        """The first data offset that is kept."""
        return self._data_start

    @property
    def data_end(self) -> int:
        """The offset after the last byte of data."""
        return self._data_end

    def close(self) -> None:
        """Give the descriptor back."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _file(self, file: StoredFile) -> VfsFile:
        if self._open is None or self._opened != file.path:
            self.close()
            self._begins = 0
            try:
                self._open = self._vfs.open(file.path, writable=False)
            except FileNotFoundError:
                # Since the listing its job was finished, or retention has moved it away.
                moved = file.final or find_moved(self._vfs, file.path)
                if not moved:
                    raise
                self._open = self._vfs.open(moved, writable=False)
                self._begins = file.begins
            self._opened = file.path
        return self._open

    def entries(self, start_at: int = 0) -> Iterator[tuple[int, Array]]:
        """Go through the index from an offset on: (offset of the first entry, some entries)."""
        for file in self.index:
            count = file.size // ENTRY_SIZE
            row = max(0, -(-(start_at - file.start) // ENTRY_SIZE))
            while row < count:
                some = min(CHUNK_ENTRIES, count - row)
                raw = self._pread(file, some * ENTRY_SIZE, row * ENTRY_SIZE)
                if len(raw) < ENTRY_SIZE:
                    break  # it was cut since it was listed
                yield file.start + row * ENTRY_SIZE, entries_in(raw)
                row += len(raw) // ENTRY_SIZE

    def windows(self, entries: Array) -> Iterator[Window]:
        """Split entries, in order, into stretches that have their records together, and read those.

        Rows that no file holds come as stretches without data.
        """
        if not len(entries):
            return
        starts = entries["data_offset"].astype(np.int64)
        sizes = entries["data_size"].astype(np.int64)
        ends = starts + sizes
        place = self._starts.searchsorted(starts, side="right") - 1
        inside = (place >= 0) & (starts >= 0) & (sizes > HEADER_SIZE) & (sizes <= RECORD_SIZE_MAX)
        inside &= entries["partition_id"] >= 0
        if self.data:
            inside &= ends <= self._ends[place]
        breaks = (inside[1:] != inside[:-1]) | (place[1:] != place[:-1]) & inside[1:]
        apart = (starts[1:] < ends[:-1]) | (starts[1:] > ends[:-1] + _SLACK_BYTES)
        breaks |= apart & inside[1:]
        bounds = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(entries)]
        for first, end in pairwise(bounds):
            if not inside[first]:
                yield Window(first, end, None, 0)
                continue
            while first < end:
                low = int(starts[first])
                stop = first + max(
                    1, int(ends[first:end].searchsorted(low + WINDOW_BYTES, "right"))
                )
                raw = self._read(self.data[place[first]], low, int(ends[stop - 1]) - low)
                yield Window(first, stop, memoryview(raw), low)
                first = stop

    def _read(self, file: StoredFile, offset: int, size: int) -> bytes:
        return self._pread(file, size, offset - file.start)

    def _pread(self, file: StoredFile, size: int, position: int) -> bytes:
        if file.content:
            return file.content[position : position + size]
        return self._file(file).pread(size, self._begins + position)

    def data_file(self, offset: int) -> StoredFile | None:
        """Return the data file that holds this offset."""
        place = bisect_right(self._start_list, offset) - 1
        return self.data[place] if place >= 0 and offset < self.data[place].end else None

    def portions(self, low: int, high: int) -> Iterator[tuple[StoredFile, int, int]]:
        """Go through the files that have bytes of [low, high): (file, from, to)."""
        for file in self.data:
            if file.start < high and file.end > low:
                yield file, max(low, file.start), min(high, file.end)

    def record_at(self, offset: int, limit: int | None = None) -> tuple[Any, str | None]:
        """Examine the record at a data offset, as `records.inspect` does; not beyond `limit`."""
        file = self.data_file(offset)
        if file is None:
            return None, "no file holds these bytes"
        end = file.end if limit is None else min(limit, file.end)
        raw = self._read(file, offset, min(HEADER_SIZE, end - offset))
        if len(raw) == HEADER_SIZE:
            header = DATA_HEADER.unpack_from(raw)
            size = record_size(header)
            if header.token == TOKEN_MESSAGE and HEADER_SIZE < size <= min(
                RECORD_SIZE_MAX, end - offset
            ):
                raw = self._read(file, offset, size)
                return inspect(raw, 0, size if len(raw) == size else len(raw))
        return (
            inspect(raw, 0, end - offset) if len(raw) == HEADER_SIZE else inspect(raw, 0, len(raw))
        )

    def bytes_at(self, offset: int, size: int) -> bytes:
        """Return bytes of the data from an offset on; fewer at the end of a file."""
        file = self.data_file(offset)
        return b"" if file is None else self._read(file, offset, size)

    def payload_of(self, offset: int, header: Any) -> bytes:
        """Return the payload of the whole record at a data offset."""
        file = self.data_file(offset)
        assert file is not None
        return self._read(file, offset + HEADER_SIZE, record_size(header) - HEADER_SIZE)

    def find_record(self, low: int, high: int, index_from: int) -> tuple[int, Any] | None:
        """Find the next intact record of [low, high) with a fitting index offset: (offset, header).

        See `RecordSearch`: the last result is kept for a search that goes on from there.
        """
        for file, first, end in self.portions(low, high):
            if self._search is None or self._searched is not file:
                self._searched = file
                self._search = RecordSearch(partial(self._read, file), file.start, file.end)
            start = self._search.find(first, end, index_from)
            if start is not None:
                raw = self._read(file, start, HEADER_SIZE)
                if len(raw) == HEADER_SIZE:  # it was not cut since
                    return start, DATA_HEADER.unpack_from(raw)
        return None


def misplaced_files(vfs: Vfs, shard: ShardFiles) -> dict[StoredFile, tuple[int, str]]:
    """Return the data files that hold the records of another place; see `ShardBytes.misplaced`."""
    bytes_ = ShardBytes(vfs, shard)
    bytes_.close()
    return bytes_.misplaced


def broken_attributes(entries: Array, data: memoryview, data_start: int) -> Array:
    """Return which records, all sound and all in `data`, have an impossible attribute length."""
    positions = entries["data_offset"].astype(np.int64) - data_start
    bytes_ = kernels.bytes_of(data)
    flags = kernels.gather(bytes_, positions + DATA_HEADER.position("flag"), np.dtype(">i4"))
    broken = np.zeros(len(entries), bool)
    rows = np.flatnonzero(has_attributes(flags))
    if len(rows):
        room = entries["data_size"][rows].astype(np.int64) - HEADER_SIZE - LENGTH_SIZE
        # Without room for a length another field is read and not used.
        places = np.where(room < 0, positions[rows], positions[rows] + HEADER_SIZE)
        lengths = kernels.gather(bytes_, places, np.dtype(">i4")).astype(np.int64)
        broken[rows] = (room < 0) | (lengths > room)
    return broken
