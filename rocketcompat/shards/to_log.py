"""Tube records as log records, in columns: the other way of `record.to_tube`.

A tube record that came from a log (`$rmq$`) becomes the record that it was, byte for byte except
for its offsets, which the log gives. Any other becomes a new message: its queue is the partition,
its tag the filter item, its properties are the attributes, and its times the received time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.formats import (
    BODY_CRC_MASK,
    INT32_MAX,
    MAGIC_V1,
    MAGIC_V2,
    MESSAGE_HEADS,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_LENGTH_SIZE,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    TOPIC_LENGTH_SIZE,
)
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.codec import pack
from rocketcompat.record.encode import encode_columns, joined_parts
from rocketcompat.shards.record import (
    ALPHABET,
    BIT_RAW_PROPERTIES,
    BIT_TRAILING_SEPARATOR,
    BIT_V2,
    RESERVED,
    RESERVED_FIELDS,
    RESERVED_KEY,
    from_tube,
)
from tubestore.core import kernels
from tubestore.core.kernels import Int64s, bytes_of, offsets_of
from tubestore.errors import InvalidMessage
from tubestore.record.attributes import LENGTH_SIZE, parse_text
from tubestore.record.layouts import ATTRIBUTE_TIME, ATTRIBUTE_TYPE
from tubestore.record.records import RecordColumns, has_attributes

Array = np.ndarray[Any, Any]

_NARROW = RESERVED[0]
#: Characters of a `$rmq$` of a record with IPv4 hosts and plain properties.
_NARROW_TEXT = _NARROW.size // 3 * 4
_KEY = f"{RESERVED_KEY}="
_SEXTETS = np.zeros(256, np.uint32)
_SEXTETS[ALPHABET] = np.arange(64)
_TO_PROPERTIES = np.arange(256, dtype=np.uint8)
_TO_PROPERTIES[ord("=")] = ord(NAME_VALUE_SEPARATOR)
_TO_PROPERTIES[ord(",")] = ord(PROPERTY_SEPARATOR)
_SYSTEM = (ATTRIBUTE_TYPE, ATTRIBUTE_TIME)


def to_log(topic: str, tube: RecordColumns, config: MessageStoreConfig) -> pa.LargeBinaryArray:
    """Return whole records of a topic's tube records, in their order; physical offsets are 0.

    `config` is that of the target store. Raises InvalidMessage, InvalidName or MessageTooLarge for
    a message that a log cannot hold.
    """
    texts, bodies = _split_payloads(tube)
    found = pc.find_substring(texts, _KEY).to_numpy().astype(np.int64)
    own, foreign = np.flatnonzero(found >= 0), np.flatnonzero(found < 0)
    if len(foreign) and not len(own):
        return _foreign(topic, tube, foreign, texts, bodies, config)
    bounds, raw = _buffers(texts)
    begins = bounds[:-1] + found + len(_KEY)
    ends = _next_commas(raw, begins, bounds[1:])
    plain = own[ends[own] - begins[own] == _NARROW_TEXT]
    blobs = _decoded(raw, begins[plain])
    fast = (blobs["bits"] & BIT_RAW_PROPERTIES) == 0
    plain, blobs = plain[fast], blobs[fast]
    is_plain = np.zeros(len(tube), bool)
    is_plain[plain] = True
    special = own[~is_plain[own]]
    parts = []
    if len(plain):
        starts = np.minimum(ends[plain] + 1, bounds[1:][plain])  # behind the comma, if there is one
        names = kernels.slices(_TO_PROPERTIES[raw].data, starts, bounds[1:][plain] - starts)
        own_bodies = bodies if len(plain) == len(tube) else bodies.take(pa.array(plain))
        parts.append(_records(topic, tube, plain, blobs, own_bodies, names))
    if len(special):
        made = [_special(topic, tube, row, texts[row].as_py(), bodies[row].as_py())
                for row in special.tolist()]  # fmt: skip
        parts.append(pa.array(made, pa.large_binary()))
    if len(foreign):
        parts.append(_foreign(topic, tube, foreign, texts, bodies, config))
    if len(parts) == 1:
        return parts[0]
    order = np.empty(len(tube), np.int64)
    order[np.concatenate((plain, special, foreign))] = np.arange(len(tube))
    return pa.concat_arrays(parts or [pa.array([], pa.large_binary())]).take(pa.array(order))


def _buffers(column: pa.LargeBinaryArray) -> tuple[Int64s, Array]:
    """Return boundaries and bytes of a column that starts at 0."""
    buffers = column.buffers()
    bounds = np.frombuffer(buffers[1], np.int64)[: len(column) + 1]
    return bounds, bytes_of(buffers[2]) if buffers[2] is not None else bytes_of(b"")


def _split_payloads(tube: RecordColumns) -> tuple[Any, Any]:
    """Return attribute texts, empty without any, and bodies."""
    (payloads,) = tube.payloads
    bounds, raw = _buffers(payloads)
    starts, ends = bounds[:-1], bounds[1:]
    flagged = np.flatnonzero(has_attributes(tube.flags) & (ends - starts >= LENGTH_SIZE))
    lengths = np.zeros(len(tube), np.int64)
    lengths[flagged] = kernels.gather(raw, starts[flagged], np.dtype(">i4"))
    if (lengths > np.maximum(ends - starts - LENGTH_SIZE, 0)).any():
        raise InvalidMessage("attributes that are longer than their message")
    lengths = np.maximum(lengths, 0)
    heads = np.zeros(len(tube), np.int64)
    heads[flagged] = LENGTH_SIZE
    texts = kernels.slices(raw.data, starts + heads, lengths)
    at = starts + heads + lengths
    return texts, kernels.slices(raw.data, at, ends - at)


def _next_commas(raw: Array, begins: Int64s, ends: Int64s) -> Int64s:
    """Return the place of the first comma at or behind each place, or the end of its text."""
    commas = np.append(np.flatnonzero(raw == ord(",")), 1 << 62)
    found: Int64s = np.minimum(commas[np.searchsorted(commas, begins)], ends)
    return found


def _decoded(raw: Array, begins: Int64s) -> Array:
    """Return the content of `$rmq$` for records with IPv4 hosts."""
    letters = kernels.gather(raw, begins, np.dtype(f"V{_NARROW_TEXT}"))
    sextets = _SEXTETS[letters.view(np.uint8).reshape(len(begins), _NARROW_TEXT // 4, 4)]
    words = sextets[:, :, 0] << 18 | sextets[:, :, 1] << 12 | sextets[:, :, 2] << 6
    words |= sextets[:, :, 3]
    octets = np.stack([words >> 16, words >> 8, words], axis=-1).astype(np.uint8)
    return (
        np.ascontiguousarray(octets.reshape(len(begins), _NARROW.size))
        .view(_NARROW.dtype)
        .reshape(-1)
    )


def _records(
    topic: str, tube: RecordColumns, rows: Int64s, blobs: Array, bodies: Any, properties: Any
) -> pa.LargeBinaryArray:
    """Return records with IPv4 hosts and plain properties."""
    separator, nothing = (pa.scalar(text, pa.large_binary()) for text in (b"\x02", b""))
    trailing = pa.array((blobs["bits"] & BIT_TRAILING_SEPARATOR) != 0)
    properties = pc.binary_join_element_wise(
        properties, pc.if_else(trailing, separator, nothing), nothing
    )
    wide = (blobs["bits"] & BIT_V2) != 0
    name = topic.encode()
    widths = [TOPIC_LENGTH_SIZE[MAGIC_V2 if wide.all() else MAGIC_V1], TOPIC_LENGTH_SIZE[MAGIC_V2]]
    known = pa.array([len(name).to_bytes(width, "big") + name for width in widths])
    topics = known.cast(pa.large_binary()).take(pa.array(wide.astype(np.int8)))
    body_bounds, raw = _buffers(bodies)
    property_sizes = np.diff(_buffers(properties)[0])
    sizes = MESSAGE_HEADS[0].size + np.diff(body_bounds) + np.diff(_buffers(topics)[0])
    sizes += PROPERTIES_LENGTH_SIZE + property_sizes
    heads = np.zeros(len(rows), MESSAGE_HEADS[0].dtype)
    heads["total_size"], heads["magic_code"] = sizes, np.where(wide, MAGIC_V2, MAGIC_V1)
    heads["body_crc"] = kernels.crc_each(raw.data, body_bounds[:-1], body_bounds[1:], BODY_CRC_MASK)
    heads["queue_id"] = tube.partition_ids[rows]
    heads["store_timestamp"] = tube.received_times[rows]
    heads["body_length"] = np.diff(body_bounds)
    for field in RESERVED_FIELDS:
        heads[field] = blobs[field]
    data = joined_parts(kernels.fixed_binary(heads), bodies, topics, properties)
    return kernels.binary_from(offsets_of(sizes), data)


def _special(topic: str, tube: RecordColumns, row: int, text: bytes, body: bytes) -> bytes:
    """Return a record with IPv6 hosts, or with a property string that is not plain."""
    made = from_tube(
        topic, int(tube.partition_ids[row]), int(tube.received_times[row]), 0, text, body
    )
    assert made is not None
    return pack(made)


def _foreign(
    topic: str, tube: RecordColumns, rows: Int64s, texts: Any, bodies: Any,
    config: MessageStoreConfig,
) -> pa.LargeBinaryArray:  # fmt: skip
    """Return messages that never were in a log."""
    if tube.partition_ids[rows].min() < 0 or tube.partition_ids[rows].max() > INT32_MAX:
        raise InvalidMessage(f"topic {topic!r}: a partition that no queue can have")
    if len(rows) < len(tube):
        texts, bodies = texts.take(pa.array(rows)), bodies.take(pa.array(rows))
    distinct = texts.dictionary_encode()
    named = [_properties(text) for text in distinct.dictionary.to_pylist()]
    properties = pa.array(named, pa.large_string()).take(distinct.indices)
    times = tube.received_times[rows]
    encoded = encode_columns(
        {
            "topic": pa.repeat(pa.scalar(topic), len(rows)),
            "queue_id": pa.array(tube.partition_ids[rows]),
            "body": bodies,
            "properties": properties,
            "born_timestamp": pa.array(times),
        },
        config,
    )
    zeros = np.zeros(len(rows), np.int64)
    encoded.place(zeros, zeros, times)
    return kernels.binary_from(encoded.bounds, encoded.data)


def _properties(text: bytes) -> str:
    """Return the property string of a message with these attributes."""
    items = parse_text(text)
    own = {name: value for name, value in items.items() if value and name not in _SYSTEM}
    if tag := items.get(ATTRIBUTE_TYPE):
        own = {PROPERTY_TAGS: tag, **own}
    return PROPERTY_SEPARATOR.join(f"{n}{NAME_VALUE_SEPARATOR}{v}" for n, v in own.items())
