"""The arithmetic of an index file: where its parts are, how items are chained.

Pure functions over columns; touches no file. The rules are those of RocketMQ's
`IndexFile`, for many keys at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rocketcompat.formats import (
    HASH_SLOTS,
    INDEX_HEADER,
    INDEX_ITEM,
    INDEX_ITEMS,
    INDEX_SLOT_SIZE,
    INT32_MAX,
)
from tubestore.core import kernels
from tubestore.core.java_hash import java_hash
from tubestore.core.kernels import Int64s, java_hashes

Int32s = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class IndexGeometry:
    """How many slots and items a file has; no file contains it."""

    slots: int = HASH_SLOTS
    items: int = INDEX_ITEMS

    @property
    def items_start(self) -> int:
        """Position of item 0, which is never used."""
        return INDEX_HEADER.size + INDEX_SLOT_SIZE * self.slots

    @property
    def file_size(self) -> int:
        """Bytes of a file, header included."""
        return self.item_position(self.items)

    def item_position(self, number: int) -> int:
        """Position of an item."""
        return self.items_start + INDEX_ITEM.size * number


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """RocketMQ's `IndexHeader`: what a file records about its items. Times are ms."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_physical_offset: int = 0
    end_physical_offset: int = 0
    hash_slot_count: int = 0
    #: Number of the next free item, 1 in an empty file (0 on disk).
    index_count: int = 1

    @classmethod
    def unpack(cls, raw: bytes) -> IndexHeader:
        """Decode the bytes of a file; a count below its minimum becomes the minimum."""
        values: dict[str, int] = INDEX_HEADER.unpack_from(raw)._asdict()
        values["hash_slot_count"] = max(0, values["hash_slot_count"])
        values["index_count"] = max(1, values["index_count"])
        return cls(**values)

    def pack(self) -> bytes:
        """Return the bytes of the file."""
        values = {name: getattr(self, name) for name in self.__slots__}
        if self.index_count <= 1:
            values["index_count"] = 0
        return INDEX_HEADER.pack(**values)


@dataclass(frozen=True, slots=True)
class Chains:
    """The changes that new items make to a slot table; nothing has been changed yet."""

    #: Each item's predecessor in its slot, 0 if none.
    previous: Int32s
    #: The slots that change, and their new numbers.
    slots: Int64s
    newest: Int32s
    #: How many of these slots were empty.
    new_slots: int


def key_hash(topic: str, key: str) -> int:
    """Return an item's hash of a key: the hash of `topic#key`, made positive.

    >>> hex(key_hash("TopicTest", "U1"))
    '0x29e3fe'
    """
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value > INT32_MAX else value


def key_hashes(topic: str, keys: Sequence[str]) -> Int32s:
    """As `key_hash`, for many keys.

    >>> key_hashes("TopicTest", ["U1"]).tolist() == [key_hash("TopicTest", "U1")]
    True
    """
    texts = pa.array([f"{topic}#{key}" for key in keys], pa.large_string())
    values = np.abs(java_hashes(texts).astype(np.int64))
    values[values > INT32_MAX] = 0
    found: Int32s = values.astype(np.int32)
    return found


def link_chains(slot_table: Int32s, slots: Int64s, first_number: int) -> Chains:
    """Chain items with consecutive numbers, as if they were entered one after the other.

    >>> chains = link_chains(np.array([0, 0, 7], np.int32), np.array([2, 1, 2]), 8)
    >>> chains.previous.tolist(), chains.slots.tolist(), chains.newest.tolist()
    ([7, 0, 8], [1, 2], [9, 10])
    """
    count = len(slots)
    if count == 0:
        none = np.empty(0, np.int32)
        return Chains(none, np.empty(0, np.int64), none, 0)
    order = kernels.stable_order(slots, len(slot_table))
    ordered = slots[order]
    first = np.ones(count, bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    heads = ordered[first]
    before = slot_table[heads]
    numbers = (order + first_number).astype(np.int32)
    linked = np.empty(count, np.int32)
    linked[1:] = numbers[:-1]
    linked[first] = before
    previous = np.empty(count, np.int32)
    previous[order] = linked
    newest = numbers[np.append(np.flatnonzero(first)[1:], count) - 1]
    return Chains(previous, heads, newest, int(np.count_nonzero(before == 0)))


def time_differences(store_timestamps: Int64s, begin_timestamp: int) -> Int32s:
    """Return whole seconds since `begin_timestamp`, as an item holds them."""
    if begin_timestamp <= 0:
        return np.zeros(len(store_timestamps), np.int32)
    seconds = np.maximum(store_timestamps - begin_timestamp, 0) // 1000
    clamped: Int32s = np.minimum(seconds, INT32_MAX).astype(np.int32)
    return clamped
