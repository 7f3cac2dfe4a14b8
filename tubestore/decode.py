"""Index entries and the data they point to, as Arrow columns.

All functions are pure; only the columns that are asked for are computed. A row that cannot
be read stays a row, with a `state` that says why and null where nothing is known.

What a log gives is rows that ascend, lie inside the file and agree with their headers. That is
proved with a handful of comparisons of whole columns, and then nothing is looked at row by row;
whatever else it is takes the long way.

Next to read: `selection.py`, then `read_path.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore import kernels, messages
from tubestore.attributes import LENGTH_SIZE, parse_text
from tubestore.formats import (
    ATTRIBUTE_TYPE,
    CHECKSUM_MASK,
    DATA_HEADER,
    FLAG_HAS_ATTRIBUTES,
    TOKEN_MESSAGE,
)
from tubestore.records import HEADER_SIZE, SHARED_FIELDS, has_attributes

Array = np.ndarray[Any, Any]

#: Times that Arrow's and Python's calendars know: years 1 to 9999.
_TIME_MIN, _TIME_MAX = -62_135_596_800_000, 253_402_300_799_999
_FROM_PAYLOAD = {"filter_item", "attributes", "body"}
_FROM_DATA = {*_FROM_PAYLOAD, "msg_id", "flag", "report_address", "state"}
_STATES = pa.array(messages.STATES)
_INT32, _INT64, _TEXT = pa.int32(), pa.int64(), pa.string()
_LARGE_BINARY = pa.large_binary()
_TIME = pa.timestamp("ms", "UTC")
_FROM_HEADER = (
    ("msg_id", _INT64, np.int64),
    ("flag", _INT32, np.int32),
    ("report_address", _INT32, np.int32),
)
#: A view's place in its bytes is an int32.
_VIEWED_MAX = 1 << 31
#: Records no farther apart than this stand in a row for the processor's prefetching.
_DENSE_BYTES = 4096
#: What the first eight bytes of a header, length and token, are as one number when the record's
#: size has been taken away.
_HEAD_LESS_SIZE = TOKEN_MESSAGE - (4 << 32)
_HEAD_TYPE = np.dtype(">i8")
#: A header and the first bytes of its payload, which a view of the payload repeats.
_SIZE_WITH_PREFIX = HEADER_SIZE + 4
_PREFIX_TYPE = np.dtype("<i4")
_BYTE = np.dtype(np.uint8)
_LOW_FLAG_BYTE = DATA_HEADER.position("flag") + 3


@dataclass(frozen=True)
class Columns:
    """What is read of messages: the columns in their order, and how they are looked at.

    `verify`: compare checksums, and entries with records; `strict`: somebody will ask for the
    state of every row; `views`: bodies of sealed files are not copied, but shown where they are
    (`binary_view`).
    Made by `columns_for`, which knows those that were asked for before.
    """

    names: tuple[str, ...]
    verify: bool = False
    strict: bool = False
    views: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the columns."""
        return messages.schema_of(self.names, views=self.views)

    @cached_property
    def wanted(self) -> frozenset[str]:
        """The columns as a set."""
        return frozenset(self.names)

    @cached_property
    def needs_data(self) -> bool:
        """Whether the index alone does not know them."""
        return self.strict or not _FROM_DATA.isdisjoint(self.names)

    @cached_property
    def needs_payload(self) -> bool:
        """Whether the headers alone do not know them."""
        return not _FROM_PAYLOAD.isdisjoint(self.names)


@lru_cache(maxsize=256)
def columns_for(
    names: tuple[str, ...], *, verify: bool = False, strict: bool = False, views: bool = False
) -> Columns:
    """Return the columns of these names; KeyError for an unknown one."""
    columns = Columns(names, verify, strict, views)
    assert columns.schema is not None
    return columns


class Data:
    """Bytes of a shard's data stream: `view` starts at the absolute offset `start`.

    `lasting`: they are mapped from a sealed file, which nobody shortens: a view of them may live.
    """

    def __init__(self, view: memoryview, start: int, *, lasting: bool = False) -> None:
        self.view, self.start, self.size, self.lasting = view, start, len(view), lasting
        self._payload_windows: tuple[int, Array | None] = (0, None)
        #: Whether there were payloads that begin with attributes, so that bodies are not payloads.
        self.attributed = False

    @cached_property
    def bytes(self) -> Array:
        """The same as an array."""
        return kernels.bytes_of(self.view)

    @cached_property
    def windows(self) -> Array:
        """What a header at each position would be, as raw bytes; nothing is copied."""
        return kernels.windows(self.bytes, HEADER_SIZE)

    @cached_property
    def prefixed_windows(self) -> Array:
        """The same with what a view of the payload repeats."""
        return kernels.windows(self.bytes, _SIZE_WITH_PREFIX)

    def payload_windows(self, size: int) -> Array:
        """What a payload of this size at each position would be; those asked for last are kept."""
        known, found = self._payload_windows
        if found is None or known != size:
            found = kernels.windows(self.bytes, size)
            self._payload_windows = (size, found)
        return found


