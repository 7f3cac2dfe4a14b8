"""Records of the log as Arrow tables, column by column (`rows.MESSAGE_SCHEMA`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.formats import (
    HOST_V4_SIZE,
    MAGIC_V1,
    MESSAGE_FIELD_COLUMNS,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    STATE_LOST,
    STATE_OK,
    decode_host,
    message_id,
)
from rocketcompat.record.columns import RecordColumns, split
from rocketcompat.record.rows import MESSAGE_SCHEMA, lost_rows
from tubestore.core.kernels import Int64s, binary_from, bytes_of, offsets_of, slices, texts

_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_OK = texts([STATE_OK])[0]
#: A row with more pairs is looked through for repeated names by itself.
_PAIRS_MAX = 32


def table_of(
    records: RecordColumns, bodies: pa.LargeBinaryArray | None = None, states: Any = None
) -> pa.Table:
    """Return sound records as a table; `bodies` and `states` instead of the stored and "ok".

    A stand-in of a lost message has its state and no body, whatever is given.
    """
    columns: dict[str, Any] = {name: records.column(name) for name in MESSAGE_FIELD_COLUMNS}
    magic = records.column("magic_code")
    columns |= {
        "topic": pa.array(records.topic_names, pa.string()).take(pa.array(records.topic_codes)),
        "physical_offset": records.starts + records.base,
        "store_size": records.column("total_size"),
        "version": np.where(magic == MAGIC_V1, 1, 2).astype(np.int32),
        "born_host": _host_texts(records.hosts("born_host")),
        "store_host": _host_texts(records.hosts("store_host")),
        "properties": property_maps(records),
        "body": bodies_of(records) if bodies is None else without_lost(bodies, records),
        "msg_id": _message_ids(records),
        "state": states_of(records, states),
    }
    arrays = [_array(columns[field.name], field.type) for field in MESSAGE_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=MESSAGE_SCHEMA)


def states_of(records: RecordColumns, states: Any = None) -> pa.StringArray:
    """Return the state of each record: "ok" or `states`, and that of stand-ins."""
    found = pa.repeat(_OK, len(records)) if states is None else pa.array(states, pa.string())
    lost = lost_rows(records.column("prepared_transaction_offset"))
    return found if lost is None else pc.if_else(lost, STATE_LOST, found)


def bodies_of(records: RecordColumns) -> pa.LargeBinaryArray:
    """Return the bodies as stored, null for stand-ins of lost messages."""
    return without_lost(records.bodies(), records)


def without_lost(bodies: pa.LargeBinaryArray, records: RecordColumns) -> pa.LargeBinaryArray:
    """Return bodies with nulls for the stand-ins of lost messages."""
    lost = lost_rows(records.column("prepared_transaction_offset"))
    return bodies if lost is None else pc.if_else(lost, pa.scalar(None, bodies.type), bodies)


def property_maps(records: RecordColumns) -> pa.MapArray:
    """Return the properties of each row as a map: what `formats.parse_properties` gives."""
    raw = records.property_bytes
    bounds = _bounds(records.properties())
    rows, starts, ends = split(raw, bounds[:-1], bounds[1:], ord(PROPERTY_SEPARATOR))
    at = np.append(np.flatnonzero(raw == ord(NAME_VALUE_SEPARATOR)), len(raw))
    middles = at[np.searchsorted(at, starts)] if len(starts) else starts
    # A pair has a name and a value; what has no separator has none before its end.
    good = (middles > starts) & (middles + 1 < ends)
    rows, starts, middles, ends = rows[good], starts[good], middles[good], ends[good]
    names = slices(raw, starts, middles - starts)
    last = _last_of_each_name(rows, names)
    if not last.all():
        rows, middles, ends = rows[last], middles[last], ends[last]
        names = names.filter(pa.array(last))
    values = slices(raw, middles + 1, ends - middles - 1)
    counts = np.bincount(rows, minlength=len(records))
    offsets = pa.array(offsets_of(counts).astype(np.int32))
    return pa.MapArray.from_arrays(offsets, utf8_texts(names), utf8_texts(values))


def _last_of_each_name(rows: Int64s, names: pa.LargeBinaryArray) -> Any:
    """Mask of the pairs of which no later one of the same row has the same name."""
    last = np.ones(len(rows), bool)
    if len(rows) == 0:
        return last
    codes = names.dictionary_encode().indices.to_numpy()
    most = int(np.bincount(rows).max())
    if most > _PAIRS_MAX:
        places = {pair: i for i, pair in enumerate(zip(rows.tolist(), codes.tolist(), strict=True))}
        last[:] = False
        last[list(places.values())] = True
        return last
    for step in range(1, most):
        same = (rows[step:] == rows[:-step]) & (codes[step:] == codes[:-step])
        last[:-step] &= ~same
    return last


def utf8_texts(raw: pa.LargeBinaryArray) -> Any:
    """Return bytes as text; what is not UTF-8 gets replacement characters."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in raw.to_pylist()])


def _host_texts(hosts: pa.LargeBinaryArray) -> Any:
    encoded = hosts.dictionary_encode()
    texts = [decode_host(raw) for raw in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _message_ids(records: RecordColumns) -> Any:
    """Return the offset message ids: store host and physical offset in hex."""
    hosts = records.hosts("store_host")
    offsets = records.starts + records.base
    sizes = np.diff(_bounds(hosts))
    if len(records) == 0 or not (sizes == HOST_V4_SIZE).all():
        ids = zip(hosts.to_pylist(), offsets.tolist(), strict=True)
        return pa.array([message_id(host, offset) for host, offset in ids], pa.string())
    raw = np.empty((len(records), HOST_V4_SIZE + 8), np.uint8)
    raw[:, :HOST_V4_SIZE] = bytes_of(hosts.buffers()[2])[: int(sizes.sum())].reshape(-1, 8)
    raw[:, HOST_V4_SIZE:] = offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
    letters = np.stack((_HEX[raw >> 4], _HEX[raw & 15]), axis=2)
    size = letters.shape[1] * 2
    bounds = np.arange(0, size * (len(records) + 1), size, dtype=np.int64)
    return binary_from(bounds, np.ascontiguousarray(letters)).cast(pa.string())


def _array(values: Any, kind: pa.DataType) -> Any:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return array if array.type == kind else array.cast(kind)


def _bounds(column: pa.LargeBinaryArray) -> Int64s:
    """Boundaries of a binary column that starts at 0 of its buffers."""
    if len(column) == 0:
        return np.zeros(1, np.int64)
    return np.frombuffer(column.buffers()[1], np.int64)[: len(column) + 1]
