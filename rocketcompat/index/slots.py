"""The hash table of an index file: for each slot the number of its newest item, 0 if none.

Only the part that is needed is in memory. A look-up in a file that is not written reads four bytes.
A file that is put into has the whole table in memory, and writes the pages that have changed.

Guards: none of its own; `IndexFile` ensures that slots and header are seen together. One thread
puts and flushes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rocketcompat.formats import INDEX_HEADER, INDEX_SLOT_SIZE
from rocketcompat.index.items import Int32s
from tubestore.core.kernels import Int64s
from tubestore.core.vfs import VfsFile

#: The table is written in pages of this many slots (4 KiB).
_PAGE_SLOTS = 1024
_SLOT_DTYPE = np.dtype(">i4")


class SlotTable:
    """The `count` slots of one file. OSError passes through."""

    def __init__(self, file: VfsFile, count: int) -> None:
        self._file, self._count = file, count
        self._table: Int32s | None = None
        #: True for each page that has changed; None if none has.
        self._changed: np.ndarray[Any, np.dtype[np.bool_]] | None = None

    @property
    def has_changed(self) -> bool:
        """True while there are changes to write."""
        return self._changed is not None

    def newest(self, key_hash: int) -> int:
        """Return the number of the newest item in a key's slot, as the slot contains it."""
        slot = key_hash % self._count
        if self._table is not None:
            return int(self._table[slot])
        raw = self._file.pread(INDEX_SLOT_SIZE, INDEX_HEADER.size + INDEX_SLOT_SIZE * slot)
        return int.from_bytes(raw, "big", signed=True)

    def load(self, index_count: int) -> Int32s:
        """Return the table, read when it is first needed; impossible numbers become 0."""
        if self._table is None:
            raw = self._file.pread(INDEX_SLOT_SIZE * self._count, INDEX_HEADER.size)
            table = np.frombuffer(raw, _SLOT_DTYPE).astype(np.int32)
            table[(table < 0) | (table >= index_count)] = 0
            self._table = table
        return self._table

    def make(self) -> None:
        """Begin with the slots of an empty file."""
        self._table = np.zeros(self._count, np.int32)

    def replace(self, table: Int32s) -> None:
        """Take another table, all of which is to be written."""
        self._table = table
        self._changed = np.ones(self._pages, bool)

    def touch(self, slots: Int64s) -> None:
        """Note that these slots change, before they do."""
        if self._changed is None:
            self._changed = np.zeros(self._pages, bool)
        self._changed[slots // _PAGE_SLOTS] = True

    def write(self) -> None:
        """Write runs of pages that have changed; they count as changed until `settle`."""
        assert self._table is not None
        assert self._changed is not None
        edges = np.flatnonzero(np.diff(np.concatenate(([0], self._changed.astype(np.int8), [0]))))
        for start, end in edges.reshape(-1, 2).tolist():
            run = self._table[start * _PAGE_SLOTS : end * _PAGE_SLOTS].astype(_SLOT_DTYPE)
            position = INDEX_HEADER.size + INDEX_SLOT_SIZE * _PAGE_SLOTS * start
            self._file.pwrite(run.tobytes(), position)

    def settle(self) -> None:
        """Mark everything as written."""
        self._changed = None

    def check_invariants(self, newest: Int32s) -> None:
        """Raise AssertionError unless the slots have these numbers, in the file too; for tests."""
        raw = self._file.pread(INDEX_SLOT_SIZE * self._count, INDEX_HEADER.size)
        stored = np.frombuffer(raw, _SLOT_DTYPE)
        if self._table is None:
            assert self._changed is None, "changes of a table that is not in memory"
            assert np.array_equal(stored, newest), "a slot of the file has another newest item"
            return
        assert np.array_equal(self._table, newest), "a slot has another newest item"
        pages = np.zeros(self._pages, bool) if self._changed is None else self._changed
        written = ~np.repeat(pages, _PAGE_SLOTS)[: self._count]
        same = stored[written] == newest[written]
        assert same.all(), "a slot was changed, and its page is not marked"

    def forget(self) -> None:
        """Give the memory back, if there is nothing to write."""
        if self._changed is None:
            self._table = None

    @property
    def _pages(self) -> int:
        return -(-self._count // _PAGE_SLOTS)
