"""Reads by queue offset: `getMessage`.

Functions over the parts of a store (`StoreParts`), so that a live store, a directory and a test use
the same code. They write nothing and are thread-safe.

What a pull returns is bounded as RocketMQ bounds it: one queue file, 800 units, 32 messages
or 256 KiB (8 or 64 KiB where the log is older than the page cache). So a pull that returns
fewer messages than asked for is normal: go on at `next_begin_offset`.

Differences from RocketMQ:
- a unit without its record skips that unit, not the rest of the log file;
- a record is verified when it is read; a damaged one is in the answer, with its state, and so is
  one of another queue, which RocketMQ gives to the consumer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rocketcompat.commitlog.reads import read_unit
from rocketcompat.formats import CQ_UNIT, INT32_MAX
from rocketcompat.messages import GetMessageStatus, MessageRecord
from rocketcompat.reading.parts import Found, StoreParts
from tubestore.core.java_hash import java_hash
from tubestore.errors import CorruptRecord

#: Units that one pull reads, unless more messages are asked for: 16,000 bytes.
SCAN_UNITS = 16_000 // CQ_UNIT.size
#: A filter on whole records.
Where = Callable[[MessageRecord], bool]


@dataclass(frozen=True)
class GetMessageResult(Found):
    """The messages of a pull; offsets are queue offsets, physical ones are named so."""

    status: GetMessageStatus = GetMessageStatus.NO_MESSAGE_IN_QUEUE
    next_begin_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    queue_offsets: list[int] = field(default_factory=list)


def get_message(
    store: StoreParts, topic: str, queue_id: int, offset: int, max_count: int = 32,
    tags: str | None = None, *, where: Where | None = None, memory_bytes: int | None = None,
) -> GetMessageResult:  # fmt: skip
    """Pull up to `max_count` messages of a queue from a queue offset on.

    `tags` is "A || B"; None, "" or "*" match all. Only the tags' hashes are compared, as in
    RocketMQ: a subscriber to one tag may get another of the same hash. `where` is asked about each
    record that passed, as RocketMQ asks its SQL filters. A damaged record passes it, since its
    properties may be wrong. `memory_bytes` is the machine's memory, by which old messages get the
    smaller limits; with None it is determined.
    """
    queue = store.queues.find(topic, queue_id) if store.queues is not None else None
    if store.queues is None:
        return GetMessageResult(status=GetMessageStatus.NO_MATCHED_LOGIC_QUEUE)
    if queue is None or queue.max_offset == 0:
        return GetMessageResult()
    low, high = queue.min_offset, queue.max_offset
    refusal = _out_of_range(offset, low, high)
    if refusal is not None:
        status, following = refusal
        return GetMessageResult((), [], status, following, low, high)
    units, offsets = queue.spans(offset, max(SCAN_UNITS, max_count))
    if len(units) == 0:
        following = queue.next_file_offset(offset)
        return GetMessageResult((), [], GetMessageStatus.OFFSET_FOUND_NULL, following, low, high)
    scan = _Scan(store, (topic, queue_id), max_count, tag_codes(tags), where, memory_bytes)
    scanned = scan.run(units, offsets)
    return GetMessageResult(
        tuple(scan.entries),
        scan.physical_offsets,
        scan.status,
        offsets[scanned],
        low,
        high,
        [offsets[place] for place in scan.places],
    )


def _out_of_range(offset: int, low: int, high: int) -> tuple[GetMessageStatus, int] | None:
    """Return status and next offset where there is nothing to scan."""
    if offset < low:
        return GetMessageStatus.OFFSET_TOO_SMALL, low
    if offset == high:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > high:
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, high
    return None


class _Scan:
    """The walk over the units of one pull: takes messages until it is full."""

    def __init__(
        self,
        store: StoreParts,
        queue: tuple[str, int],
        max_count: int,
        codes: frozenset[int] | None,
        where: Where | None,
        memory: int | None,
    ) -> None:
        config = store.config
        self._log, self._codes, self._where = store.commit_log, codes, where
        self._queue = queue
        self._max_count = max_count
        memory = physical_memory_bytes() if memory is None else memory
        in_memory = memory * config.access_message_in_memory_max_ratio // 100
        #: Records below this offset count as being on disk only.
        self._memory_start = store.commit_log.max_offset - in_memory
        self._limits = (
            (config.max_transfer_bytes_on_message_in_memory,
             config.max_transfer_count_on_message_in_memory),
            (config.max_transfer_bytes_on_message_in_disk,
             config.max_transfer_count_on_message_in_disk),
        )  # fmt: skip
        self.status = GetMessageStatus.NO_MATCHED_MESSAGE
        self.entries: list[MessageRecord | CorruptRecord] = []
        self.places: list[int] = []
        self.physical_offsets: list[int] = []
        self._bytes = self._count = 0

    def run(self, units: Any, offsets: Sequence[int]) -> int:
        """Take messages; returns how many units were read.

        A record of several messages, which takes as many queue offsets, counts as so many.
        """
        for place, (offset, size, code) in enumerate(units.tolist()):
            messages = offsets[place + 1] - offsets[place]
            if self._is_full(offset, size, messages):
                return place
            if self._codes is not None and int32_code(code) not in self._codes:
                if not self.entries:
                    self.status = GetMessageStatus.NO_MATCHED_MESSAGE
                continue
            entry = read_unit(self._log, offset, size, self._queue, offsets[place])
            if entry is None:
                if not self.entries:
                    self.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                continue
            if self._where and isinstance(entry, MessageRecord) and not self._where(entry):
                if not self.entries:
                    self.status = GetMessageStatus.NO_MATCHED_MESSAGE
                continue
            self.status = GetMessageStatus.FOUND
            self.entries.append(entry)
            self.places.append(place)
            self.physical_offsets.append(offset)
            self._bytes += size
            self._count += messages
        return len(units)

    def _is_full(self, offset: int, size: int, messages: int) -> bool:
        """True if a further record would be too much; the first never is."""
        if not self.entries:
            return False
        bytes_max, count_max = self._limits[offset < self._memory_start]
        if self._count + messages > self._max_count or self._count >= count_max:
            return True
        return self._bytes + size > bytes_max


def tag_codes(expression: str | None) -> frozenset[int] | None:
    """Return the hashes of the tags in "A || B"; None if all messages match.

    >>> sorted(tag_codes("TagA||TagB"))
    [2598919, 2598920]
    >>> tag_codes("*") is None
    True
    """
    tags = tags_in(expression)
    return frozenset(java_hash(tag) for tag in tags) if tags else None


def tags_in(expression: str | None) -> list[str]:
    """Return the tags in "A || B"; none if all messages match.

    >>> tags_in("TagA||TagB"), tags_in("*"), tags_in(None)
    (['TagA', 'TagB'], [], [])
    """
    tags = [tag.strip() for tag in (expression or "").split("||")]
    tags = [tag for tag in tags if tag]
    return [] if tags == ["*"] else tags


def int32_code(code: Any) -> Any:
    """Return the low 32 bits of numbers as signed ones, as RocketMQ's filter compares them."""
    return (code & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


@cache
def physical_memory_bytes() -> int:
    """Return the machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return INT32_MAX
