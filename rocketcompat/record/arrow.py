"""Records as Arrow batches of their parts: fixed fields, topic, property string, body.

The plain form of many records: hosts and properties are bytes as stored (`message_table.py` has
them as texts and maps). One gather of the fixed parts gives all their columns, and proves the
lengths.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.formats import (
    BODY_CRC_MASK,
    MAGIC_V1,
    MESSAGE_HEAD,
    PROPERTIES_LENGTH_SIZE,
    STATE_LOST,
    STATE_OK,
    SYS_FLAG_HOSTS_MASK,
    SYS_FLAG_HOSTS_SHIFT,
)
from rocketcompat.record.columns import Bytes, RecordColumns
from rocketcompat.record.rows import lost_rows
from tubestore.core.kernels import (
    EVEN_BYTES_MAX,
    Int64s,
    bytes_of,
    crc_each,
    even_binary,
    even_pieces,
    gather,
    gather_inside,
    slices,
    spaced_pieces,
    windows,
)
from tubestore.core.layout import Buffer

_COLUMNS = (
    "physical_offset", "total_size", "queue_id", "queue_offset", "flag", "sys_flag",
    "born_timestamp", "store_timestamp", "reconsume_times", "prepared_transaction_offset",
    "body_crc", "magic_code",
)  # fmt: skip
_NATIVE = {name: MESSAGE_HEAD.dtype[name].newbyteorder("=") for name in (*_COLUMNS, "body_length")}
_TYPES = {name: pa.from_numpy_dtype(_NATIVE[name]) for name in _COLUMNS}
_ANY_HOSTS = SYS_FLAG_HOSTS_MASK << SYS_FLAG_HOSTS_SHIFT
_BYTES = pa.large_binary()
_NO_BYTES = pa.py_buffer(b"")
RECORD_SCHEMA = pa.schema(
    [
        *(pa.field(name, kind, False) for name, kind in _TYPES.items()),
        pa.field("born_host", _BYTES, False),
        pa.field("store_host", _BYTES, False),
        pa.field("topic", pa.string(), False),
        pa.field("properties", _BYTES, False),
        pa.field("body", _BYTES),
        pa.field("state", pa.string(), False),
    ]
)
TOTAL_SIZE = RECORD_SCHEMA.get_field_index("total_size")


def batch_of_plain(
    data: Buffer, starts: Int64s, base: int, sizes: Int64s | None = None,
    *, verify: bool = False, with_bodies: bool = True,
) -> pa.RecordBatch | None:  # fmt: skip
    """Return the records that start at `starts` (ascending) of `data` as a batch.

    `base` is the physical offset of `data[0]`; `sizes` are lengths that are known from elsewhere.
    None if a record is unsound, or in a rarer form (IPv6 hosts, V2): `columns.decode_columns` then
    decodes it or names the fault. `verify` compares the bodies' checksums. Without `with_bodies`
    the bodies are nulls, and are not copied.
    """
    if not len(starts):
        return empty_batch()
    raw = bytes_of(data)
    if starts.item(0) < 0 or starts.item(-1) + MESSAGE_HEAD.size > len(raw):
        return None
    heads = gather_inside(raw, starts, MESSAGE_HEAD.dtype)
    columns = {name: heads[name].astype(kind) for name, kind in _NATIVE.items()}
    totals, lengths = columns["total_size"], columns["body_length"]
    if (
        np.count_nonzero(columns["magic_code"] != MAGIC_V1)
        or np.count_nonzero(columns["sys_flag"] & _ANY_HOSTS)
        or np.count_nonzero(columns["physical_offset"] != starts + base)
        or (sizes is not None and np.count_nonzero(totals != sizes))
    ):
        return None
    rest = _even_rest(raw, starts, totals, lengths, with_bodies) or _any_rest(
        data, starts, totals, lengths, with_bodies
    )
    if rest is None:
        return None
    bodies = starts + MESSAGE_HEAD.size
    if verify:
        found = crc_each(data, bodies, bodies + lengths, BODY_CRC_MASK)
        if np.count_nonzero(found != columns["body_crc"]):
            return None
    return _batch(columns, _hosts(heads, "born_host"), _hosts(heads, "store_host"), *rest)


def _even_rest(
    raw: Bytes, starts: Int64s, totals: Any, lengths: Any, with_bodies: bool
) -> tuple[pa.Array, pa.Array, pa.Array] | None:
    """Return topics, properties and bodies of records with equal lengths and one topic.

    None if they differ, or if one is unsound. One gather behind each body shows both.
    """
    count, first = len(starts), starts.item(0)
    total, length = totals.item(0), lengths.item(0)
    at, end = MESSAGE_HEAD.size + length, starts.item(-1) + total
    if length < 0 or at + 1 + PROPERTIES_LENGTH_SIZE > total or end > len(raw):
        return None
    if np.count_nonzero(totals != total) or np.count_nonzero(lengths != length):
        return None
    size = raw.item(first + at)
    properties = at + 1 + size + PROPERTIES_LENGTH_SIZE
    if not size or properties > total:
        return None
    between = raw[first + at : first + properties].tobytes()
    stored = int.from_bytes(between[-PROPERTIES_LENGTH_SIZE:], "big")
    topic = between[1:-PROPERTIES_LENGTH_SIZE]
    if properties + stored != total or not topic.isascii():
        return None
    if windows(raw, len(between))[starts + at].tobytes() != between * count:
        return None
    bounds = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * size)
    return (
        pa.Array.from_buffers(pa.string(), count, [None, bounds, pa.py_buffer(topic * count)]),
        _even_pieces(raw, starts, properties, stored),
        _even_pieces(raw, starts, MESSAGE_HEAD.size, length) if with_bodies else _none(count),
    )


def _even_pieces(raw: Bytes, starts: Int64s, at: int, size: int) -> pa.LargeBinaryArray:
    """Copy the `size` bytes that begin `at` bytes behind each start."""
    count = len(starts)
    if size == 0:
        return even_binary(count, 0, _NO_BYTES)
    if count * size <= EVEN_BYTES_MAX:
        return even_pieces(windows(raw[at:], size), starts)
    step = (starts.item(-1) - starts.item(0)) // (count - 1) if count > 1 else size
    if step >= size and not np.count_nonzero(starts[1:] - starts[:-1] != step):
        first = starts.item(0) + at
        return spaced_pieces(np.ndarray((count, size), np.uint8, raw, first, (step, 1)))
    return slices(raw.data, starts + at, np.full(count, size))


def _any_rest(
    data: Buffer, starts: Int64s, totals: Any, lengths: Any, with_bodies: bool
) -> tuple[pa.Array, pa.Array, pa.Array] | None:
    """Return topics, properties and bodies; None if a record is unsound."""
    raw, bodies = bytes_of(data), starts + MESSAGE_HEAD.size
    topics, ends = bodies + lengths, starts + totals
    sound = (lengths >= 0) & (topics + 1 + PROPERTIES_LENGTH_SIZE <= ends)
    if np.count_nonzero(sound) != len(sound) or int(ends.max()) > len(raw):
        return None
    topic_sizes = raw[topics].astype(np.int64)
    properties = topics + 1 + topic_sizes + PROPERTIES_LENGTH_SIZE
    if np.count_nonzero(properties > ends):
        return None
    stored = gather(raw, properties - PROPERTIES_LENGTH_SIZE, np.dtype(">u2"))
    if np.count_nonzero(properties + stored != ends):
        return None
    return (
        _topics(data, topics + 1, topic_sizes),
        _properties(data, properties, stored.astype(np.int64)),
        slices(data, bodies, topics - bodies) if with_bodies else _none(len(starts)),
    )


def _none(count: int) -> pa.Array:
    """Return nulls in the place of bodies."""
    return pa.nulls(count, _BYTES)


def batch_of_records(records: RecordColumns) -> pa.RecordBatch:
    """Return sound records of any form as a batch."""
    names = pa.array(records.topic_names, pa.string())
    return _batch(
        {name: records.column(name) for name in _COLUMNS},
        records.hosts("born_host"),
        records.hosts("store_host"),
        names.take(pa.array(records.topic_codes)),
        records.properties(),
        records.bodies(),
    )


def _batch(columns: dict[str, Any], *others: Any) -> pa.RecordBatch:
    arrays = [
        pa.Array.from_buffers(kind, len(columns[name]), [None, pa.py_buffer(columns[name])])
        for name, kind in _TYPES.items()
    ]
    lost = lost_rows(columns["prepared_transaction_offset"])
    if lost is None:
        states = _sound(max(1024, 1 << len(others[-1]).bit_length())).slice(0, len(others[-1]))
    else:
        states = pc.if_else(lost, STATE_LOST, STATE_OK)
        others = (*others[:-1], pc.if_else(lost, pa.scalar(None, _BYTES), others[-1]))
    return pa.RecordBatch.from_arrays([*arrays, *others, states], schema=RECORD_SCHEMA)


@lru_cache(maxsize=32)
def _sound(count: int) -> pa.Array:
    """Return the states of sound records; kept, since most batches are slices of one."""
    return pa.repeat(STATE_OK, count)


def empty_batch() -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays(
        [pa.array([], field.type) for field in RECORD_SCHEMA], schema=RECORD_SCHEMA
    )


def _topics(data: Buffer, starts: Int64s, sizes: Int64s) -> pa.StringArray:
    """Return the topics; if all are the same, as in most pieces of a log, it is decoded once."""
    size, count = int(sizes[0]), len(starts)
    if size and (sizes == size).all():
        found = gather(bytes_of(data), starts, np.dtype(f"S{size}"))
        if (found == found[0]).all() and _is_text(bytes(data[starts[0] : starts[0] + size])):
            bounds = np.arange(0, size * (count + 1), size, dtype=np.int32)
            buffers = [None, pa.py_buffer(bounds), pa.py_buffer(found)]
            return pa.Array.from_buffers(pa.string(), count, buffers)
    encoded = slices(data, starts, sizes).dictionary_encode()
    names = [str(raw, "utf-8", "replace") for raw in encoded.dictionary.to_pylist()]
    return pa.array(names, pa.string()).take(encoded.indices)


def _is_text(raw: bytes) -> bool:
    return raw.isascii() and not raw.endswith(b"\0")  # which numpy would cut off


def _properties(data: Buffer, starts: Int64s, sizes: Int64s) -> pa.LargeBinaryArray:
    if sizes.any():
        return slices(data, starts, sizes)
    return even_binary(len(starts), 0, _NO_BYTES)


def _hosts(heads: Any, name: str) -> pa.LargeBinaryArray:
    host = np.ascontiguousarray(heads[name])
    return even_binary(len(host), host.dtype.itemsize, pa.py_buffer(host))
