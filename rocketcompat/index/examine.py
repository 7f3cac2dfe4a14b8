"""Which items of an index file can be right after a crash, and the header that follows from them.

An item is written before the slot and the count that lead to it (`index_file.py`). So a crash
leaves whole items, perhaps with a part of one behind them; a power cut may leave holes. Slots and
count follow from the items. This module only reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rocketcompat.formats import INDEX_ITEM
from rocketcompat.index.items import IndexGeometry, IndexHeader, Int32s, link_chains
from tubestore.core.vfs import VfsFile

#: Items are examined, and the bytes behind them are searched, in steps.
_STEP_ITEMS = 1 << 18
_STEP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Examined:
    """The longest prefix of a file's items that can be right, and what follows from it."""

    #: Items kept, and their slot table and number of slots in use.
    kept: int
    slot_table: Int32s
    slots_used: int
    #: The first and the last kept item; none if nothing is.
    ends: tuple[Any, ...]
    #: True if bytes behind the kept items are not a valid item: then items were lost.
    lost: bool

    @property
    def last_offset(self) -> int:
        """Physical offset of the last kept item."""
        return int(self.ends[-1]["physical_offset"])


def examine(file: VfsFile, geometry: IndexGeometry, header: IndexHeader, below: int) -> Examined:
    """Find the longest prefix of items that can be right and lie below `below`.

    An item can be right by `plausible_prefix`, and if its `previous` is what its chain gives. If
    the header is not the one of the file's first put, the items' times mean nothing, and none is
    kept.

    """
    table = np.zeros(geometry.slots, np.int32)
    number, used, above, hollow = 1, 0, False, False
    ends: tuple[Any, ...] = ()
    rows = _rows(file, geometry, header, number)
    while len(rows):
        last_offset = int(ends[-1]["physical_offset"]) if ends else 0
        good = plausible_prefix(rows, last_offset, header.index_count - number)
        kept = rows[: int(np.searchsorted(rows["physical_offset"][:good], below))]
        above = len(kept) < good
        # The header is written after the items, so below a mark it counts them all.
        # An item that it does not count may be half written, with a lower physical offset.
        counted = max(0, header.index_count - number)
        if len(kept) > counted:
            kept, above = kept[:counted], True
        # A header can survive a power cut that its last items did not. They are then zeros, which
        # would be items of the log's first message. Below the mark other items follow.
        while len(kept) and not any(kept[-1].tobytes()):
            kept, hollow = kept[:-1], True
        slots = kept["key_hash"].astype(np.int64) % geometry.slots
        chains = link_chains(table, slots, number)
        wrong = np.flatnonzero(chains.previous != kept["previous"])
        if len(wrong):
            kept, above = kept[: wrong[0]], False
            chains = link_chains(table, slots[: len(kept)], number)
        table[chains.slots] = chains.newest
        used += chains.new_slots
        number += len(kept)
        if len(kept):
            ends = (ends[0] if ends else kept[0], kept[-1])
        rows = _rows(file, geometry, header, number) if len(kept) == len(rows) else rows[:0]
    behind = data_behind(file, geometry, number)
    lost = hollow or (not above and next(behind, None) is not None)
    return Examined(number - 1, table, used, ends, lost)


def plausible_prefix(items: np.ndarray[Any, Any], last_offset: int, counted: int) -> int:
    """Return how many items from the first can be right, chains aside.

    Hash and time are not negative, and physical offsets do not fall below the one before
    (`last_offset` before the first). An all-zero item is where nothing was written, unless it is
    among the first `counted` items, those of the header: hash 0, first message of the log.
    """
    if len(items) == 0:
        return 0
    offsets = items["physical_offset"].astype(np.int64)
    before = np.concatenate(([last_offset], offsets[:-1]))
    bad = (items["key_hash"] < 0) | (items["time_diff_seconds"] < 0) | (offsets < before)
    raw = np.frombuffer(items.tobytes(), np.uint8).reshape(len(items), -1)
    bad |= ~raw.any(axis=1) & (np.arange(len(items)) >= counted)
    return int(bad.argmax()) if bad.any() else len(items)


def header_after_examination(header: IndexHeader, found: Examined) -> IndexHeader:
    """Return the header of the items that are kept, given the one that the file has."""
    if not found.kept:
        return IndexHeader()
    header = replace(header, hash_slot_count=found.slots_used, index_count=found.kept + 1)
    last_offset = found.last_offset
    if last_offset == header.end_physical_offset:
        return header
    end = header.begin_timestamp
    if last_offset != header.begin_physical_offset:
        # The item has its time in whole seconds: take the end of its second, so that no window
        # misses it. The next put makes it exact.
        end += int(found.ends[-1]["time_diff_seconds"]) * 1000 + 999
    return replace(header, end_timestamp=end, end_physical_offset=last_offset)


def data_behind(file: VfsFile, geometry: IndexGeometry, number: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges [start, end) from item `number` to the file's end that are not all zero."""
    size = geometry.file_size
    data = file.next_data(geometry.item_position(number))
    while data is not None and data < size:
        end = min(data + _STEP_BYTES, size)
        if any(file.pread(end - data, data)):
            yield data, end
        data = file.next_data(end) if end < size else None


def _rows(
    file: VfsFile, geometry: IndexGeometry, header: IndexHeader, number: int
) -> np.ndarray[Any, Any]:
    """Read the next items to examine; none if the header does not belong to the first."""
    count = min(_STEP_ITEMS, geometry.items - number)
    raw = file.pread(count * INDEX_ITEM.size, geometry.item_position(number))
    rows = np.frombuffer(raw, INDEX_ITEM.dtype, len(raw) // INDEX_ITEM.size)
    if number > 1 or len(rows) == 0:
        return rows
    first = int(rows[0]["physical_offset"])
    matches = header.index_count > 1 and first == header.begin_physical_offset
    return rows if matches else rows[:0]
