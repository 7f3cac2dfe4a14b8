"""A reader of RocketMQ's files that shares no code with the store but the layouts."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

from rocketcompat.formats import (
    BLANK,
    BODY_CRC_MASK,
    CQ_PRE_FILL_SIZE,
    CQ_UNIT,
    INDEX_HEADER,
    INDEX_ITEM,
    INDEX_SLOT_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MESSAGE_HEAD,
    parse_properties,
)
from tubestore.core.java_hash import java_hash
from tubestore.core.vfs import Vfs


class LogRecord(NamedTuple):
    """A record of the log, as far as the proof needs it."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    keys: tuple[str, ...]
    tag: str | None

    @property
    def key_hashes(self) -> list[int]:
        """What the index holds of its keys."""
        hashes = [abs(java_hash(f"{self.topic}#{key}")) for key in self.keys]
        return [0 if h > 0x7FFFFFFF else h for h in hashes]


@dataclass
class Log:
    """All sound records, where the log ends, and the damaged regions that were passed over."""

    records: list[LogRecord]
    end: int
    gaps: list[tuple[int, int]]

    def lost(self, physical_offset: int) -> bool:
        """Whether what stood there is damaged: queues and index may still point to it."""
        return any(start <= physical_offset < end for start, end in self.gaps)


def _files(vfs: Vfs, directory: str) -> list[tuple[int, bytes]]:
    return [
        (int(name), vfs.read_file(f"{directory}/{name}"))
        for name, is_directory, _ in vfs.entries(directory)
        if not is_directory
    ]


def read_log(vfs: Vfs, root: str, file_size: int, gaps: list[tuple[int, int]] | None = None) -> Log:
    """Follow the chain of records to its end, over the `gaps` that the store knows of."""
    passed = dict(gaps or [])
    records: list[LogRecord] = []
    end = next_start = 0
    for start, data in _files(vfs, f"{root}/commitlog"):
        assert start == next_start, f"the log has no file for {next_start}"
        next_start = start + file_size
        data = data.ljust(file_size, b"\0")  # a power cut can shorten a file
        position = max(0, end - start)  # a damaged region can reach over a border
        while position < len(data):
            if start + position in passed:
                position = passed[start + position] - start
                continue
            total, magic = BLANK.unpack_from(data.ljust(position + 8, b"\0"), position)
            if magic == MAGIC_BLANK:
                position = len(data)
            elif record := _record(data, position, start, total, magic):
                records.append(record)
                position += total
            else:
                _check_empty(data, position, start)
                return Log(records, start + position, sorted(passed.items()))
        end = start + position
    return Log(records, end, sorted(passed.items()))


def _check_empty(data: bytes, position: int, start: int) -> None:
    rest = data[position:].lstrip(b"\0")
    assert not rest, (
        f"something stands behind the end of the log, {start + position}: {rest[:40]!r}"
    )


def _record(data: bytes, position: int, start: int, total: int, magic: int) -> LogRecord | None:
    if magic != MAGIC_V1 or position + total > len(data) or total < MESSAGE_HEAD.size:
        return None
    head = MESSAGE_HEAD.unpack_from(data, position)
    at = position + MESSAGE_HEAD.size
    body = data[at : at + head.body_length]
    at += head.body_length
    topic_size = data[at]
    topic = data[at + 1 : at + 1 + topic_size].decode()
    at += 1 + topic_size
    properties_size = int.from_bytes(data[at : at + 2], "big")
    text = data[at + 2 : at + 2 + properties_size].decode()
    crc = zlib.crc32(body) & BODY_CRC_MASK
    if head.body_crc != crc or head.physical_offset != start + position:
        return None
    properties = parse_properties(text)
    keys, tag = tuple(properties.get("KEYS", "").split()), properties.get("TAGS")
    return LogRecord(
        start + position, total, topic, head.queue_id, head.queue_offset, body, keys, tag
    )


def read_queues(vfs: Vfs, root: str) -> dict[tuple[str, int], dict[int, tuple[int, int]]]:
    """Return, of every queue, its units by queue offset as (physical offset, size)."""
    queues = {}
    base = f"{root}/consumequeue"
    for topic, _, _ in vfs.entries(base):
        for queue_id, is_directory, _ in vfs.entries(f"{base}/{topic}"):
            if is_directory:  # what is not is a file that was in the making
                queues[topic, int(queue_id)] = _units(vfs, f"{base}/{topic}/{queue_id}")
    return queues


def _units(vfs: Vfs, directory: str) -> dict[int, tuple[int, int]]:
    units = {}
    for start, data in _files(vfs, directory):
        for position in range(0, len(data) - CQ_UNIT.size + 1, CQ_UNIT.size):
            unit = CQ_UNIT.unpack_from(data, position)
            if unit.size and unit.size != CQ_PRE_FILL_SIZE:
                units[(start + position) // CQ_UNIT.size] = (unit.physical_offset, unit.size)
    return units


def read_index(
    vfs: Vfs, root: str, slots: int, items: int, *, closed: bool
) -> Counter[tuple[int, int]]:
    """Return how often each (key hash, physical offset) stands in the index.

    The store keeps the slots of the live file in memory: only in a closed one do the chains
    lead to all items.
    """
    found: Counter[tuple[int, int]] = Counter()
    for _, data in _files(vfs, f"{root}/index"):
        count = max(1, INDEX_HEADER.unpack_from(data).index_count)
        assert count <= items, f"an index file with {count} items"
        listed = Counter(
            (item.key_hash, item.physical_offset)
            for item in (_item(data, slots, number) for number in range(1, count))
        )
        assert not closed or listed == _chained(data, slots, count), "chains lead to other items"
        found += listed
    return found


def _item(data: bytes, slots: int, number: int) -> Any:
    start = INDEX_HEADER.size + INDEX_SLOT_SIZE * slots
    return INDEX_ITEM.unpack_from(data, start + INDEX_ITEM.size * number)


def _chained(data: bytes, slots: int, count: int) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for slot in range(slots):
        at = INDEX_HEADER.size + INDEX_SLOT_SIZE * slot
        number = int.from_bytes(data[at : at + INDEX_SLOT_SIZE], "big")
        while number:
            assert 0 < number < count, f"item {number} of {count} in a chain"
            item = _item(data, slots, number)
            assert item.key_hash % slots == slot, f"item {number} stands in slot {slot}"
            assert item.previous < number, f"a chain goes up from {number}"
            found[item.key_hash, item.physical_offset] += 1
            number = item.previous
    return found
