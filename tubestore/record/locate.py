"""Find the records of some index entries in a shard's data.

A log normally gives rows that ascend, lie inside the file and agree with their headers. That is
proved with a handful of comparisons of whole columns, and then no row is examined by itself;
anything else takes the long way.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tubestore import messages
from tubestore.core import kernels
from tubestore.record.layouts import (
    DATA_HEADER,
    FLAG_HAS_ATTRIBUTES,
    LENGTH_BEFORE_PAYLOAD,
    TOKEN_MESSAGE,
)
from tubestore.record.records import HEADER_SIZE

Array = np.ndarray[Any, Any]

#: Records no farther apart than this are adjacent for the processor's prefetching.
_DENSE_BYTES = 4096
#: What the first eight bytes of a header, length and token, are as one number when the payload's
#: size has been taken away.
_HEAD_LESS_SIZE = TOKEN_MESSAGE + (LENGTH_BEFORE_PAYLOAD << 32)
_HEAD_TYPE = np.dtype(">i8")
_HEAD = struct.Struct(">ii")
_RAW_HEADER = np.dtype((np.void, HEADER_SIZE))
#: A header and the first bytes of its payload, which a view of the payload repeats.
_SIZE_WITH_PREFIX = HEADER_SIZE + 4
_PREFIX_TYPE, _LENGTH_TYPE = np.dtype("<i4"), np.dtype(">i4")
_BYTE = np.dtype(np.uint8)
_NO_ROWS = np.empty(0, np.int64)
_LOW_FLAG_BYTE = DATA_HEADER.position("flag") + 3


class Data:
    """Bytes of a shard's data stream: `view` starts at the absolute offset `start`.

    `lasting`: they are mapped from a sealed file, which is never shortened: a view of them may
    live.
    """

    def __init__(self, view: memoryview, start: int, *, lasting: bool = False) -> None:
        self.view, self.start, self.size, self.lasting = view, start, len(view), lasting
        self._payload_windows: tuple[int, Array | None] = (0, None)
        #: True if there were payloads that begin with attributes, so that bodies are not payloads.
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
    """The places of the payloads of some readable rows in the data, and what is before them.

    `sizes`: of the payloads, one number if all are of one; `raw`: the headers as they lie, a row
    each; `ascending`: one payload ends before the next begins, as in a log; `bounds`: start, end,
    start, end … of those, if they were computed; `table`: the records as its rows, if they
    are at one distance, too; `payloads`: copies that were made in time; `prefixed`: behind each
    header are the first bytes of its payload.
    """

    starts: Array
    sizes: Array | int
    raw: Array
    ascending: bool = False
    bounds: Array | None = None
    table: Array | None = None
    payloads: pa.LargeBinaryArray | None = None
    prefixed: bool = False

    @property
    def ends(self) -> Array:
        """Where the payloads end."""
        return self.starts + self.sizes

    @property
    def headers(self) -> Array:
        """The headers, as structures."""
        return _fields(self.raw, 0, DATA_HEADER.dtype)

    @property
    def prefixes(self) -> Array | None:
        """The first bytes of the payloads, if they are known."""
        return _fields(self.raw, HEADER_SIZE, _PREFIX_TYPE) if self.prefixed else None

    @property
    def first_numbers(self) -> Array | None:
        """The same as numbers of the format, which is what attributes begin with."""
        return _fields(self.raw, HEADER_SIZE, _LENGTH_TYPE) if self.prefixed else None

    def with_attributes(self) -> Array | slice:
        """Return the rows that begin with attributes; all of them as a slice."""
        if not len(self.raw):
            return _NO_ROWS
        flags = _fields(self.raw, _LOW_FLAG_BYTE, _BYTE).tobytes()
        if flags.count(0) == len(flags):
            return _NO_ROWS
        if flags.count(FLAG_HAS_ATTRIBUTES) == len(flags):
            return slice(None)
        return np.flatnonzero(np.frombuffer(flags, np.uint8) & FLAG_HAS_ATTRIBUTES)


def plain_records(
    entries: Array, positions: Array, data: Data, *, with_body: bool, shown: bool
) -> Records | None:
    """Return the records if all are readable and ascend without overlap, as in a log; else None.

    Adjacent bodies are copied first: that brings the headers between
    them into the processor's cache. The first lines of scattered ones are brought there by
    reading the headers, many at a time, which the copy, one by one, cannot do.

    Most is compared as bytes: of a page of some dozen rows a column of numbers takes as long.
    """
    count = len(entries)
    if not count or data.size < HEADER_SIZE:
        return None
    if data.start:
        positions = positions - data.start
    table, bounds = None, None
    sizes: Array | int
    lengths = entries["data_size"].tobytes()
    size = entries["data_size"].item(0) if lengths == lengths[:4] * count else 0
    if size:
        if not _in_order(entries, positions, size, data.size):
            return None
        starts, sizes = positions + HEADER_SIZE, size - HEADER_SIZE
        table = _table(data, positions, size)
        span = positions.item(-1) - positions.item(0) + size
    else:
        sizes = entries["data_size"].astype(np.int64)
        bounds = _bounds(positions, sizes, data.size)
        if bounds is None:
            return None
        starts, span = bounds[0::2], bounds.item(-1) - bounds.item(0)
        sizes -= HEADER_SIZE
    payloads = None
    if not data.attributed:  # a stream with attributes mostly has them in the first message, too
        flag = data.bytes.item(positions.item(0) + _LOW_FLAG_BYTE)
        data.attributed = bool(flag & FLAG_HAS_ATTRIBUTES)
    if with_body and span < _DENSE_BYTES * count and not shown and not data.attributed:
        payloads = bodies(data, starts, sizes, bounds, table)
    # Where there were attributes, their length is what a payload begins with.
    prefixed = shown or data.attributed
    prefixed = prefixed and positions.item(-1) + _SIZE_WITH_PREFIX <= data.size
    if table is not None and size >= _SIZE_WITH_PREFIX:
        raw = np.ascontiguousarray(table[:, : _SIZE_WITH_PREFIX if prefixed else HEADER_SIZE])
    else:
        raw = (data.prefixed_windows if prefixed else data.windows)[positions]
    if not _heads_agree(raw, sizes):
        return None
    return Records(starts, sizes, raw, True, bounds, table, payloads, prefixed)


def _in_order(entries: Array, positions: Array, size: int, data_size: int) -> bool:
    """True if records of one size ascend without overlap inside the data, and have a payload."""
    if size <= HEADER_SIZE or positions.item(0) < 0 or positions.item(-1) > data_size - size:
        return False
    # None is negative or so large that a difference would not fit.
    if entries["data_offset"].tobytes()[0::8].count(0) != len(entries):
        return False
    return not np.count_nonzero(positions[1:] - positions[:-1] < size)


def _bounds(positions: Array, sizes: Array, data_size: int) -> Array | None:
    """Return start, end, start, end … of payloads that ascend without overlap inside the data."""
    bounds = np.empty(2 * len(positions), np.int64)
    np.add(positions, HEADER_SIZE, out=bounds[0::2])
    np.add(positions, sizes, out=bounds[1::2])
    if (
        positions.item(0) < 0
        or bounds.item(-1) > data_size
        # Not equal either: a payload has a byte, and a header is before the next one.
        or np.count_nonzero(bounds[1:] <= bounds[:-1])
    ):
        return None
    return bounds


def _heads_agree(raw: Array, sizes: Array | int) -> bool:
    """True if length and token at the beginning of raw headers are those of such payloads."""
    heads = _fields(raw, 0, _HEAD_TYPE)
    if isinstance(sizes, int):
        head = _HEAD.pack(sizes + LENGTH_BEFORE_PAYLOAD, TOKEN_MESSAGE)
        return heads.tobytes() == head * len(heads)
    left = heads.astype(np.int64)
    left -= sizes << 32
    return not np.count_nonzero(left != _HEAD_LESS_SIZE)


def _fields(raw: Array, position: int, dtype: np.dtype[Any]) -> Array:
    """Present a field at one position of each of some raw records.

    Not by `view`, which checks all fields of a structured type for Python objects first.
    """
    return np.ndarray(len(raw), dtype, raw, position, raw.strides[:1])


def _table(data: Data, positions: Array, size: int) -> Array | None:
    """Present records of one size and one distance as rows of a table, without a copy.

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
    data: Data, starts: Array, sizes: Array | int, bounds: Array | None, table: Array | None
) -> pa.LargeBinaryArray:
    """Copy payloads that ascend; `sizes`, `bounds`, `table`: as those of `Records`."""
    if table is not None:
        return kernels.spaced_pieces(table[:, HEADER_SIZE:])
    if isinstance(sizes, int) and sizes * len(starts) <= kernels.EVEN_BYTES_MAX:
        return kernels.even_pieces(data.payload_windows(sizes), starts)
    if bounds is None:
        bounds = kernels.bounds_of(starts, np.add(starts, sizes))
    return kernels.pieces(data.view, bounds)


def readable_records(entries: Array, data: Data, states: Array) -> tuple[Records, Array]:
    """Return those records that can be read and their row numbers; marks the others."""
    positions = entries["data_offset"].astype(np.int64) - data.start
    sizes = entries["data_size"].astype(np.int64)
    inside = (sizes > HEADER_SIZE) & (positions >= 0) & (positions + sizes <= data.size)
    states[~inside] = messages.STATES.index(messages.STATE_MISSING)
    rows = np.flatnonzero(inside)
    positions, sizes = positions[rows], sizes[rows]
    raw = np.empty(0, _RAW_HEADER)
    if len(rows):  # all of them are inside
        raw = data.windows[positions]
    headers = raw.view(DATA_HEADER.dtype)
    sound = (headers["token"] == TOKEN_MESSAGE) & (headers["length"] == sizes - 4)
    if not sound.all():
        states[rows[~sound]] = messages.STATES.index(messages.STATE_BAD_RECORD)
        rows, raw = rows[sound], raw[sound]
        positions, sizes = positions[sound], sizes[sound]
    return Records(positions + HEADER_SIZE, sizes - HEADER_SIZE, raw), rows
