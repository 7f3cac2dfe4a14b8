"""Batches that are in the root's journal, and that their shards have not taken yet.

A shard that takes part in many such batches lends its end to them. A batch is then placed behind
the ends of all its shards in columns, and its bytes are kept in one piece. The shard takes its
parts back, all at once, when it is read, appended to or flushed.

Invariants:
- a shard's end is kept either here (it is lent) or by its own buffers, never by both; it is lent
  and taken back under the shard's append lock, and only a lent shard has parts here;
- parts of a shard follow each other without a gap, from the end of its buffers on;
- only the holder of the journal's lock lends an end or adds a batch; any thread takes a shard's
  parts back;
- what is taken is a copy: the room here is used again when the last shard has taken its end back.
  It is kept, and counts in the memory pool, until `release`: fresh memory costs a page fault for
  every four messages, more than all else that is done to them here.

Guards: `_lock` guards everything here. It is the last of all locks: a shard's append lock may be
held, and nothing is waited for under it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any, NamedTuple

import numpy as np

from tubestore.core import kernels
from tubestore.core.layout import Buffer
from tubestore.core.memory_pool import MemoryPool
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.records import ENTRY_SIZE, EncodedBatch

Array = np.ndarray[Any, Any]
#: Up to so many parts are searched for a shard's parts; more are sorted by shard first.
_LOOKED_THROUGH_MAX = 4096
#: What is known of a part: its rows here, and its records' bytes.
_ROW, _END_ROW, _START, _END = range(4)


class Parts(NamedTuple):
    """What a shard takes: entries and records, placed; how many messages."""

    entries: Buffer
    records: Buffer
    messages: int


class PendingBatches:
    """The bytes of whole batches, and the ends of the shards that they are for; thread-safe."""

    def __init__(self, pool: MemoryPool, size_bytes: int) -> None:
        self._pool, self._room_bytes = pool, size_bytes
        self._lock = threading.Lock()
        self._numbered = self._lent_shards = 0
        # By shard number; the last place is for a shard without a number (-1), which is never lent.
        self._lent = np.zeros(1, bool)
        self._index_ends, self._data_ends = np.zeros(1, np.int64), np.zeros(1, np.int64)
        #: The first part that may be one of the shard's.
        self._since = np.zeros(1, np.int64)
        #: Data offsets: of the first journalled message, and below which the files are synced.
        self._starts, self._synced_ends = np.zeros(1, np.int64), np.zeros(1, np.int64)
        #: Bytes of records and messages that are here.
        self.size_bytes = self.messages = 0
        self._data = np.empty(0, np.uint8)
        self._entries = np.empty(0, INDEX_ENTRY.dtype)
        #: Bytes that were taken from the pool.
        self._counted = 0
        self._parts = 0
        self._owners, self._places = np.empty(0, np.int32), np.empty((4, 0), np.int64)
        #: The first parts by shard: which they are, and where each shard's begin.
        self._order, self._bounds = np.empty(0, np.int64), np.zeros(1, np.int64)

    # -- ends --------------------------------------------------------------------------------

    def lend(self, number: int, index_end: int, data_end: int, journal_from: int) -> int:
        """Take over a shard's end; returns its number, a new one if it had none (-1).

        `journal_from`: the data offset of the shard's first journalled message.
        """
        with self._lock:
            if number < 0:
                number = self._numbered
                if number + 1 >= len(self._lent):
                    self._grow_shards()
                self._numbered += 1
            self._index_ends[number], self._data_ends[number] = index_end, data_end
            self._starts[number] = journal_from
            self._since[number], self._lent[number] = self._parts, True
            self._lent_shards += 1
            return number

    def take_back(self, number: int, parts: Parts | None = None) -> Parts:
        """Give a shard its end back, and the parts that came since it lent it, joined.

        `parts`: if `gather` has joined them already.
        """
        with self._lock:
            if parts is None:
                rows, end_rows, starts, ends = self._places[:, self._parts_of(number)]
                entries = _joined(self._entries.view(np.uint8), ENTRY_SIZE, rows, end_rows)
                records = _joined(self._data, 1, starts, ends)
                parts = Parts(entries, records, len(entries) // ENTRY_SIZE)
            self._lent[number] = False
            self._lent_shards -= 1
            if self._lent_shards == 0:
                self._empty()
        self._pool.add(len(parts.records))
        return parts

    def lent(self, numbers: Array) -> Array:
        """Return which shards have lent their ends (bool); by now some have taken them back."""
        return np.asarray(self._lent[numbers])

    def unsynced(self, numbers: Array) -> Array:
        """Return of which shards the files may be unsynced below the first frames (bool)."""
        with self._lock:
            return np.asarray(self._synced_ends[numbers] < self._starts[numbers])

    def note_synced(self, numbers: Array, data_ends: Sequence[int]) -> None:
        """Record that the shards' data below these offsets is on stable storage."""
        with self._lock:
            self._synced_ends[numbers] = np.maximum(self._synced_ends[numbers], data_ends)

    def data_end(self, number: int) -> int:
        """Return where a lent shard's data ends, without any lock."""
        return int(self._data_ends[number])

    def _grow_shards(self) -> None:
        more = np.zeros(max(64, len(self._lent)), np.int64)
        lent = np.concatenate((self._lent, more.astype(bool)))
        index_ends = np.concatenate((self._index_ends, more))
        data_ends = np.concatenate((self._data_ends, more))
        since = np.concatenate((self._since, more))
        starts = np.concatenate((self._starts, more))
        synced_ends = np.concatenate((self._synced_ends, more))
        # Without a call: an interrupt comes before all of it or behind.
        self._lent, self._index_ends, self._data_ends = lent, index_ends, data_ends
        self._since, self._starts, self._synced_ends = since, starts, synced_ends

    # -- room --------------------------------------------------------------------------------

    def makes_room(self, size: int) -> bool:
        """Make room for a batch of so many bytes, and take its memory; False if that fails."""
        with self._lock:
            end = self.size_bytes + size
            if end > len(self._data):
                if self.size_bytes:
                    return False
                try:
                    self._data = _untouched(max(size, self._room_bytes))
                except OSError:  # a limit of the process or of the system
                    return False
            if end > self._counted:
                if not self._pool.take(end - self._counted):
                    return False
                self._counted = end
            return True

    def is_enough(self, shards: int, size: int, count: int, size_max: int, count_max: int) -> bool:
        """True if, with this batch, more is pending than all the shards' buffers take."""
        if not self.size_bytes:
            return False
        buffers = max(shards, self._lent_shards)
        return (
            self.size_bytes + size > buffers * size_max
            or self.messages + count > buffers * count_max
        )

    def release(self) -> None:
        """Give back the memory that is kept for more batches, unless there are some."""
        with self._lock:
            if not self.size_bytes:
                self._data, self._entries = np.empty(0, np.uint8), np.empty(0, INDEX_ENTRY.dtype)
                self._pool.give_back(self._counted)
                self._counted = 0

    def _empty(self) -> None:
        """Use the room again: everything was taken."""
        self.size_bytes = self.messages = self._parts = 0
        self._order, self._bounds = np.empty(0, np.int64), np.zeros(1, np.int64)

    # -- parts -------------------------------------------------------------------------------

    def add(self, batch: EncodedBatch, numbers: Array, firsts: Array, index: Array) -> Array:
        """Place a batch behind the ends of its shards; returns which of them were lent (bool).

        `firsts[i]` is the first row of the shard with `numbers[i]`, each of which is there once.
        `index` is filled with the rows' offsets; those of shards that were not lent mean nothing.
        """
        bounds = np.append(firsts, len(batch))
        places = np.append(batch.starts, len(batch.data))[bounds]
        counts, sizes = np.diff(bounds), np.diff(places)
        steps = ENTRY_SIZE * np.arange(len(batch))
        with self._lock:
            lent = np.asarray(self._lent[numbers])
            index_starts, data_starts = self._index_ends[numbers], self._data_ends[numbers]
            index[:] = np.repeat(index_starts - ENTRY_SIZE * firsts, counts) + steps
            batch.place_each(index, batch.starts + np.repeat(data_starts - places[:-1], counts))
            rows = np.flatnonzero(lent)
            if not len(rows):
                return lent
            self._grow_parts(len(rows), len(batch))
            mine = numbers[rows]
            parts, messages, size = len(rows), len(batch), len(batch.data)
            part = slice(self._parts, self._parts + parts)
            self._owners[part] = mine
            ours, first, start = self._places[:, part], self.messages, self.size_bytes
            ours[_ROW], ours[_END_ROW] = bounds[rows] + first, bounds[rows + 1] + first
            ours[_START], ours[_END] = places[rows] + start, places[rows + 1] + start
            self._entries.view(np.uint8)[ENTRY_SIZE * first : ENTRY_SIZE * (first + len(batch))] = (
                batch.entries.view(np.uint8)
            )
            self._data[start : start + len(batch.data)] = batch.data
            # Without a call: an interrupt comes before all of it or behind.
            self._parts += parts
            self.messages += messages
            self.size_bytes += size
            self._index_ends[mine] = index_starts[rows] + ENTRY_SIZE * counts[rows]
            self._data_ends[mine] = data_starts[rows] + sizes[rows]
        return lent

    def _grow_parts(self, parts: int, messages: int) -> None:
        if self._parts + parts > len(self._owners):
            room = max(self._parts + parts, 2 * len(self._owners))
            owners, places = np.resize(self._owners, room), np.empty((4, room), np.int64)
            places[:, : self._parts] = self._places[:, : self._parts]
            self._owners, self._places = owners, places  # without a call, as above
        if self.messages + messages > len(self._entries):
            room = ENTRY_SIZE * max(self.messages + messages, 2 * len(self._entries))
            self._entries = np.resize(self._entries.view(np.uint8), room).view(INDEX_ENTRY.dtype)

    def _parts_of(self, number: int) -> Array:
        """Return which parts are a shard's, in order."""
        since = self._since.item(number)
        if self._parts - max(since, len(self._order)) > _LOOKED_THROUGH_MAX:
            self._sort()
        known = len(self._order)
        start = max(since, known)
        found = start + np.flatnonzero(self._owners[start : self._parts] == number)
        if since >= known or number + 1 >= len(self._bounds):
            return found
        before = self._order[self._bounds[number] : self._bounds[number + 1]]
        return np.concatenate((before[before.searchsorted(since) :], found))

    def _sort(self) -> None:
        owners = self._owners[: self._parts]
        # 16 bits wide a stable sort is a radix sort.
        keys = owners.astype(np.uint16) if self._numbered <= 1 << 16 else owners
        self._order = np.argsort(keys, kind="stable")
        counts = np.bincount(owners, minlength=self._numbered)
        self._bounds = np.concatenate(([0], np.cumsum(counts)))

    def gather(self, numbers: Sequence[int]) -> Iterator[tuple[int, Parts]]:
        """Go through the parts of many shards, joined: (place in `numbers`, parts).

        Shards that are not lent are left out. The caller holds the journal's lock, so no batch is
        added
        meanwhile. A shard may take its parts itself; it then has no use for these.
        """
        with self._lock:
            if len(self._order) < self._parts:
                self._sort()
            data, entries, places = self._data, self._entries, self._places
            wanted = [n for n, number in enumerate(numbers) if self._lent[number]]
            found = [self._parts_of(numbers[n]) for n in wanted]
        if not found:
            return
        bounds = np.concatenate(([0], np.cumsum([len(parts) for parts in found]))).tolist()
        rows, end_rows, starts, ends = places[:, np.concatenate(found)]
        counts = end_rows - rows
        row_bounds = np.concatenate(([0], np.cumsum(counts)))
        all_rows = np.arange(row_bounds[-1]) + np.repeat(rows - row_bounds[:-1], counts)
        their_entries = kernels.rows_at(entries, all_rows).view(np.uint8).data
        view, pairs = data.data, list(zip(starts.tolist(), ends.tolist(), strict=True))
        for n, first, end in zip(wanted, bounds, bounds[1:], strict=False):
            low, high = row_bounds.item(first), row_bounds.item(end)
            mine = their_entries[ENTRY_SIZE * low : ENTRY_SIZE * high]
            yield n, Parts(mine, b"".join([view[a:b] for a, b in pairs[first:end]]), high - low)

    def abandon(self) -> None:
        """Have a lock that is free: another thread held the old one at a fork."""
        self._lock = threading.Lock()


def _untouched(size: int) -> Array:
    """Return room that becomes memory page by page.

    Not numpy's own, which asks for huge pages: where memory is fragmented, the system looks for
    them for longer than all copies here take.
    """
    return np.frombuffer(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS), np.uint8)


def _joined(data: Array, width: int, starts: Array, ends: Array) -> bytes:
    view = data.data
    pairs = zip((width * starts).tolist(), (width * ends).tolist(), strict=True)
    return b"".join([view[a:b] for a, b in pairs])
