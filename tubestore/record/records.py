"""Write and read data records and index entries: one by one, and in columns.

Invariants:
- a batch is encoded before its place is known (outside every lock) and *placed*
  when offsets are given out: only `queue_logic_offset` and `data_offset` change then;
- a header and a payload that are joined, and `encode_columns`, give equal bytes for equal messages;
- nothing here allocates by a size that was read from disk.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tubestore.core import kernels
from tubestore.core.layout import Buffer
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.record.layouts import (
    CHECKSUM_MASK,
    DATA_HEADER,
    FLAG_HAS_ATTRIBUTES,
    INDEX_ENTRY,
    LENGTH_BEFORE_PAYLOAD,
    LOST_TIME,
    NO_KEY_CODE,
    RECORD_SIZE_MAX,
    TOKEN_MESSAGE,
    record_size,
    record_sizes,
)

HEADER_SIZE = DATA_HEADER.size
ENTRY_SIZE = INDEX_ENTRY.size
#: The fields that an entry and its record both have.
SHARED_FIELDS = ("partition_id", "key_code", "received_time")
#: How many entries are verified together.
_VERIFIED_ROWS = 2048
_CHECKSUM_AT = DATA_HEADER.position("checksum")
_PARTITION_ID, _QUEUE_LOGIC_OFFSET, _RECEIVED_TIME, _KEY_CODE = (
    DATA_HEADER.slice(name)
    for name in ("partition_id", "queue_logic_offset", "received_time", "key_code")
)
#: Below this many messages the fixed cost of columns is higher than a loop.
_FEW = 8
_pack_header = DATA_HEADER.struct.pack
_pack_i8 = struct.Struct(">q").pack
_pack_place = struct.Struct(">qi").pack

Array = np.ndarray[Any, Any]


class Row(NamedTuple):
    """One message on its way into a buffer; `payload` has its attributes in front already."""

    partition_id: int
    key_code: int
    received_time: int
    report_address: int
    msg_id: int
    flag: int
    payload: bytes


@dataclass(slots=True)
class RecordColumns:
    """Messages of one shard as columns, checked, all of the same length n.

    `partition_ids`, `key_codes`, `report_addresses`, `flags`: int32; `received_times`,
    `msg_ids`: int64; `payloads`: the parts of each payload, joined in order.
    """

    partition_ids: Array
    key_codes: Array
    received_times: Array
    report_addresses: Array
    msg_ids: Array
    flags: Array
    payloads: Sequence[pa.LargeBinaryArray]
    sizes: Array = field(init=False)

    def __post_init__(self) -> None:
        first, *others = self.payloads
        self.sizes = binary_sizes(first) + HEADER_SIZE
        for part in others:
            self.sizes += binary_sizes(part)

    def __len__(self) -> int:
        return len(self.partition_ids)

    def take(self, rows: Array) -> RecordColumns:
        """Return the rows at these places, in this order."""
        places = pa.array(rows)
        return RecordColumns(
            self.partition_ids[rows],
            self.key_codes[rows],
            self.received_times[rows],
            self.report_addresses[rows],
            self.msg_ids[rows],
            self.flags[rows],
            [part.take(places) for part in self.payloads],
        )


def binary_sizes(column: pa.LargeBinaryArray) -> Array:
    """Return the length of each element, in bytes."""
    bounds = binary_bounds(column)
    return np.asarray(bounds[1:] - bounds[:-1])


def binary_bounds(column: pa.LargeBinaryArray) -> Array:
    """Return where each element begins in the column's bytes, and where the last one ends."""
    first = column.offset
    return np.frombuffer(column.buffers()[1], np.int64)[first : first + len(column) + 1]


