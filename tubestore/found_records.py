"""Where the records of some index entries stand in a shard's data.

What a log gives is rows that ascend, lie inside the file and agree with their headers. That is
proved with a handful of comparisons of whole columns, and then nothing is looked at row by row;
whatever else it is takes the long way.

Next to read: `payload_columns.py`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tubestore import kernels, messages
from tubestore.formats import DATA_HEADER, TOKEN_MESSAGE
from tubestore.records import HEADER_SIZE

Array = np.ndarray[Any, Any]

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


class Records(NamedTuple):
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


def plain_records(
    entries: Array, positions: Array, data: Data, *, with_body: bool, shown: bool
) -> Records | None:
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
        payloads = bodies(data, starts, flat, size, table)
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
    return Records(starts, ends, headers, flags, flat, size, table, payloads, prefixes)


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


def bodies(
    data: Data, starts: Array, bounds: Array, size: int, table: Array | None
) -> pa.LargeBinaryArray:
    """Copy payloads that ascend; `size`: of each, 0 if they differ; `table`: of the records."""
    if table is not None:
        return kernels.spaced_pieces(table[:, HEADER_SIZE:])
    if size * len(starts) <= kernels.EVEN_BYTES_MAX and size:
        return kernels.even_pieces(data.payload_windows(size), starts)
    return kernels.pieces(data.view, bounds)


def readable_records(entries: Array, data: Data, states: Array) -> tuple[Records, Array]:
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
    return Records(positions + HEADER_SIZE, positions + sizes, headers, flags), rows