_NO_DATA = Data(memoryview(b""), 0)


class _Records(NamedTuple):
    """Where the payloads of some readable rows stand in the data, and their headers.

    `bounds`: start, end, start, end … if they ascend, as in a log; `size`: of each payload, if
    they are all of one; `table`: the records as its rows, if they stand at one distance, too;
    `payloads`: copies that were made in time; `prefixes`: their first bytes.
    """

    starts: Array
    ends: Array
    headers: Array
    #: The low byte of each one's flag.
    flags: Array
    bounds: Array | None = None
    size: int = 0
    table: Array | None = None
    payloads: pa.LargeBinaryArray | None = None
    prefixes: Array | None = None


def decode(
    topic: str,
    store_id: int,
    offsets: Array,
    entries: Array,
    data: Data | None,
    columns: Columns,
    positions: Array | None = None,
) -> tuple[pa.RecordBatch, tuple[int, str] | None]:
    """Build the columns of the messages that `entries` describe; and the first bad row, if any.

    `offsets`: their index offsets; `data`: holds all their records, None when no file does;
    `positions`: their data offsets (int64) of somebody who has them.
    A bad row is (its number, its state); None as well when the columns need no data.
    """
    values = _from_index(topic, store_id, offsets, entries, columns.names)
    bad = None
    if columns.needs_data:  # last: what is copied drives everything else out of the caches
        bad = _from_data(entries, positions, data or _NO_DATA, columns, values)
    arrays = [values[name] for name in columns.names]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema), bad


# -- columns -----------------------------------------------------------------------------------


def _from_index(
    topic: str, store_id: int, offsets: Array, entries: Array, names: tuple[str, ...]
) -> dict[str, pa.Array]:
    """Return the columns that the index knows."""
    values: dict[str, pa.Array] = {}
    times: Array | None = None
    for name in names:
        if name == "offset":
            values[name] = _integers(_INT64, offsets)
        elif name == "topic":
            values[name] = _constant(name, topic, len(entries))
        elif name == "store_id":
            values[name] = _constant(name, store_id, len(entries))
        elif name == "partition_id" or name == "key_code":
            values[name] = _integers(_INT32, entries[name].astype(np.int32))
        elif name == "received_time_ms" or name == "received_time":
            if times is None:
                times = entries["received_time"].astype(np.int64)
            values[name] = _times(times) if name == "received_time" else _integers(_INT64, times)
    return values


