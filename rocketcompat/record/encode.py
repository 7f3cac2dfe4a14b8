"""Messages given as columns, made into one buffer of records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rocketcompat.formats import (
    BODY_CRC_MASK,
    HOST_V6_SIZE,
    INT32_MAX,
    MESSAGE_HEADS,
    MESSAGE_PREFIX,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CRC,
    PROPERTY_CRC_DIGITS,
    PROPERTY_CRC_SIZE,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_HOSTS_MASK,
    SYS_FLAG_HOSTS_SHIFT,
    SYS_FLAG_STORE_HOST_V6,
    hosts_of,
)
from rocketcompat.messages import BORN_HOST
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record import given
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.prepare import check_sizes
from tubestore.core.kernels import (
    Int64s,
    bytes_of,
    crc_each,
    fixed_binary,
    gather,
    grouped,
    interleave,
    offsets_of,
    scatter,
)
from tubestore.errors import InvalidMessage

_QUEUE_OFFSET, _PHYSICAL_OFFSET, _SYS_FLAG = map(
    MESSAGE_PREFIX.position, ("queue_offset", "physical_offset", "sys_flag")
)
_BORN_TIMESTAMP = MESSAGE_HEADS[0].position("born_timestamp")
#: By `hosts_of(sys_flag)`: the born host comes before it.
_STORE_TIMESTAMPS = np.array([head.position("store_timestamp") for head in MESSAGE_HEADS], np.int64)
_HEAD_SIZES = np.array([head.size for head in MESSAGE_HEADS], np.int64)
_INT32, _INT64 = np.dtype(">i4"), np.dtype(">i8")
_CRC_HEAD = (PROPERTY_CRC + NAME_VALUE_SEPARATOR).encode()
_WIDE = {"born_host": SYS_FLAG_BORN_HOST_V6, "store_host": SYS_FLAG_STORE_HOST_V6}
Column = np.ndarray[Any, Any]


class EncodedColumns:
    """Records in one buffer, complete but for their places; `place` fills them in."""

    def __init__(self, data: Any, sizes: Int64s, topic_names: list[str], topic_codes: Int64s,
                 queue_ids: Int64s, sys_flags: Int64s, properties: Any, *, born_missing: bool,
                 has_crc: bool) -> None:  # fmt: skip
        self.data, self.sizes = data, sizes
        self.bounds = offsets_of(sizes)
        self.topic_names, self.topic_codes, self.queue_ids = topic_names, topic_codes, queue_ids
        self.sys_flags = sys_flags
        self._properties = properties
        self.born_missing, self._has_crc = born_missing, has_crc

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def property_texts(self) -> Any:
        """The property strings."""
        return self._properties

    def queue_groups(self, counted: Any) -> tuple[Int64s, Int64s, Int64s]:
        """Number the queues that occur.

        Returns each row's number, a row of each queue, and each row's place among those of its
        queue. Rows that are not `counted` take no queue offset: their number is behind the others.
        """
        width = int(self.queue_ids.max(initial=0)) + 1
        combined = self.topic_codes * width + self.queue_ids
        rows = np.flatnonzero(counted)
        if len(rows) == len(self):
            return grouped(combined)
        inner, firsts, inner_places = grouped(combined[rows])
        groups, places = np.full(len(self), len(firsts), np.int64), np.zeros(len(self), np.int64)
        groups[rows], places[rows] = inner, inner_places
        return groups, rows[firsts], places

    def place(self, queue_offsets: Int64s, physical_offsets: Int64s, store_timestamp: Any) -> None:
        """Fill in what the log decides; may be done again with other places."""
        fill_in(
            self.data, self.bounds, queue_offsets, physical_offsets, store_timestamp,
            born=self.born_missing, sys_flags=self.sys_flags, has_crcs=self._has_crc,
        )  # fmt: skip

    def records(self, base: int, queue_offsets: Int64s, store_timestamp: int) -> RecordColumns:
        """Return the placed records, the first at the physical offset `base`, as columns.

        They follow each other in one file. Columns that were given are not decoded again.
        """
        found = RecordColumns(self.data, self.bounds[:-1], base)
        columns = {
            "queue_offset": queue_offsets,
            "total_size": self.sizes.astype(np.int32),
            "queue_id": self.queue_ids.astype(np.int32),
            "sys_flag": self.sys_flags.astype(np.int32),
            "store_timestamp": np.full(len(self), store_timestamp, np.int64),
        }
        properties = None if self._has_crc else self._properties  # a checksum came in since
        found.take_columns(columns, self.topic_names, self.topic_codes, properties)
        return found


def fill_in(
    data: Any, bounds: Int64s, queue_offsets: Int64s, physical_offsets: Int64s, times: Any,
    *, born: bool, sys_flags: Int64s | None = None, has_crcs: bool | None = None,
) -> None:  # fmt: skip
    """Fill in what the log decides into the records between `bounds` of `data` (bytes, writable).

    `times` is the store time: one for all rows, one for each row, or None to keep it. With `born`
    it is also the time when they were made. `has_crcs` is True if all records end in a checksum
    and False if none does; with None each record is examined.
    """
    starts = bounds[:-1]
    if sys_flags is None:
        sys_flags = gather(data, starts + _SYS_FLAG, _INT32).astype(np.int64)
    scatter(data, starts + _QUEUE_OFFSET, queue_offsets.astype(_INT64))
    scatter(data, starts + _PHYSICAL_OFFSET, physical_offsets.astype(_INT64))
    if times is not None:
        stamps = np.full(len(starts), times, _INT64)
        scatter(data, starts + _STORE_TIMESTAMPS[hosts_of(sys_flags)], stamps)
        if born:
            scatter(data, starts + _BORN_TIMESTAMP, stamps)
    if has_crcs is None:
        renew_crcs(data, bounds, rows_with_crcs(data, bounds))
    elif has_crcs:
        renew_crcs(data, bounds, np.arange(len(starts)))


def rows_with_crcs(data: Any, bounds: Int64s) -> Int64s:
    """Return the records with a checksum at the end of their properties."""
    wide = np.flatnonzero(np.diff(bounds) > PROPERTY_CRC_SIZE)
    ends = bounds[1:][wide]
    heads = gather(data, ends - PROPERTY_CRC_SIZE, np.dtype(f"V{len(_CRC_HEAD)}"))
    rows: Int64s = wide[heads == np.frombuffer(_CRC_HEAD, heads.dtype)[0]]
    return rows


def renew_crcs(data: Any, bounds: Int64s, rows: Int64s) -> None:
    """Compute the checksums of records that end in one, and write them."""
    if not len(rows):
        return
    ends = bounds[1:][rows]
    covered = ends - PROPERTY_CRC_SIZE
    crcs = crc_each(memoryview(data), bounds[:-1][rows], covered, BODY_CRC_MASK).astype(np.int64)
    digits = crcs[:, None] // 10 ** np.arange(PROPERTY_CRC_DIGITS) % 10 + ord("0")
    texts = digits.astype(np.uint8).view(f"V{PROPERTY_CRC_DIGITS}")[:, 0]
    scatter(data, ends - PROPERTY_CRC_DIGITS - 1, texts)


def encode_columns(
    messages: Any, config: MessageStoreConfig, *, have_offsets: bool = False
) -> EncodedColumns:
    """Check and encode messages from anything with `__arrow_c_stream__`, or a dict of columns.

    `have_offsets`: a message that has queue offsets in its properties keeps them, or is not among
    these messages.
    Raises InvalidMessage, InvalidName, MessageTooLarge, naming the first row at fault.
    """
    table = given.given_in(messages)
    count = table.rows
    names, codes, topics, magics = given.topics_of(table, config.topic_size_max)
    bodies = given.bodies_of(table)
    properties = given.properties_of(table, config)
    # Fields that are not given are 0, as the heads are from the start.
    fields = {name: given.numbers_of(table, name, *given.range_of(name))
              for name in given.NUMBERS if name in table.columns}  # fmt: skip
    queue_ids = given.numbers_of(table, "queue_id", least=0, most=INT32_MAX)
    born_missing = "born_timestamp" not in table.columns
    if not born_missing:
        fields["born_timestamp"] = given.times_of(table.columns["born_timestamp"])
    hosts = {name: given.hosts_of_rows(table, name, default) for name, default in
             (("born_host", BORN_HOST), ("store_host", config.store_host))}  # fmt: skip
    sys_flags = fields.get("sys_flag", np.zeros(count, np.int64))
    sys_flags = sys_flags & ~(SYS_FLAG_HOSTS_MASK << SYS_FLAG_HOSTS_SHIFT)
    if not have_offsets and given.rows_alone(table, config):
        # Its properties contain queue offsets, so its size is known only when it is put.
        raise InvalidMessage(
            "an inner batch, or a message of several queues, is put by itself: put_message,"
            " put_columns or put_inner_batch"
        )
    for name, bit in _WIDE.items():
        wide = np.array([len(host) == HOST_V6_SIZE for host in hosts[name][0]], bool)
        if wide.any():
            sys_flags[wide[hosts[name][1]]] |= bit
    body_bounds, property_sizes = given.bounds_of(bodies), given.sizes_of(properties)
    body_sizes = given.sizes_of(bodies)
    sizes = (_HEAD_SIZES[hosts_of(sys_flags)] + body_sizes + given.sizes_of(topics)
             + property_sizes + 2)  # fmt: skip
    if count:
        largest = int(np.argmax(sizes))
        check_sizes(int(body_sizes.max()), int(sizes[largest]), config)
    fields |= {
        "queue_id": queue_ids, "sys_flag": sys_flags, "magic_code": magics, "total_size": sizes,
        "body_length": body_sizes, "body_crc": _crcs(bodies, body_bounds),
    }  # fmt: skip
    buffer = joined_parts(_heads(fields, hosts), bodies, topics, properties)
    return EncodedColumns(
        bytes_of(buffer) if count else bytes_of(b""), sizes, names, codes, queue_ids, sys_flags,
        properties, born_missing=born_missing, has_crc=config.enabled_append_prop_crc,
    )  # fmt: skip


def joined_parts(heads: Any, bodies: Any, topics: Any, properties: Any) -> Any:
    """Return the buffer of records, given columns of their parts that start at 0.

    `topics` have their lengths in front; `properties` get their lengths here.
    """
    lengths = fixed_binary(given.sizes_of(properties).astype(">i2"))
    return interleave(heads, bodies, topics, lengths, properties)


def _heads(
    fields: dict[str, Column], hosts: dict[str, tuple[list[bytes], Int64s]]
) -> pa.LargeBinaryArray:
    """Return the fixed fields of each row; rows of each pair of host widths are made at once."""
    variants = hosts_of(fields["sys_flag"])
    parts, places = [], []
    present = np.flatnonzero(np.bincount(variants, minlength=1)).tolist()
    for variant in present:
        rows: Any = slice(None) if len(present) == 1 else np.flatnonzero(variants == variant)
        heads = np.zeros(len(variants[rows]), MESSAGE_HEADS[variant].dtype)
        for name, values in fields.items():
            heads[name] = values[rows]
        for name, (raw, codes) in hosts.items():
            width = heads.dtype[name].itemsize
            known = np.array([host if len(host) == width else bytes(width) for host in raw],
                             f"V{width}")  # fmt: skip
            heads[name] = known[codes[rows]] if len(raw) > 1 else known[0]
        parts.append(fixed_binary(heads))
        places.append(rows)
    if len(parts) < 2:
        return parts[0] if parts else pa.array([], pa.large_binary())
    order = np.empty(len(variants), np.int64)
    order[np.concatenate(places)] = np.arange(len(variants))
    return pa.concat_arrays(parts).take(pa.array(order))


def _crcs(bodies: Any, bounds: Int64s) -> Any:
    """Return the checksums of the bodies; that of an empty one is 0."""
    buffer = bodies.buffers()[2]
    if buffer is None:
        return np.zeros(len(bodies), np.int32)
    return crc_each(memoryview(buffer), bounds[:-1], bounds[1:], BODY_CRC_MASK)
