"""Reads by queue offset and by key: `getMessage` and `queryMessage` (spec §11, §3.5).

Functions over the parts of a store (`StoreParts`), so that a live store, a directory as it
lies and a test use the same code. Nothing here writes; all of it is thread-safe.

What a pull returns is bounded as RocketMQ bounds it: one queue file, 800 units, 32 messages
or 256 KiB (8 or 64 KiB where the log is older than the page cache). So a pull that returns
fewer messages than asked for is normal: go on at `next_begin_offset`.

Where ours differs from the real one:
- a unit whose record is gone skips that unit, not the rest of the log file (spec §11, step 4);
- a record is verified when it is read; one that is damaged is in the answer, with its state;
- `query_message` compares the key's text, and a message is in the answer once. The real store
  answers by hash and leaves the rest to the client (spec §3.2); `by_hash=True` does so too.

Next to read: `default_message_store.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Protocol

import pyarrow as pa

from rocketcompat.formats import (
    CQ_UNIT,
    INT32_MAX,
    KEY_SEPARATOR,
    PROPERTY_KEYS,
    PROPERTY_UNIQ_KEY,
)
from rocketcompat.index_items import key_hash
from rocketcompat.log_reads import LogPart, read_record, read_unit
from rocketcompat.message_rows import row_of, table_of_rows, unreadable_row
from rocketcompat.messages import GetMessageStatus, MessageRecord
from rocketcompat.options import MessageStoreConfig
from tubestore.errors import CorruptRecord
from tubestore.formats import java_hash

#: Units that one pull looks at, unless more messages are asked for: 16,000 bytes (spec §11).
SCAN_UNITS = 16_000 // CQ_UNIT.size
#: Rounds of `query_message`, each with a window that ends at the oldest message found so far.
QUERY_ROUNDS = 3
STATE_DAMAGED = "damaged"
_FOREVER = (1 << 63) - 1


class QueuePart(Protocol):
    """What a read asks of a ConsumeQueue; offsets are queue offsets."""

    @property
    def min_offset(self) -> int:
        """The first unit whose record is kept."""

    @property
    def max_offset(self) -> int:
        """The next unit."""

    def units_in_file(self, start: int, count: int) -> Any:
        """Units from `start` to the end of their file, `count` at most."""

    def next_file_offset(self, offset: int) -> int:
        """The first unit of the file after the one of `offset`."""


class QueuesPart(Protocol):
    """What a read asks of the table of queues."""

    def find(self, topic: str, queue_id: int) -> QueuePart | None:
        """A queue, None if there is none."""


class IndexPart(Protocol):
    """What a read asks of the index; times are ms."""

    def select_hash(
        self, hash_of_key: int, count_max: int, begin: int, end: int
    ) -> tuple[list[int], int, int]:
        """Physical offsets newest first, and time and offset of the last update."""

    def candidates(self, hash_of_key: int, begin: int, end: int) -> Iterator[int]:
        """Physical offsets of all items of a hash that may lie in the window, newest first."""


class StoreParts(Protocol):
    """The parts of a store that reads work on; queues and index are None when switched off."""

    @property
    def commit_log(self) -> LogPart:
        """The log."""

    @property
    def queues(self) -> QueuesPart | None:
        """The table of queues."""

    @property
    def index(self) -> IndexPart | None:
        """The index."""

    @property
    def config(self) -> MessageStoreConfig:
        """The limits."""


@dataclass(frozen=True)
class Found:
    """Messages in the order of an answer; Arrow when asked for (`pa.table(result)`)."""

    #: One entry a message taken: its record, or why it cannot be read.
    entries: tuple[MessageRecord | CorruptRecord, ...] = ()
    physical_offsets: list[int] = field(default_factory=list)

    @property
    def messages(self) -> list[MessageRecord]:
        """The records that could be read."""
        return [entry for entry in self.entries if isinstance(entry, MessageRecord)]

    @property
    def problems(self) -> list[CorruptRecord]:
        """What could not be read."""
        return [entry for entry in self.entries if isinstance(entry, CorruptRecord)]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row an entry, with its state (`message_rows.MESSAGE_COLUMNS`)."""
        pairs = zip(self.physical_offsets, self.entries, strict=True)
        return [
            row_of(entry)
            if isinstance(entry, MessageRecord)
            else unreadable_row(offset, None, STATE_DAMAGED)
            for offset, entry in pairs
        ]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[MessageRecord]:
        return iter(self.messages)

    @cached_property
    def _table(self) -> pa.Table:
        return table_of_rows(self.rows())

    def to_arrow(self) -> pa.Table:
        """Return the messages as a table."""
        return self._table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@dataclass(frozen=True)
class GetMessageResult(Found):
    """What a pull found; offsets are queue offsets unless a name says physical."""

    status: GetMessageStatus = GetMessageStatus.NO_MESSAGE_IN_QUEUE
    next_begin_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    queue_offsets: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class QueryMessageResult(Found):
    """What a query found, oldest first, and up to where the index knew the log then."""

    index_last_update_timestamp: int = 0
    index_last_update_physical_offset: int = 0


