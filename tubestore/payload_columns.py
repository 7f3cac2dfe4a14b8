"""Bodies, filter items and attributes of records that were found, as Arrow columns.

Next to read: `decode.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore import kernels, messages
from tubestore.attributes import LENGTH_SIZE, parse_text
from tubestore.columns import constant, spread
from tubestore.formats import ATTRIBUTE_TYPE
from tubestore.found_records import Data, Records, bodies
from tubestore.records import HEADER_SIZE, has_attributes

Array = np.ndarray[Any, Any]
_TYPE = pa.scalar(ATTRIBUTE_TYPE)


def payload_columns(
    data: Data,
    records: Records,
    wanted: frozenset[str],
    values: dict[str, pa.Array],
    *,
    shown: bool,
) -> Array:
    """Add the columns that stand in payloads; return the rows whose attributes make no sense.

    `shown`: bodies are not copied where nothing is wrong with any of them.
    """
    starts, sizes = records.starts, records.sizes
    shown = shown and records.ascending
    count = len(starts)
    if not records.have_attributes():
        for name in ("filter_item", "attributes"):
            if name in wanted:
                values[name] = constant(name, None, count)
        if records.payloads is not None:
            values["body"] = records.payloads
        elif "body" in wanted and shown:
            values["body"] = kernels.views(data.view, starts, records.ends, records.prefixes)
        elif "body" in wanted and records.ascending:
            values["body"] = bodies(data, starts, sizes, records.bounds, records.table)
        elif "body" in wanted:
            values["body"] = kernels.slices(data.view, starts, records.ends - starts)
        return starts[:0]
    data.attributed = True
    ends = records.ends
    flagged = np.flatnonzero(has_attributes(records.headers["flag"]))
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
        found = _from_attributes(texts, wanted)
        values |= found if len(flagged) == count else spread(found, flagged, count)
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


def _from_attributes(texts: pa.LargeBinaryArray, wanted: frozenset[str]) -> dict[str, pa.Array]:
    """Return the wanted columns that stand in attribute texts.

    Messages of one kind and minute have the same text, which is looked at once.
    """
    encoded = texts.dictionary_encode()
    alike = 2 * len(encoded.dictionary) < len(texts)
    maps = attribute_maps(encoded.dictionary if alike else texts)
    found: dict[str, pa.Array] = {}
    if "attributes" in wanted:
        found["attributes"] = maps
    if "filter_item" in wanted:
        found["filter_item"] = pc.map_lookup(maps, _TYPE, "first")
    if alike:
        found = {name: column.take(encoded.indices) for name, column in found.items()}
    return found


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
