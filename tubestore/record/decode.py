"""Index entries and the data they point to, as Arrow columns.

All functions are pure; only the columns that are asked for are computed. A row that cannot
be read stays a row, with the reason as its `state` and null where nothing is known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tubestore import messages
from tubestore.core import kernels
from tubestore.core.kernels import integers, texts
from tubestore.record.columns import Columns, constant, spread
from tubestore.record.layouts import CHECKSUM_MASK
from tubestore.record.locate import Data, plain_records, readable_records
from tubestore.record.payloads import payload_columns
from tubestore.record.records import SHARED_FIELDS, names_another

Array = np.ndarray[Any, Any]

#: Times that Arrow's and Python's calendars know: years 1 to 9999.
_TIME_MIN, _TIME_MAX = -62_135_596_800_000, 253_402_300_799_999
_STATES = texts(messages.STATES)
_INT32, _INT64 = pa.int32(), pa.int64()
_LARGE_BINARY = pa.large_binary()
_TIME = pa.timestamp("ms", "UTC")
_FROM_HEADER = (
    ("msg_id", _INT64, np.int64),
    ("flag", _INT32, np.int32),
    ("report_address", _INT32, np.int32),
)
#: A view's place in its bytes is an int32.
_VIEWED_MAX = 1 << 31
_NO_DATA = Data(memoryview(b""), 0)


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
    `positions`: their data offsets (int64), if the caller has them.
    A bad row is (its number, its state); None as well when the columns need no data.
    """
    values = _from_index(topic, store_id, offsets, entries, columns.names)
    bad = None
    if columns.needs_data:  # last: what is copied drives everything else out of the caches
        bad = _from_data(offsets, entries, positions, data or _NO_DATA, columns, values)
    arrays = [values[name] for name in columns.names]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema), bad


def _from_index(
    topic: str, store_id: int, offsets: Array, entries: Array, names: tuple[str, ...]
) -> dict[str, pa.Array]:
    """Return the columns that come from the index."""
    values: dict[str, pa.Array] = {}
    times: Array | None = None
    for name in names:
        if name == "offset":
            values[name] = integers(_INT64, offsets)
        elif name == "topic":
            values[name] = constant(name, topic, len(entries))
        elif name == "store_id":
            values[name] = constant(name, store_id, len(entries))
        elif name == "partition" or name == "partition_id":
            values[name] = integers(_INT32, entries["partition_id"].astype(np.int32))
        elif name == "key_code":
            values[name] = integers(_INT32, entries["key_code"].astype(np.int32))
        elif name == "received_time_ms" or name == "received_time":
            if times is None:
                times = entries["received_time"].astype(np.int64)
            values[name] = _times(times) if name == "received_time" else integers(_INT64, times)
    return values


def _times(times: Array) -> pa.Array:
    # Not by `min` and `max`, which go through Python.
    if not len(times) or (
        np.minimum.reduce(times) >= _TIME_MIN and np.maximum.reduce(times) <= _TIME_MAX
    ):
        return integers(_TIME, times)
    return integers(_TIME, times, (times >= _TIME_MIN) & (times <= _TIME_MAX))


def _from_data(
    offsets: Array,
    entries: Array,
    positions: Array | None,
    data: Data,
    columns: Columns,
    values: dict[str, pa.Array],
) -> tuple[int, str] | None:
    """Add the columns that come from the data; return the first bad row, if any."""
    count, wanted = len(entries), columns.wanted
    states: Array | None = None
    readable: Array | None = None
    shown = columns.views and data.lasting and data.size < _VIEWED_MAX
    if positions is None:
        positions = entries["data_offset"].astype(np.int64)
    records = plain_records(entries, positions, data, with_body="body" in wanted, shown=shown)
    if records is None:
        states = np.zeros(count, np.int8)
        records, readable = readable_records(entries, data, states)
    found: dict[str, pa.Array] = {}
    for name, kind, dtype in _FROM_HEADER:
        if name in wanted:
            found[name] = integers(kind, records.headers[name].astype(dtype))
    marked: list[tuple[Array, str]] = []
    if columns.verify and len(records.starts):
        recorded = entries if readable is None else entries[readable]
        differs = _differing(recorded, records.headers)
        if columns.own_offset:
            named = records.headers["queue_logic_offset"].astype(np.int64)
            differs |= names_another(named, offsets if readable is None else offsets[readable])
        marked.append((np.flatnonzero(differs), messages.STATE_ENTRY_DIFFERS))
        checks = kernels.crc_each(data.view, records.starts, records.ends, CHECKSUM_MASK)
        wrong = np.flatnonzero(checks != records.headers["checksum"])
        marked.append((wrong, messages.STATE_BAD_CHECKSUM))
    if columns.needs_payload:
        broken = payload_columns(data, records, wanted, found, shown=shown)
        marked.append((broken, messages.STATE_BAD_ATTRIBUTES))
    for rows, state in marked:
        if len(rows):
            states = np.zeros(count, np.int8) if states is None else states
            states[rows if readable is None else readable[rows]] = messages.STATES.index(state)
    if readable is not None and len(readable) < count:
        found = spread(found, readable, count)
    if columns.views and "body" in found and found["body"].type == _LARGE_BINARY:
        found["body"] = kernels.as_views(found["body"])
    values |= found
    if states is None or not states.any():
        if "state" in wanted:
            values["state"] = constant("state", messages.STATE_OK, count)
        return None
    if "state" in wanted:
        values["state"] = _STATES.take(integers(pa.int32(), states.astype(np.int32)))
    first = int(np.flatnonzero(states)[0])
    return first, messages.STATES[states[first]]


def _differing(entries: Array, headers: Array) -> Array:
    """Return which rows have an entry that contradicts its record."""
    differs = np.zeros(len(entries), bool)
    for name in SHARED_FIELDS:
        differs |= entries[name] != headers[name]
    return differs
