"""Index entries and the data they point to, as Arrow columns.

All functions are pure; only the columns that are asked for are computed. A row that cannot
be read stays a row, with a `state` that says why and null where nothing is known.

Next to read: `read_path.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore import kernels, messages
from tubestore.attributes import LENGTH_SIZE, parse_text
from tubestore.formats import ATTRIBUTE_TYPE, CHECKSUM_MASK, DATA_HEADER, TOKEN_MESSAGE
from tubestore.records import HEADER_SIZE, has_attributes

Array = np.ndarray[Any, Any]

#: Times that Arrow's and Python's calendars know: years 1 to 9999.
_TIME_MIN, _TIME_MAX = -62_135_596_800_000, 253_402_300_799_999
_FROM_PAYLOAD = {"filter_item", "attributes", "body"}
_FROM_DATA = {*_FROM_PAYLOAD, "msg_id", "flag", "report_address", "state"}
_STATES = pa.array(messages.STATES)


@lru_cache(maxsize=4096)
def _text(value: str) -> pa.Scalar:
    # `pa.repeat` of a Python value looks for pandas at every call, 40 µs.
    return pa.scalar(value, pa.string())


def needs_data(columns: Sequence[str]) -> bool:
    """Whether these columns need more than index entries."""
    return not _FROM_DATA.isdisjoint(columns)


def decode(
    topic: str,
    store_id: int,
    offsets: Array,
    entries: Array,
    data: memoryview | None,
    data_start: int,
    columns: Sequence[str],
    *,
    verify: bool = False,
) -> pa.RecordBatch:
    """Build the columns of the messages that `entries` describe.

    `offsets`: their index offsets; `data`: bytes that start at the absolute offset `data_start`
    and hold all their records, None when no file does; `verify`: compare checksums.
    """
    count = len(entries)
    values: dict[str, Any] = {}
    if needs_data(columns):
        values = _from_data(entries, data, data_start, set(columns), verify)
    if "topic" in columns:
        values["topic"] = pa.repeat(_text(topic), count)
    if "store_id" in columns:
        values["store_id"] = pa.repeat(pa.scalar(store_id, pa.int32()), count)
    for name in columns:
        if name == "offset":
            values[name] = pa.array(offsets)
        elif name == "partition_id" or name == "key_code":
            values[name] = pa.array(entries[name].astype(np.int32))
        elif name == "received_time_ms":
            values[name] = pa.array(entries["received_time"].astype(np.int64))
        elif name == "received_time":
            times = entries[name].astype(np.int64)
            known = (times >= _TIME_MIN) & (times <= _TIME_MAX)
            mask = None if known.all() else ~known
            values[name] = pa.array(times, pa.timestamp("ms", "UTC"), mask=mask)
    schema = messages.schema_of(tuple(columns))
    return pa.RecordBatch.from_arrays([values[name] for name in columns], schema=schema)


def _from_data(
    entries: Array, data: memoryview | None, data_start: int, wanted: set[str], verify: bool
) -> dict[str, Any]:
    count = len(entries)
    positions = entries["data_offset"].astype(np.int64) - data_start
    sizes = entries["data_size"].astype(np.int64)
    states = np.zeros(count, np.int8)
    readable = _readable(positions, sizes, len(data) if data is not None else -1, states)
    bytes_ = data if data is not None else memoryview(b"")
    everything = len(readable) == count
    if not everything:
        positions, sizes = positions[readable], sizes[readable]
    if len(positions):  # all of them are inside
        headers = kernels.gather_inside(kernels.bytes_of(bytes_), positions, DATA_HEADER.dtype)
    else:
        headers = np.empty(0, DATA_HEADER.dtype)
    sound = (headers["token"] == TOKEN_MESSAGE) & (headers["length"] == sizes - 4)
    if not sound.all():
        states[readable[~sound]] = messages.STATES.index(messages.STATE_BAD_RECORD)
        readable, headers = readable[sound], headers[sound]
        positions, sizes = positions[sound], sizes[sound]
        everything = False
    if verify and len(positions):
        checks = kernels.crc_each(bytes_, positions + HEADER_SIZE, positions + sizes, CHECKSUM_MASK)
        bad = checks != headers["checksum"]
        states[readable[bad]] = messages.STATES.index(messages.STATE_BAD_CHECKSUM)
    values: dict[str, Any] = {}
    if _FROM_PAYLOAD & wanted:
        values |= _payload_columns(bytes_, positions, sizes, headers, wanted, states, readable)
    for name in ("msg_id", "flag", "report_address"):
        if name in wanted:
            values[name] = pa.array(headers[name].astype(headers.dtype[name].newbyteorder("=")))
    if not everything:
        values = _spread(values, readable, count)
    if "state" in wanted:
        if states.any():
            values["state"] = _STATES.take(pa.array(states.astype(np.int32)))
        else:
            values["state"] = pa.repeat(_text(messages.STATE_OK), count)
    return values


def _readable(positions: Array, sizes: Array, data_size: int, states: Array) -> Array:
    """Return the rows whose bytes are there; marks the others."""
    inside = (sizes > HEADER_SIZE) & (positions >= 0) & (positions + sizes <= data_size)
    if inside.all():
        return np.arange(len(positions))
    states[~inside] = messages.STATES.index(messages.STATE_MISSING)
    return np.flatnonzero(inside)


def _spread(values: dict[str, Any], rows: Array, count: int) -> dict[str, Any]:
    """Put the columns of some rows back among all rows, null elsewhere."""
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    indices = pa.array(places, mask=places < 0)
    return {name: column.take(indices) for name, column in values.items()}


def _payload_columns(
    data: memoryview,
    positions: Array,
    sizes: Array,
    headers: Array,
    wanted: set[str],
    states: Array,
    readable: Array,
) -> dict[str, Any]:
    count = len(positions)
    starts, ends = positions + HEADER_SIZE, positions + sizes
    flagged = np.flatnonzero(has_attributes(headers["flag"]))
    if len(flagged) == 0:
        values: dict[str, Any] = {}
        if "body" in wanted:
            values["body"] = kernels.slices(data, starts, ends - starts)
        for name in ("filter_item", "attributes"):
            if name in wanted:
                values[name] = pa.nulls(count, messages.MESSAGE_SCHEMA.field(name).type)
        return values
    lengths, broken = _attribute_lengths(data, starts, ends, flagged)
    states[readable[flagged[broken]]] = messages.STATES.index(messages.STATE_BAD_ATTRIBUTES)
    body_starts = starts.copy()
    body_starts[flagged] += LENGTH_SIZE + lengths
    body_starts = np.minimum(body_starts, ends)
    values = {}
    if "body" in wanted:
        values["body"] = kernels.slices(data, body_starts, ends - body_starts)
        if broken.any():
            mask = np.ones(count, bool)
            mask[flagged[broken]] = False
            values["body"] = pc.if_else(pa.array(mask), values["body"], None)
    if wanted & {"filter_item", "attributes"}:
        texts = kernels.slices(data, starts[flagged] + LENGTH_SIZE, lengths)
        maps = attribute_maps(texts)
        whole = _spread({"attributes": maps}, flagged, count)["attributes"]
        if "attributes" in wanted:
            values["attributes"] = whole
        if "filter_item" in wanted:
            values["filter_item"] = pc.map_lookup(whole, pa.scalar(ATTRIBUTE_TYPE), "first")
    return values


def _attribute_lengths(
    data: memoryview, starts: Array, ends: Array, flagged: Array
) -> tuple[Array, Array]:
    """Return (attribute bytes, is impossible) of the rows with attributes; negative counts as 0."""
    sizes = (ends - starts)[flagged]
    short = sizes < LENGTH_SIZE
    # A payload too short for a length is looked up at the record's start: the value is not used.
    places = np.where(short, starts[flagged] - HEADER_SIZE, starts[flagged])
    lengths = kernels.gather(kernels.bytes_of(data), places, np.dtype(">i4")).astype(np.int64)
    broken = short | (lengths > sizes - LENGTH_SIZE)
    return np.where(broken, 0, np.maximum(lengths, 0)), broken


def attribute_maps(texts: pa.LargeBinaryArray) -> pa.MapArray:
    """Parse attribute texts, `key=value` separated by commas, into maps."""
    try:
        decoded = texts.cast(pa.large_string()).cast(pa.string())
        items = pc.split_pattern(decoded, ",")
        pairs = pc.split_pattern(items.flatten(), "=", max_splits=1)
        if len(pairs) and pc.all(pc.equal(pc.list_value_length(pairs), 2)).as_py():
            flat = pairs.flatten()
            keys, values = flat[0::2], flat[1::2]
            empty = pc.any(pc.equal(pc.binary_length(keys), 0)).as_py()
            if not empty:
                return pa.MapArray.from_arrays(items.offsets, _whole(keys), _whole(values))
    except pa.ArrowInvalid:
        pass  # not UTF-8
    rows = [list(parse_text(text).items()) for text in texts.to_pylist()]
    return pa.array(rows, messages.MESSAGE_SCHEMA.field("attributes").type)


def _whole(column: pa.Array) -> pa.Array:
    """Copy a strided slice into an array of its own (a map wants children without offsets)."""
    return column.take(pa.array(np.arange(len(column))))
