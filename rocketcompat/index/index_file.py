"""One file of the key index: a header, a hash table of slots, and items chained by slot.

RocketMQ's `IndexFile`, byte for byte. Item numbers begin at 1, and `index_count`
is the number of the next free one, so a file holds `geometry.items - 1` items.

    0    INDEX_HEADER (40 bytes)
    40   slots, 4 bytes each: the number of the newest item of the slot, 0 if none
    …    items, 20 bytes each: item 0 is never used

RocketMQ maps the file and writes all three parts for every key. Here items and header are written
to the file at once, two writes a batch. The slots are kept in memory and written by `flush`. A
crash leaves whole items, and `recover` computes the rest.

Always true:
- an item is in the file before a slot or the count in memory refers to it;
- all items below `index_count` are there and their chains are exact.

Guards: `_lock` guards slots and header against being seen apart. One thread puts and flushes; any
thread may select. Items are immutable once counted, so chains are walked without the lock.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import Any

import numpy as np

from rocketcompat.formats import INDEX_HEADER, INDEX_ITEM
from rocketcompat.index.examine import (
    Examined,
    data_behind,
    examine,
    header_after_examination,
)
from rocketcompat.index.items import (
    Chains,
    IndexGeometry,
    IndexHeader,
    Int32s,
    link_chains,
    time_differences,
)
from rocketcompat.index.slots import SlotTable
from tubestore.core.kernels import Int64s
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.errors import CorruptRecord

_ITEM = INDEX_ITEM.struct


class IndexFile:
    """One index file, opened or made by `IndexService`.

    Times are ms, positions and offsets bytes. OSError passes through; after one from
    `put_keys` nothing has changed and the same call may be made again.
    """

    def __init__(self, file: VfsFile, geometry: IndexGeometry) -> None:
        self.path, self.geometry = file.path, geometry
        self._file = file
        self._lock = threading.Lock()
        self._slots = SlotTable(file, geometry.slots)
        self._view: memoryview = memoryview(b"")
        self.unsynced = False
        #: Replaced and never changed: a thread that takes it sees one state.
        self.header = IndexHeader()

    @classmethod
    def create(
        cls, vfs: Vfs, path: str, geometry: IndexGeometry, end_of_last: tuple[int, int] = (0, 0)
    ) -> IndexFile:
        """Make an empty file, sparse; `end_of_last` is (physical offset, time) of the one before.

        RocketMQ writes these two into the new header as begin and end, and measures the first
        item's time difference from them; so does this.
        """
        file = vfs.open(path, create=True)
        index = cls(file, geometry)
        offset, time = end_of_last
        index.header = IndexHeader(time, time, offset, offset)
        index._slots.make()
        index.unsynced = True
        try:
            file.truncate(geometry.file_size)
            file.pwrite(index.header.pack(), 0)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                vfs.remove(path)
            raise
        return index

    @classmethod
    def load(cls, vfs: Vfs, path: str, geometry: IndexGeometry, writable: bool) -> IndexFile:
        """Open a file as its header describes it; CorruptRecord if that is not possible."""
        file = vfs.open(path, writable=writable)
        if file.size() != geometry.file_size:
            reason = f"{file.size()} bytes, but {geometry} takes {geometry.file_size}"
            raise CorruptRecord(path, 0, reason)
        index = cls(file, geometry)
        index.header = IndexHeader.unpack(file.pread(INDEX_HEADER.size, 0))
        if index.header.index_count > geometry.items:
            raise CorruptRecord(path, INDEX_HEADER.position("index_count"), str(index.header))
        return index

    @classmethod
    def load_short(cls, vfs: Vfs, path: str, geometry: IndexGeometry) -> IndexFile | None:
        """Open a file that lost its end, for `recover`; None if it may have another geometry.

        Its first item proves the geometry: the header has that item's physical offset, and the item
        begins its chain. A file that has all the items that its header counts, and no part of one,
        may have been made for fewer items.
        """
        file = vfs.open(path)
        if not geometry.item_position(2) <= file.size() < geometry.file_size:
            file.close()
            return None
        index = cls(file, geometry)
        header = IndexHeader.unpack(file.pread(INDEX_HEADER.size, 0))
        there, rest = divmod(file.size() - geometry.items_start, INDEX_ITEM.size)
        index.header = replace(header, index_count=min(header.index_count, there))
        found = index.examine(1 << 62)
        proved = found.kept and any(found.ends[0].tobytes())
        if not proved or (not rest and header.index_count <= there):
            file.close()
            return None
        return index

    @property
    def begin_timestamp(self) -> int:
        """Store time of the first item, ms."""
        return self.header.begin_timestamp

    @property
    def end_timestamp(self) -> int:
        """Store time of the last item, ms."""
        return self.header.end_timestamp

    @property
    def end_physical_offset(self) -> int:
        """Physical offset of the last item."""
        return self.header.end_physical_offset

    @property
    def index_count(self) -> int:
        """Number of the next free item."""
        return self.header.index_count

    @property
    def room(self) -> int:
        """How many keys can still be put."""
        return self.geometry.items - self.index_count

    def put_keys(
        self, key_hashes: Int32s, physical_offsets: Int64s, store_timestamps: Int64s
    ) -> None:
        """Append items, at most `room` of them; the bytes are those of one put after the other."""
        count = len(key_hashes)
        if count > self.room:
            raise ValueError(f"{self.path}: {count} keys, room for {self.room}")
        if count == 0:
            return
        table = self._slots.load(self.index_count)
        first_number = self.index_count
        slots = key_hashes.astype(np.int64) % self.geometry.slots
        chains = link_chains(table, slots, first_number)
        items = np.empty(count, INDEX_ITEM.dtype)
        items["key_hash"] = key_hashes
        items["physical_offset"] = physical_offsets
        items["time_diff_seconds"] = self._differences(store_timestamps)
        items["previous"] = chains.previous
        header = self._header_after(physical_offsets, store_timestamps, chains)
        self._file.pwrite(items.tobytes(), self.geometry.item_position(first_number))
        # Items are worth nothing without the time that they are measured from. From the items alone
        # recovery could not compute the last one's time to the ms.
        self._file.pwrite(header.pack(), 0)
        self.unsynced = True  # behind the writes: an earlier sync would not have seen them
        self._slots.touch(chains.slots)
        with self._lock:  # slots and count together, or a reader would lose a chain
            table[chains.slots] = chains.newest
            self.header = header

    def _header_after(
        self, physical_offsets: Int64s, store_timestamps: Int64s, chains: Chains
    ) -> IndexHeader:
        """Return the header with these items put."""
        old = self.header
        if old.index_count == 1:  # the first put replaces what an empty file's header has
            old = replace(
                old,
                begin_timestamp=int(store_timestamps[0]),
                begin_physical_offset=int(physical_offsets[0]),
            )
        return replace(
            old,
            end_timestamp=int(store_timestamps[-1]),
            end_physical_offset=int(physical_offsets[-1]),
            hash_slot_count=old.hash_slot_count + chains.new_slots,
            index_count=old.index_count + len(physical_offsets),
        )

    def _differences(self, store_timestamps: Int64s) -> Int32s:
        """Return the items' times; in an empty file the first is measured from the old begin."""
        if self.index_count > 1:
            return time_differences(store_timestamps, self.begin_timestamp)
        differences = time_differences(store_timestamps, int(store_timestamps[0]))
        differences[:1] = time_differences(store_timestamps[:1], self.begin_timestamp)
        return differences

    def is_time_matched(self, begin: int, end: int) -> bool:
        """True if the file's time span overlaps the window."""
        first, last = self.begin_timestamp, self.end_timestamp
        return (begin < first and end > last) or first <= begin <= last or first <= end <= last

    def select(self, key_hash: int, count_max: int, begin: int, end: int) -> list[int]:
        """Return physical offsets of a key, newest first, at most `count_max`.

        Times are whole seconds after the first item's, as stored. A key is a hash: other
        keys may be among them. A chain that leads outside the items ends there.
        """
        with self._lock:
            number, header = self._slots.newest(key_hash), self.header
        count, origin = header.index_count, header.begin_timestamp
        found: list[int] = []
        if number <= 0 or number >= count or count <= 1:
            return found
        items, start = self._items(count), self.geometry.items_start
        while len(found) < count_max:
            item = _ITEM.unpack_from(items, start + number * INDEX_ITEM.size)
            item_hash, physical_offset, seconds, previous = item
            stored = origin + seconds * 1000
            if seconds < 0:
                break
            if item_hash == key_hash and begin <= stored <= end:
                found.append(physical_offset)
            if not 0 < previous < number or stored < begin:
                break
            number = previous
        return found

    def candidates(self, key_hash: int, begin: int, end: int) -> list[int]:
        """Return physical offsets of all items of a hash that may lie in the window, newest first.

        Wider than `select`: items' times are truncated to the second, the first item's is
        measured from another origin, and times need not rise.
        """
        with self._lock:
            number, header = self._slots.newest(key_hash), self.header
        count, origin = header.index_count, header.begin_timestamp
        found: list[int] = []
        if count <= 1:
            return found
        items, start = self._items(count), self.geometry.items_start
        while 0 < number < count:
            item = _ITEM.unpack_from(items, start + number * INDEX_ITEM.size)
            item_hash, physical_offset, seconds, previous = item
            stored = origin + seconds * 1000
            fits = begin - 1000 < stored <= end or number == 1
            if item_hash == key_hash and fits:
                found.append(physical_offset)
            if previous >= number:
                break
            number = previous
        return found

    def select_many(self, key_hashes: Int32s) -> tuple[Int64s, Int64s]:
        """Return (place in `key_hashes`, physical offset) of all items of many keys, newest first.

        Walks all chains in step; no limit and no window. Rows are ordered by place.
        """
        table = self._slots.load(self.index_count)
        with self._lock:
            count = self.index_count
            current = table[key_hashes.astype(np.int64) % self.geometry.slots].astype(np.int64)
        items = self._item_rows(count)
        places = np.arange(len(key_hashes))
        found: list[tuple[Int64s, Int64s]] = []
        alive = (current > 0) & (current < count)
        while alive.any():
            places, current = places[alive], current[alive]
            rows = items[current]
            match = rows["key_hash"] == key_hashes[places]
            found.append((places[match], rows["physical_offset"][match].astype(np.int64)))
            previous = rows["previous"].astype(np.int64)
            alive = (previous > 0) & (previous < current)
            current = previous
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        all_places = np.concatenate([p for p, _ in found])
        order = np.argsort(all_places, kind="stable")
        return all_places[order], np.concatenate([o for _, o in found])[order]

    def check_invariants(self) -> None:
        """Raise AssertionError if header, items and slots contradict each other; for tests.

        For a file without damaged items.
        """
        assert 1 <= self.index_count <= self.geometry.items, "the header counts impossible items"
        items, numbers = self.items(), np.arange(1, self.index_count, dtype=np.int32)
        previous = items["previous"].astype(np.int32)
        slots = items["key_hash"].astype(np.int64) % self.geometry.slots
        newest = np.zeros(self.geometry.slots, np.int32)
        for number, slot, before in zip(numbers.tolist(), slots.tolist(), previous, strict=True):
            assert newest[slot] == before, f"item {number} does not follow the newest of its slot"
            newest[slot] = number
        assert self.header.hash_slot_count == np.count_nonzero(newest), "slots are counted wrong"
        self._slots.check_invariants(newest)

    def items(self) -> np.ndarray[Any, Any]:
        """Return the items in the order of their numbers, from item 1 on, without a copy."""
        return self._item_rows(self.index_count)[1:]

    def read_items(self, number: int, count: int) -> np.ndarray[Any, Any]:
        """Read up to `count` items from a number on; the file is not mapped for it."""
        count = max(0, min(count, self.index_count - number))
        raw = self._file.pread(count * INDEX_ITEM.size, self.geometry.item_position(number))
        return np.frombuffer(raw, INDEX_ITEM.dtype, len(raw) // INDEX_ITEM.size)

    def flush(self) -> None:
        """Write the slots that changed, and the header, if items were put since."""
        if self._slots.has_changed:
            self._slots.write()
            self._file.pwrite(self.header.pack(), 0)
            self._slots.settle()
            self.unsynced = True

    def sync(self) -> None:
        """Bring what was written to stable storage; may run beside the thread that puts."""
        if self.unsynced:
            self.unsynced = False
            try:
                self._file.sync()
            except OSError:
                self.unsynced = True
                raise

    def close(self) -> None:
        """Flush what changed, and give descriptor and slot table back."""
        self.flush()
        self.release()

    def release(self) -> None:
        """Give the slot table and the descriptor back; what was not flushed is lost."""
        self._slots.forget()
        self._file.close()

    def examine(self, below: int) -> Examined:
        """Find the longest prefix of items that can be right and lie below `below`; reads only."""
        return examine(self._file, self.geometry, self.header, below)

    def recover(self, below: int) -> None:
        """Keep what `examine` finds: zero what is behind, and write and sync slots and header.

        Safe to repeat after a crash in between.
        """
        found = self.examine(below)
        number = found.kept + 1
        if self._file.size() < self.geometry.file_size:
            self._file.truncate(self.geometry.file_size)
        for start, end in data_behind(self._file, self.geometry, number):
            self._file.pwrite(bytes(end - start), start)
        with self._lock:
            self._slots.replace(found.slot_table)
            self._view = memoryview(b"")
            self.header = header_after_examination(self.header, found)
        self.unsynced = True
        self.flush()
        self.sync()

    def _items(self, count: int) -> memoryview:
        """Map the file up to item `count`; the sparse rest is never mapped (D10)."""
        view, needed = self._view, self.geometry.item_position(count)
        if len(view) < needed:
            view = self._view = self._file.view(needed)
        return view

    def _item_rows(self, count: int) -> np.ndarray[Any, Any]:
        """Present items 0 … `count` - 1 as rows, without a copy."""
        if count <= 1:
            return np.empty(0, INDEX_ITEM.dtype)
        view, start = self._items(count), self.geometry.items_start
        return np.ndarray((count,), INDEX_ITEM.dtype, view, offset=start)