class EncodedBatch:
    """Records and their index entries as bytes, ready to be written one after the other.

    `data` (uint8) holds the records, `entries` (structured) their entries; offsets are
    relative to 0 until `place` has been called, once.
    """

    __slots__ = ("data", "entries", "starts")

    #: Where a record carries its own index offset.
    INDEX_OFFSET_AT = DATA_HEADER.position("queue_logic_offset")

    def __init__(self, data: Array, entries: Array, starts: Array) -> None:
        self.data, self.entries, self.starts = data, entries, starts

    def __len__(self) -> int:
        return len(self.entries)

    def part(self, first: int, end: int) -> EncodedBatch:
        """Return rows [first, end) as a batch of their own, sharing the bytes."""
        low = int(self.starts[first])
        high = int(self.starts[end]) if end < len(self.starts) else len(self.data)
        return EncodedBatch(
            self.data[low:high], self.entries[first:end], self.starts[first:end] - low
        )

    def take(self, rows: Array) -> EncodedBatch:
        """Return the rows at these places, in this order, as a batch with bytes of its own."""
        bounds = np.append(self.starts, len(self.data))
        taken = kernels.binary_from(bounds, self.data).take(pa.array(rows))
        data = kernels.bytes_of(taken.buffers()[2])[: binary_bounds(taken).item(-1)]
        return EncodedBatch(data, kernels.rows_at(self.entries, rows), binary_bounds(taken)[:-1])

    def place_each(self, index_offsets: Array, data_offsets: Array) -> None:
        """As `place`, for rows that are not adjacent: absolute offsets of each."""
        kernels.scatter(self.data, self.starts + self.INDEX_OFFSET_AT, index_offsets.astype(">i8"))
        self.entries["data_offset"] = data_offsets

    def place(self, index_start: int, data_start: int) -> None:
        """Fix the place of the batch: absolute byte positions of its first entry and record."""
        count = len(self.entries)
        ends = np.arange(index_start, index_start + ENTRY_SIZE * count, ENTRY_SIZE, dtype=">i8")
        kernels.scatter(self.data, self.starts + self.INDEX_OFFSET_AT, ends)
        self.entries["data_offset"] = self.starts + data_start


class Placed(NamedTuple):
    """An encoded batch and its place: absolute byte offsets in index and data."""

    index_start: int
    data_start: int
    batch: EncodedBatch

    @property
    def index_end(self) -> int:
        """The offset after its last index entry."""
        return self.index_start + ENTRY_SIZE * len(self.batch)


def merged(batches: Sequence[Placed]) -> Placed:
    """Return batches that follow each other as one."""
    # As bytes: numpy joins structured arrays in the machine's byte order.
    entries = np.concatenate([placed.batch.entries.view(np.uint8) for placed in batches])
    data = np.concatenate([placed.batch.data for placed in batches])
    batch = EncodedBatch(data, entries.view(INDEX_ENTRY.dtype), np.empty(0, np.int64))
    return batches[0]._replace(batch=batch)


def encode_columns(columns: RecordColumns) -> EncodedBatch:
    """Encode a batch, checksums included; its offsets are still relative."""
    count = len(columns)
    headers = np.zeros(count, DATA_HEADER.dtype)
    headers["length"] = columns.sizes - 4
    headers["token"] = TOKEN_MESSAGE
    headers["partition_id"] = columns.partition_ids
    headers["received_time"] = columns.received_times
    headers["report_address"] = columns.report_addresses
    headers["key_code"] = columns.key_codes
    headers["msg_id"] = columns.msg_ids
    headers["flag"] = columns.flags
    bounds = kernels.offsets_of(columns.sizes)
    starts = bounds[:-1]
    if len(columns.payloads) == 1:
        headers["checksum"] = _checksums(columns.payloads[0])
    buffer = kernels.interleave(kernels.fixed_binary(headers), *columns.payloads)
    # The join's buffer may be longer than its content and has no other user: it may be written to.
    data = kernels.bytes_of(buffer)[: bounds.item(-1)]
    if len(columns.payloads) > 1:  # a payload's parts are adjacent now
        checksums = kernels.crc_each(buffer, starts + HEADER_SIZE, bounds[1:], CHECKSUM_MASK)
        kernels.scatter(data, starts + _CHECKSUM_AT, checksums.astype(">i4"))

    entries = np.empty(count, INDEX_ENTRY.dtype)
    entries["partition_id"] = columns.partition_ids
    entries["data_size"] = columns.sizes
    entries["key_code"] = columns.key_codes
    entries["received_time"] = columns.received_times
    return EncodedBatch(data, entries, starts)


def _checksums(payloads: pa.LargeBinaryArray) -> Array:
    bounds = binary_bounds(payloads)
    return kernels.crc_each(payloads.buffers()[2], bounds[:-1], bounds[1:], CHECKSUM_MASK)