def get_message(
    store: StoreParts, topic: str, queue_id: int, offset: int, max_count: int = 32,
    tags: str | None = None, *, memory_bytes: int | None = None,
) -> GetMessageResult:  # fmt: skip
    """Pull up to `max_count` messages of a queue from a queue offset on (spec §11).

    `tags` is "A || B"; None, "" or "*" match all. Only the tags' hashes are compared, as in
    the real store. `memory_bytes` is the machine's memory, by which old messages get the
    smaller limits; None asks the machine.
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
    units = queue.units_in_file(offset, max(SCAN_UNITS, max_count))
    if len(units) == 0:
        following = queue.next_file_offset(offset)
        return GetMessageResult((), [], GetMessageStatus.OFFSET_FOUND_NULL, following, low, high)
    scan = _Scan(store, max_count, tag_codes(tags), memory_bytes)
    scanned = scan.run(units)
    offsets = [offset + place for place in scan.places]
    return GetMessageResult(
        tuple(scan.entries),
        scan.physical_offsets,
        scan.status,
        offset + scanned,
        low,
        high,
        offsets,
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
    """The walk over the units of one pull: which messages are taken, and when it is enough."""

    def __init__(
        self, store: StoreParts, max_count: int, codes: frozenset[int] | None, memory: int | None
    ) -> None:
        config = store.config
        self._log, self._codes, self._max_count = store.commit_log, codes, max_count
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
        self._bytes = 0

    def run(self, units: Any) -> int:
        """Take messages; returns how many units were looked at."""
        for place, (offset, size, code) in enumerate(units.tolist()):
            if self._is_full(offset, size):
                return place
            if self._codes is not None and _int32(code) not in self._codes:
                if not self.entries:
                    self.status = GetMessageStatus.NO_MATCHED_MESSAGE
                continue
            entry = read_unit(self._log, offset, size)
            if entry is None:
                if not self.entries:
                    self.status = GetMessageStatus.MESSAGE_WAS_REMOVING
                continue
            self.status = GetMessageStatus.FOUND
            self.entries.append(entry)
            self.places.append(place)
            self.physical_offsets.append(offset)
            self._bytes += size
        return len(units)

    def _is_full(self, offset: int, size: int) -> bool:
        """Whether a further message would be too much; the first never is."""
        if not self.entries:
            return False
        bytes_max, count_max = self._limits[offset < self._memory_start]
        count = len(self.entries)
        return count >= self._max_count or self._bytes + size > bytes_max or count >= count_max


def tag_codes(expression: str | None) -> frozenset[int] | None:
    """Return the hashes of the tags in "A || B"; None if all messages match (spec §11).

    >>> sorted(tag_codes("TagA||TagB"))
    [2598919, 2598920]
    >>> tag_codes("*") is None
    True
    """
    tags = [tag.strip() for tag in (expression or "").split("||")]
    tags = [tag for tag in tags if tag]
    if not tags or tags == ["*"]:
        return None
    return frozenset(java_hash(tag) for tag in tags)


def query_message(
    store: StoreParts, topic: str, key: str, max_count: int = 32, begin: int = 0,
    end: int | None = None, *, by_hash: bool = False,
) -> QueryMessageResult:  # fmt: skip
    """Find messages by key, stored in [begin, end] ms, the newest `max_count`, oldest first.

    At most `max_msgs_num_batch` (64) are returned, as in the real store. With `by_hash` the
    answer is the real store's: other keys of the same hash, a message once for each of its
    keys that match, times to the second (spec §3.2, §3.5).
    """
    end = _FOREVER if end is None else end
    count_max = min(max_count, store.config.max_msgs_num_batch)
    if store.index is None or count_max <= 0:
        return QueryMessageResult()
    hash_of_key = key_hash(topic, key)
    if by_hash:
        return _query_by_hash(store.commit_log, store.index, hash_of_key, count_max, begin, end)
    found: dict[int, MessageRecord] = {}
    for offset in store.index.candidates(hash_of_key, begin, end):
        if offset in found:
            continue
        record = look_message_by_offset(store, offset)
        if record is None or not begin <= record.store_timestamp <= end:
            continue
        if record.topic == topic and key in keys_of(record):
            found[offset] = record
            if len(found) >= count_max:
                break
    _, time, last = store.index.select_hash(hash_of_key, 1, 0, _FOREVER)
    offsets = sorted(found)
    return QueryMessageResult(tuple(found[offset] for offset in offsets), offsets, time, last)


def _query_by_hash(
    log: LogPart, index: IndexPart, hash_of_key: int, count_max: int, begin: int, end: int
) -> QueryMessageResult:
    """Answer as the real store does: up to three rounds, each ending before the oldest found."""
    entries: list[tuple[int, MessageRecord]] = []
    time = last = 0
    for _ in range(QUERY_ROUNDS):
        offsets, newest, newest_offset = index.select_hash(hash_of_key, count_max, begin, end)
        if not offsets:
            break
        time, last = newest, newest_offset
        offsets.sort()
        read = [(offset, read_record(log, offset)) for offset in offsets]
        entries = [(offset, record) for offset, record in read if record is not None]
        if read[0][1] is not None:
            end = read[0][1].store_timestamp
        if entries or end < begin:
            break
    return QueryMessageResult(
        tuple(record for _, record in entries), [offset for offset, _ in entries], time, last
    )


def keys_of(record: MessageRecord) -> list[str]:
    """Return what is indexed of a record: UNIQ_KEY, then the parts of KEYS (spec §3.3)."""
    properties = record.properties
    parts = [key for key in properties.get(PROPERTY_KEYS, "").split(KEY_SEPARATOR) if key]
    unique = properties.get(PROPERTY_UNIQ_KEY)
    return parts if unique is None else [unique, *parts]


def look_message_by_offset(store: StoreParts, physical_offset: int) -> MessageRecord | None:
    """Return the record that starts at a physical offset; None where no sound one does (§12)."""
    return read_record(store.commit_log, physical_offset)


def _int32(code: int) -> int:
    """Return the low 32 bits as a signed int, as the real filter compares them."""
    return (code & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


@cache
def physical_memory_bytes() -> int:
    """Return the machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return INT32_MAX