def _integers(kind: pa.DataType, values: Array) -> pa.Array:
    """Wrap a contiguous array of the kind's own width."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _times(times: Array) -> pa.Array:
    # Not by `min` and `max`, which go through Python.
    if not len(times) or (
        np.minimum.reduce(times) >= _TIME_MIN and np.maximum.reduce(times) <= _TIME_MAX
    ):
        return _integers(_TIME, times)
    return pa.array(times, _TIME, mask=(times < _TIME_MIN) | (times > _TIME_MAX))


@lru_cache(maxsize=512)
def _constant(name: str, value: Any, count: int) -> pa.Array:
    """Return a column with one value (None: nulls) in all rows, a slice of one that is kept.

    By the column's name: to find out whether a type of Arrow's is known takes longer.
    """
    size = max(1024, 1 << (count - 1).bit_length())
    if size != count:
        return _constant(name, value, size).slice(0, count)
    kind = messages.MESSAGE_SCHEMA.field(name).type
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def _from_data(
    entries: Array,
    positions: Array | None,
    data: Data,
    columns: Columns,
    values: dict[str, pa.Array],
) -> tuple[int, str] | None:
    """Add the columns that stand in the data; return the first bad row, if any."""
    count, wanted = len(entries), columns.wanted
    states: Array | None = None
    readable: Array | None = None
    shown = columns.views and data.lasting and data.size < _VIEWED_MAX
    if positions is None:
        positions = entries["data_offset"].astype(np.int64)
    records = _plain(entries, positions, data, with_body="body" in wanted, shown=shown)
    if records is None:
        states = np.zeros(count, np.int8)
        records, readable = _readable(entries, data, states)
    found: dict[str, pa.Array] = {}
    for name, kind, dtype in _FROM_HEADER:
        if name in wanted:
            found[name] = _integers(kind, records.headers[name].astype(dtype))
    marked: list[tuple[Array, str]] = []
    if columns.verify and len(records.starts):
        said = entries if readable is None else entries[readable]
        marked.append((_differing(said, records.headers), messages.STATE_ENTRY_DIFFERS))
        checks = kernels.crc_each(data.view, records.starts, records.ends, CHECKSUM_MASK)
        wrong = np.flatnonzero(checks != records.headers["checksum"])
        marked.append((wrong, messages.STATE_BAD_CHECKSUM))
    if columns.needs_payload:
        broken = _payload_columns(data, records, wanted, found, shown=shown)
        marked.append((broken, messages.STATE_BAD_ATTRIBUTES))
    for rows, state in marked:
        if len(rows):
            states = np.zeros(count, np.int8) if states is None else states
            states[rows if readable is None else readable[rows]] = messages.STATES.index(state)
    if readable is not None and len(readable) < count:
        found = _spread(found, readable, count)
    if columns.views and "body" in found and found["body"].type == _LARGE_BINARY:
        found["body"] = kernels.as_views(found["body"])
    values |= found
    if states is None or not states.any():
        if "state" in wanted:
            values["state"] = _constant("state", messages.STATE_OK, count)
        return None
    if "state" in wanted:
        values["state"] = _STATES.take(pa.array(states.astype(np.int32)))
    first = int(np.flatnonzero(states)[0])
    return first, messages.STATES[states[first]]


def _differing(entries: Array, headers: Array) -> Array:
    """Return which rows have an entry that contradicts its record."""
    differs = np.zeros(len(entries), bool)
    for name in SHARED_FIELDS:
        differs |= entries[name] != headers[name]
    return np.flatnonzero(differs)


# -- records -----------------------------------------------------------------------------------


def _plain(
    entries: Array, positions: Array, data: Data, *, with_body: bool, shown: bool
) -> _Records | None:
    """Return the records if all are readable and ascend without overlap, as in a log; else None.

    Bodies that stand one behind the other are copied first: that brings the headers between
    them into the processor's cache. The first lines of scattered ones are brought there by a
    look at the headers, many at a time, which the copy, one by one, cannot do.
    """
    count = len(entries)
    if not count or data.size < HEADER_SIZE:
        return None
    sizes = entries["data_size"].astype(np.int64)
    if data.start:
        positions = positions - data.start
    bounds = np.empty((count, 2), np.int64)
    starts, ends = bounds[:, 0], bounds[:, 1]
    np.add(positions, HEADER_SIZE, out=starts)
    np.add(positions, sizes, out=ends)
    flat = bounds.reshape(-1)
    if (
        positions.item(0) < 0
        or flat.item(-1) > data.size
        # Not equal either: a payload has a byte, and a header stands before the next one.
        or np.count_nonzero(flat[1:] <= flat[:-1])
    ):
        return None
    first = sizes.item(0)
    size = 0 if np.count_nonzero(sizes != first) else first - HEADER_SIZE
    table = _table(data, positions, first) if size else None
    payloads = None
    dense = flat.item(-1) - flat.item(0) < _DENSE_BYTES * count
    if with_body and dense and not shown and not data.attributed:
        payloads = _bodies(data, starts, flat, size, table)
    prefixed = shown and positions.item(-1) + _SIZE_WITH_PREFIX <= data.size
    if table is not None and size >= 4:
        raw = np.ascontiguousarray(table[:, : _SIZE_WITH_PREFIX if prefixed else HEADER_SIZE])
    else:
        raw = (data.prefixed_windows if prefixed else data.windows)[positions]
    heads = _fields(raw, 0, _HEAD_TYPE).astype(np.int64)
    sizes <<= 32
    heads -= sizes
    if np.count_nonzero(heads != _HEAD_LESS_SIZE):
        return None
    headers = _fields(raw, 0, DATA_HEADER.dtype)
    flags = _fields(raw, _LOW_FLAG_BYTE, _BYTE)
    prefixes = _fields(raw, HEADER_SIZE, _PREFIX_TYPE) if prefixed else None
    return _Records(starts, ends, headers, flags, flat, size, table, payloads, prefixes)


def _fields(raw: Array, position: int, dtype: np.dtype[Any]) -> Array:
    """Present what stands at a position of each of some raw records.

    Not by `view`, which looks at all fields of a structured type for Python objects first.
    """
    return np.ndarray(len(raw), dtype, raw, position, raw.strides[:1])


def _table(data: Data, positions: Array, size: int) -> Array | None:
    """Present records of one size that stand at one distance as rows of a table, without a copy.

    That is what one writer of equal messages leaves. They are known to ascend inside the data.
    """
    count, first = len(positions), positions.item(0)
    span = positions.item(-1) - first
    step = span // (count - 1) if count > 1 else 0
    if not size <= step <= _DENSE_BYTES or span != step * (count - 1):
        return None
    if step > size and np.count_nonzero(positions[1:] - positions[:-1] != step):
        return None
    return np.ndarray((count, size), np.uint8, data.bytes, first, (step, 1))


def _bodies(
    data: Data, starts: Array, bounds: Array, size: int, table: Array | None
) -> pa.LargeBinaryArray:
    """Copy payloads that ascend; `size`: of each, 0 if they differ; `table`: of the records."""
    if table is not None:
        return kernels.spaced_pieces(table[:, HEADER_SIZE:])
    if size * len(starts) <= kernels.EVEN_BYTES_MAX and size:
        return kernels.even_pieces(data.payload_windows(size), starts)
    return kernels.pieces(data.view, bounds)


def _readable(entries: Array, data: Data, states: Array) -> tuple[_Records, Array]:
    """Return those records that can be read and their row numbers; marks the others."""
    positions = entries["data_offset"].astype(np.int64) - data.start
    sizes = entries["data_size"].astype(np.int64)
    inside = (sizes > HEADER_SIZE) & (positions >= 0) & (positions + sizes <= data.size)
    states[~inside] = messages.STATES.index(messages.STATE_MISSING)
    rows = np.flatnonzero(inside)
    positions, sizes = positions[rows], sizes[rows]
    headers = np.empty(0, DATA_HEADER.dtype)
    if len(rows):  # all of them are inside
        headers = kernels.gather_inside(data.bytes, positions, DATA_HEADER.dtype)
    sound = (headers["token"] == TOKEN_MESSAGE) & (headers["length"] == sizes - 4)
    if not sound.all():
        states[rows[~sound]] = messages.STATES.index(messages.STATE_BAD_RECORD)
        rows, headers = rows[sound], headers[sound]
        positions, sizes = positions[sound], sizes[sound]
    flags = headers["flag"].astype(np.uint8)
    return _Records(positions + HEADER_SIZE, positions + sizes, headers, flags), rows


def _spread(values: dict[str, Any], rows: Array, count: int) -> dict[str, Any]:
    """Put the columns of some rows back among all rows, null elsewhere."""
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    indices = pa.array(places, mask=places < 0)
    return {name: column.take(indices) for name, column in values.items()}


# -- payloads ----------------------------------------------------------------------------------


def _payload_columns(
    data: Data,
    records: _Records,
    wanted: frozenset[str],
    values: dict[str, pa.Array],
    *,
    shown: bool,
) -> Array:
    """Add the columns that stand in payloads; return the rows whose attributes make no sense.

    `shown`: bodies are not copied where nothing is wrong with any of them.
    """
    starts, ends, headers, flags, bounds, size, table, payloads, prefixes = records
    shown = shown and bounds is not None
    count = len(starts)
    if not np.bitwise_or.reduce(flags) & FLAG_HAS_ATTRIBUTES:
        for name in ("filter_item", "attributes"):
            if name in wanted:
                values[name] = _constant(name, None, count)
        if payloads is not None:
            values["body"] = payloads
        elif "body" in wanted and shown:
            values["body"] = kernels.views(data.view, starts, ends, prefixes)
        elif "body" in wanted and bounds is not None:
            values["body"] = _bodies(data, starts, bounds, size, table)
        elif "body" in wanted:
            values["body"] = kernels.slices(data.view, starts, ends - starts)
        return starts[:0]
    data.attributed = True
    flagged = np.flatnonzero(has_attributes(headers["flag"]))
    lengths, broken = _attribute_lengths(data, starts, ends, flagged)
    body_starts = starts.copy()
    body_starts[flagged] += LENGTH_SIZE + lengths
    body_starts = np.minimum(body_starts, ends)
    if "body" in wanted and shown and not broken.any():
        values["body"] = kernels.views(data.view, body_starts, ends)
    elif "body" in wanted:
        values["body"] = kernels.slices(data.view, body_starts, ends - body_starts)
        if broken.any():
            mask = np.ones(count, bool)
            mask[flagged[broken]] = False
            values["body"] = pc.if_else(pa.array(mask), values["body"], None)
    if wanted & {"filter_item", "attributes"}:
        texts = kernels.slices(data.view, starts[flagged] + LENGTH_SIZE, lengths)
        maps = attribute_maps(texts)
        whole = _spread({"attributes": maps}, flagged, count)["attributes"]
        if "attributes" in wanted:
            values["attributes"] = whole
        if "filter_item" in wanted:
            values["filter_item"] = pc.map_lookup(whole, pa.scalar(ATTRIBUTE_TYPE), "first")
    return flagged[broken]


def _attribute_lengths(
    data: Data, starts: Array, ends: Array, flagged: Array
) -> tuple[Array, Array]:
    """Return (attribute bytes, is impossible) of the rows with attributes; negative counts as 0."""
    sizes = (ends - starts)[flagged]
    short = sizes < LENGTH_SIZE
    # A payload too short for a length is looked up at the record's start: the value is not used.
    places = np.where(short, starts[flagged] - HEADER_SIZE, starts[flagged])
    lengths = kernels.gather(data.bytes, places, np.dtype(">i4")).astype(np.int64)
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