def pack_header(
    partition_id: int,
    key_code: int,
    received_time: int,
    report_address: int,
    msg_id: int,
    flag: int,
    payload: bytes,
) -> bytes:
    """Encode the header of one message, checksum included; its offset is not known yet."""
    return _pack_header(
        LENGTH_BEFORE_PAYLOAD + len(payload),
        TOKEN_MESSAGE,
        kernels.crc32(payload) & CHECKSUM_MASK,
        partition_id,
        0,
        received_time,
        report_address,
        key_code,
        msg_id,
        flag,
    )


def place_record(
    header: bytes, payload: bytes, index_offset: int, data_offset: int
) -> tuple[bytes, bytes]:
    """Return one message at its place: (record, index entry)."""
    before, behind = header[: _QUEUE_LOGIC_OFFSET.start], header[_QUEUE_LOGIC_OFFSET.stop :]
    record = b"".join((before, _pack_i8(index_offset), behind, payload))
    # The entry repeats fields of the header, byte for byte.
    place = _pack_place(data_offset, len(record))
    entry = (header[_PARTITION_ID], place, header[_KEY_CODE], header[_RECEIVED_TIME])
    return record, b"".join(entry)


def join_records(parts: Sequence[bytes], index_start: int, data_start: int) -> EncodedBatch:
    """Join headers and payloads (header, payload, header, payload …) at their place."""
    if len(parts) <= 2 * _FEW:
        return _join_few(parts, index_start, data_start)
    data = np.frombuffer(bytearray().join(parts), np.uint8)
    batch = records_of(np.frombuffer(b"".join(parts[0::2]), DATA_HEADER.dtype), data)
    batch.place(index_start, data_start)
    return batch


def records_of(headers: Array, data: Array) -> EncodedBatch:
    """Return records that lie behind each other as a batch, given their headers."""
    sizes = record_sizes(headers)
    entries = np.empty(len(headers), INDEX_ENTRY.dtype)
    for name in SHARED_FIELDS:
        entries[name] = headers[name]
    entries["data_size"] = sizes
    return EncodedBatch(data, entries, kernels.offsets_of(sizes)[:-1])


def _join_few(parts: Sequence[bytes], index_start: int, data_start: int) -> EncodedBatch:
    records: list[bytes] = []
    entries = bytearray()
    starts = []
    size = 0
    for header, payload in zip(parts[0::2], parts[1::2], strict=True):
        record, entry = place_record(header, payload, index_start + len(entries), data_start + size)
        starts.append(size)
        size += len(record)
        records.append(record)
        entries += entry
    data = np.frombuffer(b"".join(records), np.uint8)
    return EncodedBatch(data, np.frombuffer(entries, INDEX_ENTRY.dtype), np.array(starts))


# -- reading ---------------------------------------------------------------------------------


