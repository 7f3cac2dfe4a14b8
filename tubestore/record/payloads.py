"""Bodies, filter items and attributes of records that were found, as Arrow columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore import messages
from tubestore.core import kernels
from tubestore.record.attributes import LENGTH_SIZE, parse_text
from tubestore.record.columns import constant, spread
from tubestore.record.layouts import ATTRIBUTE_TYPE
from tubestore.record.locate import Data, Records, bodies
from tubestore.record.records import HEADER_SIZE

Array = np.ndarray[Any, Any]
_TYPE = kernels.texts([ATTRIBUTE_TYPE])[0]
# As numbers of Python's they would import pandas (`kernels.integers`).
_ZERO, _TWO = kernels.integers(pa.int32(), np.array([0, 2], np.int32))


def payload_columns(
    data: Data,
    records: Records,
    wanted: frozenset[str],
    values: dict[str, pa.Array],
    *,
    shown: bool,
) -> Array:
    """Add the columns that come from payloads; return the rows with invalid attributes.

    `shown`: bodies are not copied where nothing is wrong with any of them.
    """
    flagged = records.with_attributes()
    shown = shown and records.ascending
    count = len(records.starts)
    if not isinstance(flagged, slice) and not len(flagged):
        for name in ("filter_item", "attributes"):
            if name in wanted:
                values[name] = constant(name, None, count)
        if "body" in wanted:
            values["body"] = _payloads(data, records, shown=shown)
        return flagged
    data.attributed = True
    lengths, broken = _attribute_lengths(data, records, flagged)
    if "body" in wanted:
        values["body"] = _bodies(data, records, flagged, lengths, broken, shown=shown)
    if wanted & {"filter_item", "attributes"}:
        texts = kernels.slices(data.view, records.starts[flagged] + LENGTH_SIZE, lengths)
        found = _from_attributes(texts, wanted)
        values |= found if isinstance(flagged, slice) else spread(found, flagged, count)
    rows = np.flatnonzero(broken)
    return rows if isinstance(flagged, slice) else flagged[rows]


def _payloads(data: Data, records: Records, *, shown: bool) -> pa.Array:
    """Return whole payloads."""
    starts = records.starts
    if records.payloads is not None:
        return records.payloads
    if shown:
        return kernels.views(data.view, starts, records.ends, records.prefixes)
    if records.ascending:
        return bodies(data, starts, records.sizes, records.bounds, records.table)
    return kernels.slices(data.view, starts, records.ends - starts)


def _attribute_lengths(data: Data, records: Records, flagged: Array | slice) -> tuple[Array, Array]:
    """Return (attribute bytes, is impossible) of the rows with attributes; negative counts as 0."""
    sizes = records.sizes
    room = (sizes if isinstance(sizes, int) else sizes[flagged]) - LENGTH_SIZE
    numbers = records.first_numbers
    if numbers is not None:
        lengths = numbers[flagged].astype(np.int64)
    else:
        # A payload too short for a length is looked up at the record's start: not used.
        starts = records.starts[flagged]
        places = np.where(np.less(room, 0), starts - HEADER_SIZE, starts)
        lengths = kernels.gather(data.bytes, places, np.dtype(">i4")).astype(np.int64)
    broken = (lengths > room) | np.less(room, 0)
    np.maximum(lengths, 0, out=lengths)
    lengths[broken] = 0
    return lengths, broken


def _bodies(
    data: Data,
    records: Records,
    flagged: Array | slice,
    lengths: Array,
    broken: Array,
    *,
    shown: bool,
) -> pa.Array:
    """Return the bytes behind the attributes; null where those are broken."""
    starts, ends = records.starts, records.ends
    skipped = lengths + LENGTH_SIZE
    sound = not np.count_nonzero(broken)
    if sound and isinstance(flagged, slice) and records.table is not None and not shown:
        first = HEADER_SIZE + skipped.item(0)
        if first < records.table.shape[1] and not np.count_nonzero(skipped != skipped.item(0)):
            return kernels.spaced_pieces(records.table[:, first:])
    body_starts = starts.copy()
    body_starts[flagged] += skipped
    if sound and shown:
        return kernels.views(data.view, body_starts, ends)
    if sound and records.ascending:
        return kernels.pieces(data.view, kernels.bounds_of(body_starts, ends))
    body_starts = np.minimum(body_starts, ends)
    found = kernels.slices(data.view, body_starts, ends - body_starts)
    if sound:
        return found
    known = np.ones(len(starts), bool)
    known[flagged] = ~broken
    return pc.if_else(pa.array(known), found, None)


def _from_attributes(texts: pa.LargeBinaryArray, wanted: frozenset[str]) -> dict[str, pa.Array]:
    """Return the wanted columns that come from attribute texts.

    Messages of one kind and minute have the same text, which is parsed once.
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
        if len(pairs) and pc.all(pc.equal(pc.list_value_length(pairs), _TWO)).as_py():
            flat = pairs.flatten()
            keys, values = flat[0::2], flat[1::2]
            empty = pc.any(pc.equal(pc.binary_length(keys), _ZERO)).as_py()
            if not empty:
                return pa.MapArray.from_arrays(items.offsets, _whole(keys), _whole(values))
    except pa.ArrowInvalid:
        pass  # not UTF-8
    rows = [list(parse_text(text).items()) for text in texts.to_pylist()]
    return pa.array(rows, messages.MESSAGE_SCHEMA.field("attributes").type)


def _whole(column: pa.Array) -> pa.Array:
    """Copy a strided slice into an array of its own (a map wants children without offsets)."""
    return column.take(kernels.integers(pa.int64(), np.arange(len(column), dtype=np.int64)))
