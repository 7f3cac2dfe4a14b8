"""The rows that a shard's index should have: what a correct recovery keeps, in order.

| the walk's verdict | the row's entry |
| --- | --- |
| sound, expired, broken attributes | as it is |
| the entry is wrong, the record that belongs here is found | the record's |
| entry and record contradict each other | what proves itself (`evidence.py`) |
| damaged, an intact message follows | as it is if a broker passes over it, else as below |
| no entry at all between two rows | one that points to the damage, so that offsets stay |
| damaged, and nothing intact follows | none: the index ends before it, and so do the data |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tubestore.core.vfs import Vfs
from tubestore.offline.bytes_read import BytesRead
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.evidence import is_of_store, judge
from tubestore.record.layouts import INDEX_ENTRY, LOST_TIME, NO_KEY_CODE, RECORD_SIZE_MAX
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE, entries_in
from tubestore.segments.inspection import EXPIRED, OK, Reason, Stretch, walk
from tubestore.segments.listing import ShardFiles
from tubestore.segments.shard_bytes import ShardBytes

Array = np.ndarray[Any, Any]
#: Rows of these are whole messages: the index reaches to the last of them at least.
_INTACT = {OK, EXPIRED, str(Reason.BAD_ATTRIBUTES), str(Reason.ENTRY_DIFFERS)}
#: What stays as it is when something intact follows: nothing can mend it.
_DAMAGE = {Reason.BAD_RECORD, Reason.BAD_CHECKSUM, Reason.MISSING, Reason.UNREFERENCED}


@dataclass(slots=True)
class Kept:
    """What was found out while the rows were gone through; whole when they are at their end."""

    index_start: int = 0
    index_end: int = 0
    data_end: int = 0
    #: Damage that stays, with something intact behind it.
    damage: list[Stretch] = field(default_factory=list)


def sound_rows(
    vfs: Vfs, shard: ShardFiles, kept: Kept, read: BytesRead
) -> Iterator[tuple[int, Array]]:
    """Go through the rows: (index offset, entries), without gap; fills `kept`."""
    bytes_ = ShardBytes(vfs, shard)
    try:
        yield from _Rows(bytes_, shard, kept).go(read.walked(shard, walk(vfs, shard)))
    finally:
        bytes_.close()


class _Rows:
    def __init__(self, bytes_: ShardBytes, shard: ShardFiles, kept: Kept) -> None:
        self._bytes, self._shard, self._kept = bytes_, shard, kept
        self._next = shard.index[0].start if shard.index else -1
        kept.index_start = kept.index_end = max(self._next, 0)
        kept.data_end = bytes_.data_start
        #: Rows, and damage, behind the last intact one; rows that are to point to the damage.
        self._held: list[tuple[int, Array]] = []
        self._pointing: list[Array] = []
        self._damage: list[Stretch] = []
        #: True if an intact record came before.
        self._seen = False

    def go(self, stretches: Iterator[Stretch]) -> Iterator[tuple[int, Array]]:
        """Hold rows back until an intact one follows."""
        for stretch in stretches:
            if stretch.verdict in _DAMAGE or stretch.state == str(Reason.BAD_ENTRY):
                self._damage.append(stretch)
            if stretch.state:
                self._hold(stretch)
            if stretch.state == EXPIRED:
                yield from self._let_go()
            elif stretch.state in _INTACT or stretch.is_record:
                self._point_to_damage(stretch.data_offset)
                end = stretch.data_offset + stretch.data_size
                self._seen = True
                self._kept.data_end = max(self._kept.data_end, end)
                yield from self._let_go()

    def _let_go(self) -> Iterator[tuple[int, Array]]:
        held, self._held = self._held, []
        if held:
            self._kept.index_end = held[-1][0] + ENTRY_SIZE * len(held[-1][1])
        self._kept.damage += self._damage
        self._damage = []
        yield from held

    def _hold(self, stretch: Stretch) -> None:
        if self._next < 0:
            self._next = self._kept.index_start = stretch.index_offset
        lacking = (stretch.index_offset - self._next) // ENTRY_SIZE
        if lacking > 0:
            entries = self._to_point(np.zeros(lacking, INDEX_ENTRY.dtype))
            self._held.append((self._next, entries))
            text = f"{lacking} entries and their records are gone"
            lost = Stretch(Reason.MISSING, "", self._next, entries, self._kept.data_end, 0, text)
            self._damage.append(lost)
        self._held.append((stretch.index_offset, self._entries_of(stretch)))
        self._next = stretch.index_offset + ENTRY_SIZE * len(stretch.entries)

    def _entries_of(self, stretch: Stretch) -> Array:
        if stretch.verdict is Reason.ENTRY_DIFFERS:
            header, _ = self._bytes.record_at(stretch.data_offset)
            judged = judge(
                INDEX_ENTRY.unpack_from(stretch.entries.tobytes()),
                header,
                self._bytes.payload_of(stretch.data_offset, header),
                store_id=self._shard.store_id,
                index_offset=stretch.index_offset,
                data_offset=stretch.data_offset,
            )
            if judged.header_is_damaged:
                self._damage.append(stretch)
            return entries_in(judged.entry)
        if stretch.state in _INTACT:
            return stretch.entries
        entries = stretch.entries.copy()
        for row in np.flatnonzero(~self._is_passed_over(entries)).tolist():
            self._to_point(entries[row : row + 1])
        return entries

    def _is_passed_over(self, entries: Array) -> Array:
        """Return which entries a broker neither cuts the index at nor stops before."""
        starts = entries["data_offset"].astype(np.int64)
        sizes = entries["data_size"].astype(np.int64)
        good = (entries["partition_id"] >= 0) & (starts >= 0)
        good &= (sizes > 0) & (sizes <= RECORD_SIZE_MAX)
        return np.asarray(good & (starts + sizes <= self._bytes.data_end))

    def _to_point(self, entries: Array) -> Array:
        """Have entries point to the damage around them, when it is known how far that reaches."""
        first = self._shard.store_id * PARTITIONS_PER_STORE
        foreign = ~is_of_store(entries["partition_id"], self._shard.store_id)
        entries["partition_id"][foreign] = first
        entries["key_code"] = NO_KEY_CODE
        entries["received_time"] = LOST_TIME
        self._pointing.append(entries)
        return entries

    def _point_to_damage(self, end: int) -> None:
        """The next intact record begins at `end`: what lies before it is the damage."""
        if not self._pointing:
            return
        start, size = self._kept.data_end, end - self._kept.data_end
        if size <= 0 or not self._seen:
            # No byte of them is known. Where no record begins: before the data, which a real
            # broker passes over as expired, or inside a record.
            size = HEADER_SIZE + 1
            start = max(self._bytes.data_start - size, start - size - 1, 0)
            start = start or 1
        file = self._bytes.data_file(start)
        size = min(size, file.end - start) if file is not None else size
        for entries in self._pointing:
            entries["data_offset"], entries["data_size"] = start, min(size, RECORD_SIZE_MAX)
        self._pointing = []