def entries_in(data: Buffer) -> Array:
    """View the whole index entries at the start of `data` as a structured array."""
    return np.frombuffer(data, INDEX_ENTRY.dtype, len(data) // ENTRY_SIZE)


def whole_entries(entries: Array, data_end: int) -> int:
    """Return how many of a shard's last entries are whole: their data lies below `data_end`.

    The bytes behind them are a write in flight, which readers ignore (decisions.md D9).
    """
    sizes = entries["data_size"].astype(np.int64)
    good = (sizes > 0) & (sizes <= RECORD_SIZE_MAX) & (entries["data_offset"] + sizes <= data_end)
    return len(entries) - int(np.argmax(good[::-1])) if good.any() else 0


def entry_of(header: Any, data_offset: int) -> bytes:
    """Return the index entry that a record asks for: it repeats fields of the header."""
    return INDEX_ENTRY.pack(
        partition_id=header.partition_id,
        data_offset=data_offset,
        data_size=record_size(header),
        key_code=header.key_code,
        received_time=header.received_time,
    )


def lost_entry(store_id: int, data_offset: int, data_size: int) -> bytes:
    """Return the index entry that keeps the offset of a message with a lost record.

    `data_offset`, `data_size`: the bytes that keep the record's place; they may be larger than any.
    """
    return INDEX_ENTRY.pack(
        partition_id=store_id * PARTITIONS_PER_STORE,
        data_offset=data_offset,
        data_size=min(data_size, RECORD_SIZE_MAX),
        key_code=NO_KEY_CODE,
        received_time=LOST_TIME,
    )


def inspect(data: Buffer, position: int, end: int) -> tuple[Any, str | None]:
    """Verify the record at `position` of data that ends at `end`: (header or None, what is wrong).

    The reasons are the ones that `check` prints; None means that everything that a record
    alone can show is right: token, length, checksum.
    """
    if position + HEADER_SIZE > end:
        return None, f"{end - position} bytes are left, too few for a header"
    header = DATA_HEADER.unpack_from(data, position)
    if header.token != TOKEN_MESSAGE:
        return header, f"token {header.token & 0xFFFFFFFF:#010x} instead of {TOKEN_MESSAGE:#010x}"
    size = record_size(header)
    if not HEADER_SIZE < size <= RECORD_SIZE_MAX:
        return header, f"length {header.length} is impossible"
    if position + size > end:
        return header, f"record of {size} bytes, {end - position} are there"
    payload = memoryview(data)[position + HEADER_SIZE : position + size]
    if kernels.crc32(payload) & CHECKSUM_MASK != header.checksum:
        return header, "checksum of the payload differs"
    return header, None


def verify_entries(
    entries: Array,
    index_start: int,
    data: Buffer,
    data_start: int,
    *,
    own_offset: bool = True,
    check_crc: bool = True,
    fields: bool = True,
) -> Array:
    """Return, for each entry, whether its record is in `data` and agrees, checksum included.

    `index_start` is the absolute offset of the first entry, `data_start` that of `data`'s
    first byte; an entry that points outside `data` is False. `own_offset`: the record must
    also carry the entry's offset, which TubeMQ gives a second time after some crashes.
    `check_crc` False: payloads are not read. `fields` False: only place and size are compared.
    """
    good = np.empty(len(entries), bool)
    # Some at a time: what headers were taken of is in the processor's cache when it is summed up.
    for first in range(0, len(entries), _VERIFIED_ROWS):
        end = first + _VERIFIED_ROWS
        some, start = entries[first:end], index_start + ENTRY_SIZE * first
        good[first:end] = _verify_some(
            some,
            start,
            data,
            data_start,
            own_offset=own_offset,
            check_crc=check_crc,
            fields=fields,
        )
    return good


def _verify_some(
    entries: Array,
    index_start: int,
    data: Buffer,
    data_start: int,
    *,
    own_offset: bool,
    check_crc: bool,
    fields: bool,
) -> Array:
    good = np.zeros(len(entries), bool)
    positions = entries["data_offset"].astype(np.int64) - data_start
    sizes = entries["data_size"].astype(np.int64)
    inside = (sizes > HEADER_SIZE) & (sizes <= RECORD_SIZE_MAX) & (positions >= 0)
    inside &= positions + sizes <= len(data)
    rows = np.flatnonzero(inside)
    if len(rows) == 0:
        return good
    wanted = entries
    if len(rows) < len(entries):
        positions, sizes, wanted = positions[rows], sizes[rows], entries[rows]
    headers = kernels.gather(kernels.bytes_of(data), positions, DATA_HEADER.dtype)
    same = (headers["token"] == TOKEN_MESSAGE) & (headers["length"] == sizes - 4)
    for name in SHARED_FIELDS if fields else ():
        same &= headers[name] == wanted[name]
    if own_offset:
        same &= headers["queue_logic_offset"] == index_start + ENTRY_SIZE * rows
    ok = np.flatnonzero(same)
    if not check_crc:
        good[rows[ok]] = True
        return good
    positions, sizes = positions[ok], sizes[ok]
    checksums = kernels.crc_each(data, positions + HEADER_SIZE, positions + sizes, CHECKSUM_MASK)
    good[rows[ok]] = checksums == headers["checksum"][ok]
    return good


def names_another(own: Array, offsets: Array) -> Array:
    """Return which records name another entry's offset than that of their own entry.

    Not those that name none: TubeMQ 1.2.0 writes -1 without caches, and a flipped bit never makes
    one multiple of an entry's size of another.
    """
    return np.asarray((own >= 0) & (own % ENTRY_SIZE == 0) & (own != offsets))


def has_attributes(flags: Array) -> Array:
    """Return which flags mark a payload that starts with attributes."""
    return np.asarray((flags & FLAG_HAS_ATTRIBUTES) != 0)
