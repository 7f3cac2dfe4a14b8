"""Records as Arrow batches of what stands in them: fixed fields, topic, property string, body.

The plain form of a record, for whoever takes many: hosts and properties are bytes as stored
(`message_table.py` has them as texts and maps). One look at the fixed part of a record gives all
its columns, and proves its length.

Next to read: `column_reads.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rocketcompat.columns import RecordColumns
from rocketcompat.formats import (
    BODY_CRC_MASK,
    MAGIC_V1,
    MESSAGE_HEAD,
    PROPERTIES_LENGTH_SIZE,
    SYS_FLAG_HOSTS_MASK,
    SYS_FLAG_HOSTS_SHIFT,
)
from tubestore.kernels import Int64s, binary_from, bytes_of, crc_each, gather, slices
from tubestore.layout import Buffer

_COLUMNS = (
    "physical_offset", "total_size", "queue_id", "queue_offset", "flag", "sys_flag",
    "born_timestamp", "store_timestamp", "reconsume_times", "prepared_transaction_offset",
    "body_crc", "magic_code",
)  # fmt: skip
_NATIVE = {name: MESSAGE_HEAD.dtype[name].newbyteorder("=") for name in (*_COLUMNS, "body_length")}
_ANY_HOSTS = SYS_FLAG_HOSTS_MASK << SYS_FLAG_HOSTS_SHIFT
_BYTES = pa.large_binary()
RECORD_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.from_numpy_dtype(_NATIVE[name]), False) for name in _COLUMNS),
        pa.field("born_host", _BYTES, False),
        pa.field("store_host", _BYTES, False),
        pa.field("topic", pa.string(), False),
        pa.field("properties", _BYTES, False),
        pa.field("body", _BYTES, False),
    ]
)


def batch_of_plain(
    data: Buffer, starts: Int64s, base: int, sizes: Int64s | None = None, *, verify: bool = False
) -> pa.RecordBatch | None:
    """Return the records that start at `starts` (ascending) of `data` as a batch.

    `base` is the physical offset of `data[0]`; `sizes` are what others say of their lengths.
    None if one of them is unsound, or in a rarer form (IPv6 hosts, V2): look at them with
    `columns.decode_columns`, which says what it is. `verify` compares the bodies' checksums.
    """
    raw = bytes_of(data)
    if not len(starts):
        return empty_batch()
    if int(starts[0]) < 0 or int(starts.max()) + MESSAGE_HEAD.size > len(raw):
        return None
    heads = gather(raw, starts, MESSAGE_HEAD.dtype)
    columns = {name: heads[name].astype(kind) for name, kind in _NATIVE.items()}
    bodies = starts + MESSAGE_HEAD.size
    topics = bodies + columns["body_length"]
    ends = starts + (columns["total_size"] if sizes is None else sizes)
    plain = (columns["magic_code"] == MAGIC_V1) & (columns["sys_flag"] & _ANY_HOSTS == 0)
    plain &= (columns["physical_offset"] == starts + base) & (columns["body_length"] >= 0)
    plain &= topics + 1 + PROPERTIES_LENGTH_SIZE <= ends
    if sizes is not None:
        plain &= columns["total_size"] == sizes
    if not plain.all() or int(ends.max()) > len(raw):
        return None
    topic_sizes = raw[topics].astype(np.int64)
    properties = topics + 1 + topic_sizes + PROPERTIES_LENGTH_SIZE
    if (properties > ends).any():
        return None
    stored = gather(raw, properties - PROPERTIES_LENGTH_SIZE, np.dtype(">u2"))
    if (properties + stored != ends).any():
        return None
    if verify:
        found = crc_each(data, bodies, topics, BODY_CRC_MASK)
        if (found != columns["body_crc"]).any():
            return None
    return _batch(
        columns,
        _hosts(heads["born_host"]),
        _hosts(heads["store_host"]),
        _topics(data, topics + 1, topic_sizes),
        _properties(data, properties, stored.astype(np.int64)),
        slices(data, bodies, topics - bodies),
    )


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
    arrays = [pa.array(columns[name]) for name in _COLUMNS]
    return pa.RecordBatch.from_arrays([*arrays, *others], schema=RECORD_SCHEMA)


def empty_batch() -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays(
        [pa.array([], field.type) for field in RECORD_SCHEMA], schema=RECORD_SCHEMA
    )


def _topics(data: Buffer, starts: Int64s, sizes: Int64s) -> pa.StringArray:
    """Return the topics; where all are the same, as in most pieces of a log, it is told once."""
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
    return binary_from(np.zeros(len(starts) + 1, np.int64), b"")


def _hosts(raw: Any) -> pa.LargeBinaryArray:
    size = raw.dtype.itemsize
    bounds = np.arange(0, size * (len(raw) + 1), size, dtype=np.int64)
    return binary_from(bounds, np.ascontiguousarray(raw))
