"""Work on whole columns of variable-length records, at the speed of memory.

Three tricks carry all encoders and decoders of both formats; each was measured
against its alternatives before it was kept (performance.md):

- `interleave` writes header, body, header, body … with one Arrow call;
- `gather` reads fixed fields at arbitrary positions through a stride-1 view;
- `slices` copies out bodies at arbitrary positions with one Arrow `take`.

All functions are pure and thread-safe. Positions and sizes are int64 arrays.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore.core.layout import Buffer

try:
    from isal.isal_zlib import crc32 as crc32
except ImportError:  # no wheel for this machine: slower, same values
    from zlib import crc32 as crc32

# Not by `pa.scalar` and `pa.array`: they import pandas where it is installed, which takes a process
# of Spark a quarter of a second (`integers`, `texts`).
_EMPTY = pa.Array.from_buffers(
    pa.large_binary(), 1, [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")]
)[0]
_BINARY, _LARGE_BINARY, _INT64 = pa.binary(), pa.large_binary(), pa.int64()
#: Where the last piece of a `binary` column may end.
_NARROW_MAX = (1 << 31) - 1
# As `Array.take`, without its search for out-of-range places: a third of the time of a short one.
_TAKE = pc.get_function("array_take")
_UNCHECKED = pc.TakeOptions(boundscheck=False)
#: Up to so many pieces Python's join is done before Arrow's take has started.
_JOINED_MAX = 32
EVEN_BYTES_MAX = 128 << 10
#: Fewer slices are cut out before it is known that they are rows of a table.
_TABLE_MIN = 32
#: Fewer values are sorted by comparing them.
_COUNTED_MIN = 2000
#: Arrow's `binary_view` keeps so many bytes in the view itself.
_INLINE_MAX = 12
assert crc32(b"123456789") == zlib.crc32(b"123456789") == 0xCBF43926

Int64s = np.ndarray[Any, np.dtype[np.int64]]


def integers(
    kind: pa.DataType, values: np.ndarray[Any, Any], known: np.ndarray[Any, Any] | None = None
) -> pa.Array:
    """Wrap a contiguous array of the kind's own width; null where `known` is False."""
    valid = None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)])


def texts(values: Sequence[str]) -> pa.StringArray:
    """Return a few texts as a column."""
    encoded = [value.encode() for value in values]
    bounds = offsets_of(np.array([len(text) for text in encoded], np.int64)).astype(np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def offsets_of(sizes: Int64s) -> Int64s:
    """Return n + 1 boundaries from n sizes, the first 0."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def grouped(values: np.ndarray[Any, Any]) -> tuple[Int64s, Int64s, Int64s]:
    """Number the distinct values of whole numbers, ascending.

    Returns the number of each element's value, an index of the first element of each value, and
    each element's place among the equal ones: 0 for the first of its value.

    >>> [found.tolist() for found in grouped(np.array([7, 3, 7, 7, 3]))]
    [[1, 0, 1, 1, 0], [1, 0], [0, 0, 1, 2, 1]]
    """
    count = len(values)
    if count and values.min() >= 0 and values.max() < 1 << 16:
        values = values.astype(np.uint16)  # which numpy sorts by their bits
    order = values.argsort(kind="stable")
    ordered = values[order]
    begins = np.empty(count, bool)
    begins[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    starts = np.flatnonzero(begins)
    numbers = np.cumsum(begins) - 1
    groups, places = np.empty(count, np.int64), np.empty(count, np.int64)
    groups[order] = numbers
    places[order] = np.arange(count) - starts[numbers]
    return groups, order[starts], places


def stable_order(values: np.ndarray[Any, Any], below: int) -> Int64s:
    """Return the stable order that sorts integers of [0, below).

    NumPy sorts 16 bits by counting, and more by comparing, which takes three to five times as long.

    >>> stable_order(np.array([2, 0, 2, 1]), 3).tolist()
    [1, 3, 0, 2]
    """
    if below > 1 << 32 or (below > 1 << 16 and len(values) < _COUNTED_MIN):
        return values.argsort(kind="stable")
    order = values.astype(np.uint16).argsort(kind="stable")
    if below <= 1 << 16:
        return order
    high: Int64s = (values >> 16).astype(np.uint16)[order].argsort(kind="stable")
    return order[high]


def ranks(groups: np.ndarray[Any, Any]) -> Int64s:
    """Return each element's place among the equal ones before it: 0 for the first of its value.

    >>> ranks(np.array([7, 3, 7, 7, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    return grouped(groups)[2]


def fixed_binary(rows: np.ndarray[Any, Any]) -> pa.LargeBinaryArray:
    """Present a structured array as a binary column, one row's bytes an element, without a copy."""
    size = rows.dtype.itemsize
    offsets = np.arange(0, size * (len(rows) + 1), size, dtype=np.int64)
    return binary_from(offsets, rows)


def binary_from(offsets: Int64s, data: Any) -> pa.LargeBinaryArray:
    """Wrap boundaries and bytes as a binary column, without a copy."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(_LARGE_BINARY, len(offsets) - 1, buffers)


def widened(column: pa.BinaryArray | pa.StringArray) -> pa.LargeBinaryArray:
    """Present a column as `large_binary` over the same bytes; as `cast`, at a tenth of its cost."""
    count = len(column)
    _, bounds, data = column.buffers()
    if column.null_count or bounds is None or not count:
        return column.cast(_BINARY).cast(_LARGE_BINARY)
    edges = np.frombuffer(bounds, np.int32)[column.offset : column.offset + count + 1]
    buffers = [None, pa.py_buffer(edges.astype(np.int64)), data]
    return pa.Array.from_buffers(_LARGE_BINARY, count, buffers)


def narrowed(column: pa.LargeBinaryArray) -> pa.BinaryArray:
    """Present a column as `binary` over the same bytes; as `cast`, at a tenth of its cost."""
    count = len(column)
    _, bounds, data = column.buffers()
    if column.null_count or bounds is None or not count:
        return column.cast(_BINARY)
    edges = np.frombuffer(bounds, np.int64)[column.offset : column.offset + count + 1]
    if edges.item(-1) > _NARROW_MAX:
        return column.cast(_BINARY)
    buffers = [None, pa.py_buffer(edges.astype(np.int32)), data]
    return pa.Array.from_buffers(_BINARY, count, buffers)


def interleave(*columns: pa.LargeBinaryArray) -> pa.Buffer:
    """Concatenate element 0 of each column, then element 1 …; the result may be written to."""
    joined = pc.binary_join_element_wise(*columns, _EMPTY)
    return joined.buffers()[2]


def bytes_of(buffer: Buffer | pa.Buffer) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """View a buffer as an array of bytes."""
    return np.frombuffer(buffer, np.uint8)


def gather(
    data: np.ndarray[Any, np.dtype[np.uint8]], positions: Int64s, dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """Copy the record of `dtype` that starts at each position; every one must lie inside `data`."""
    if len(positions) == 0:
        return np.empty(0, dtype)
    if positions.min() < 0 or positions.max() + dtype.itemsize > len(data):
        raise IndexError(f"a record of {dtype.itemsize} bytes reaches beyond {len(data)} bytes")
    return gather_inside(data, positions, dtype)


def gather_inside(
    data: np.ndarray[Any, np.dtype[np.uint8]], positions: Int64s, dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """As `gather`, for at least one position, all of which are known to lie inside."""
    return windows(data, dtype.itemsize)[positions].view(dtype)


def windows(data: np.ndarray[Any, np.dtype[np.uint8]], size: int) -> np.ndarray[Any, Any]:
    """Present the `size` bytes from each position on as one element, without a copy.

    As raw bytes and not as a structured type: copying one field by field takes ten times as long.
    """
    raw = np.dtype((np.void, size))
    return np.ndarray((len(data) - size + 1,), raw, data, strides=(1,))


def rows_at(rows: np.ndarray[Any, Any], places: Any) -> np.ndarray[Any, Any]:
    """Copy the elements of a structured array at these places, as `rows[places]` does.

    As raw bytes, which is five to ten times as fast (see `gather`).
    """
    return np.asarray(rows.view(f"V{rows.dtype.itemsize}").take(places).view(rows.dtype))


def scatter(
    data: np.ndarray[Any, np.dtype[np.uint8]], positions: Int64s, values: np.ndarray[Any, Any]
) -> None:
    """Write `values[i]` (in its own byte order) at `positions[i]`."""
    if len(positions) == 0:
        return
    places = windows(data, values.dtype.itemsize)
    places[positions] = np.ascontiguousarray(values).view(places.dtype)


def slices(data: Buffer | pa.Buffer, starts: Int64s, sizes: Int64s) -> pa.LargeBinaryArray:
    """Copy out `data[start : start + size]` for each row, in row order.

    Ascending, non-overlapping rows (what a log gives) take one pass; others are
    put in order first, and overlapping ones fall back to a loop.
    """
    count = len(starts)
    if count == 0:
        return pa.array([], _LARGE_BINARY)
    ends = starts + sizes
    bounds = bounds_of(starts, ends)
    if not np.count_nonzero(bounds[2::2] < bounds[1:-1:2]):
        return pieces(data, bounds)
    order = np.argsort(starts, kind="stable")
    if np.all(starts[order][1:] >= ends[order][:-1]):
        back = np.empty(count, np.int64)
        back[order] = np.arange(count)
        return slices(data, starts[order], sizes[order]).take(integers(_INT64, back))
    view = memoryview(data)
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    return pa.array([bytes(view[a:b]) for a, b in pairs], pa.large_binary())


def joined(
    data: Buffer | pa.Buffer, starts: Int64s, sizes: Int64s
) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], Int64s]:
    """Return slices, one at least, one behind the other, and their boundaries from 0 on.

    A view if the pieces are adjacent in `data`, otherwise a copy that may be written to.

    >>> joined(b"abcd", np.array([1, 2]), np.array([1, 2]))[0].tobytes()
    b'bcd'
    """
    bounds, first = offsets_of(sizes), starts.item(0)
    if np.array_equal(starts - first, bounds[:-1]):
        return bytes_of(data)[first : first + bounds.item(-1)], bounds
    _, edges, copied = slices(data, starts, sizes).buffers()
    low = np.frombuffer(edges, np.int64).item(0)
    return bytes_of(copied)[low : low + bounds.item(-1)], bounds


def bounds_of(starts: Int64s, ends: Int64s) -> Int64s:
    """Return start, end, start, end … of some pieces."""
    bounds = np.empty(2 * len(starts), np.int64)
    bounds[0::2], bounds[1::2] = starts, ends
    return bounds


def pieces(data: Buffer | pa.Buffer, bounds: Int64s) -> pa.LargeBinaryArray:
    """Copy out the pieces of `data` between bounds 0 and 1, 2 and 3, …; the bounds ascend."""
    count = len(bounds) // 2
    if count <= _JOINED_MAX:
        # As bytes: pyarrow never lets go of a memoryview that it was given as a value (26.0).
        view, edges = memoryview(data), bounds.tolist()
        joined = b"".join([view[a:b] for a, b in zip(edges[0::2], edges[1::2], strict=True)])
        return binary_from(offsets_of(bounds[1::2] - bounds[0::2]), joined)
    # Elements are piece, gap, piece, gap … over the same bytes; the even ones are wanted.
    everything = binary_from(bounds, data)
    return _TAKE.call([everything, _evens(count)], options=_UNCHECKED)


def even_pieces(places: np.ndarray[Any, Any], starts: Int64s) -> pa.LargeBinaryArray:
    """As `pieces`, for some of the `windows` of a size: a quarter faster.

    NumPy gives the room; above `EVEN_BYTES_MAX` the C library takes that back from the system
    page by page, and Arrow's pool does not.
    """
    return even_binary(len(starts), places.itemsize, pa.py_buffer(places[starts]))


def spaced_pieces(table: np.ndarray[Any, Any]) -> pa.LargeBinaryArray:
    """Copy out pieces of one size at one distance, the rows of a table of bytes: faster still."""
    count, size = table.shape
    buffer = pa.allocate_buffer(count * size)
    np.copyto(np.frombuffer(buffer, np.uint8).reshape(count, size), table)
    return even_binary(count, size, buffer)


def even_binary(count: int, size: int, content: pa.Buffer) -> pa.LargeBinaryArray:
    """Wrap `count` elements of one size, behind each other, as a binary column without a copy."""
    return pa.Array.from_buffers(_LARGE_BINARY, count, [None, _even_bounds(count, size), content])


@lru_cache(maxsize=64)
def _even_bounds(count: int, size: int) -> pa.Buffer:
    return pa.py_buffer(np.arange(count + 1, dtype=np.int64) * size)


def views(
    data: Buffer | pa.Buffer,
    starts: Int64s,
    ends: Int64s,
    prefixes: np.ndarray[Any, np.dtype[np.int32]] | None = None,
) -> pa.Array:
    """Present pieces of `data` as a `binary_view` column: nothing but 16 bytes a row is made.

    The column holds `data`. Pieces of up to 12 bytes are in the column itself, as the type
    requires. `prefixes`: the first four bytes of each piece, if the caller has them.
    OverflowError if the pieces are spread over 2 GiB or more.
    """
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary_view())
    sizes = ends - starts
    base = int(np.minimum.reduce(starts))
    if int(np.maximum.reduce(ends)) - base >= 1 << 31:
        raise OverflowError("a view reaches over 2 GiB at most")
    bytes_ = bytes_of(data)[base:]
    places = starts - base
    table = np.zeros((count, 4), "<i4")  # length, then: first bytes, buffer, place; or the bytes
    table[:, 0] = sizes
    if int(np.minimum.reduce(sizes)) > _INLINE_MAX:
        table[:, 1] = windows(bytes_, 4)[places].view("<i4") if prefixes is None else prefixes
        table[:, 3] = places
    else:
        _fill_inline(table, bytes_, places, sizes)
    buffers = [None, pa.py_buffer(table), pa.py_buffer(bytes_)]
    return pa.Array.from_buffers(pa.binary_view(), count, buffers)


def _fill_inline(
    table: np.ndarray[Any, Any], bytes_: np.ndarray[Any, Any], places: Int64s, sizes: Int64s
) -> None:
    """Fill the rows of a view table of which some are short enough to be inline."""
    long = np.flatnonzero(sizes > _INLINE_MAX)
    if len(long):
        table[long, 1] = windows(bytes_, 4)[places[long]].view("<i4")
        table[long, 3] = places[long]
    inline = table.view(np.uint8)
    short = np.flatnonzero(sizes <= _INLINE_MAX)
    for step in range(int(sizes[short].max(initial=0))):
        rows = short[sizes[short] > step]
        inline[rows, 4 + step] = bytes_[places[rows] + step]


def as_views(column: pa.LargeBinaryArray) -> pa.Array:
    """Present a column of bytes as a `binary_view` column over the same bytes; nulls stay."""
    _, bounds, data = column.buffers()
    edges = np.frombuffer(bounds, np.int64)[column.offset : column.offset + len(column) + 1]
    found = views(data if data is not None else b"", edges[:-1], edges[1:])
    if column.null_count == 0:
        return found
    valid = np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    return pa.Array.from_buffers(
        pa.binary_view(), len(column), [pa.py_buffer(valid), *found.buffers()[1:]]
    )


@lru_cache(maxsize=256)
def _evens(count: int) -> pa.Array:
    size = 1 << (count - 1).bit_length()
    if size != count:
        return _evens(size).slice(0, count)
    return integers(_INT64, np.arange(0, 2 * size, 2, dtype=np.int64))


def crc_each(
    data: Buffer | pa.Buffer, starts: Int64s, ends: Int64s, mask: int = 0x7FFFFFFF
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the masked CRC-32 of each slice.

    The one loop over messages in the batch path: nothing in NumPy or Arrow computes a
    CRC, and a call of isal's takes 0.05 µs for 1 KiB. To make a slice takes 0.12 µs; half of
    that if all are of one size and at one distance, rows of a table.
    """
    table = _table_of(data, starts, ends) if len(starts) >= _TABLE_MIN else None
    if table is not None:
        found = list(map(crc32, table))
    else:
        view, check = memoryview(data), crc32
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        found = [check(view[a:b]) for a, b in pairs]
    values = np.frombuffer(array("I", found), np.uint32)
    return (values & np.uint32(mask)).view(np.int32)


def _table_of(
    data: Buffer | pa.Buffer, starts: Int64s, ends: Int64s
) -> np.ndarray[Any, Any] | None:
    """Present slices of one size at one distance, behind each other, as rows; else None."""
    count = len(starts)
    first, size = starts.item(0), ends.item(0) - starts.item(0)
    step = starts.item(1) - first
    if step < size or size <= 0 or starts.item(-1) - first != step * (count - 1):
        return None
    if np.count_nonzero(starts[1:] - starts[:-1] != step) or np.count_nonzero(
        ends - starts != size
    ):
        return None
    if first < 0 or ends.item(-1) > len(data):
        return None
    return np.ndarray((count, size), np.uint8, data, first, (step, 1))


def crc_overlapping(
    data: Buffer | pa.Buffer, starts: Int64s, ends: Int64s, mask: int = 0x7FFFFFFF
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """As `crc_each`, reading each byte once, however many slices it is in.

    One running CRC goes over all. The CRC at a slice's start, moved on by the slice's length, is
    taken away from the CRC at its end; the rest is the slice's.
    """
    edges = np.unique(np.concatenate((starts, ends)))
    view, value, before = memoryview(data), 0, int(edges[0]) if len(edges) else 0
    running = np.empty(len(edges), np.uint32)
    for row, edge in enumerate(edges.tolist()):
        value = crc32(view[before:edge], value)
        running[row], before = value, edge
    moved = running[edges.searchsorted(starts)]
    lengths = ends - starts
    for bit in range(int(lengths.max(initial=0)).bit_length()):
        rows = np.flatnonzero(lengths >> bit & 1)
        moved[rows] = _apply(_zeros_behind(bit), moved[rows])
    values = moved ^ running[edges.searchsorted(ends)]
    return (values & np.uint32(mask)).view(np.int32)


@lru_cache(maxsize=64)
def _zeros_behind(bit: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the effect of 2**bit zero bytes on each of a CRC's four bytes: 4 x 256."""
    if bit:
        half = _zeros_behind(bit - 1)
        return _apply(half, half)
    alone = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32))[:, None]
    for _ in range(8):
        alone = (alone >> np.uint32(1)) ^ np.where(alone & 1, np.uint32(0xEDB88320), np.uint32(0))
    return alone


def _apply(
    table: np.ndarray[Any, np.dtype[np.uint32]], values: np.ndarray[Any, np.dtype[np.uint32]]
) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.asarray(
        table[0][values & 255]
        ^ table[1][values >> 8 & 255]
        ^ table[2][values >> 16 & 255]
        ^ table[3][values >> 24]
    )


def java_hashes(texts: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return Java's `String.hashCode` of each text of a column (nulls as "")."""
    from tubestore.core.java_hash import java_hash

    raw = texts.fill_null("").cast(pa.large_string()).cast(pa.large_binary())
    count = len(raw)
    if count == 0:
        return np.empty(0, np.int32)
    bounds = np.frombuffer(raw.buffers()[1], np.int64)[raw.offset : raw.offset + count + 1]
    data = bytes_of(raw.buffers()[2])[bounds[0] : bounds[-1]] if raw.buffers()[2] else bytes_of(b"")
    if len(data) and data.max() >= 0x80:  # a code unit is not a byte then
        return np.array([java_hash(t) for t in texts.fill_null("").to_pylist()], np.int32)
    starts, sizes = bounds[:-1] - bounds[0], np.diff(bounds)
    longest = int(sizes.max(initial=0))
    values = np.zeros(count, np.uint32)
    for place in range(longest):  # as many steps as the longest key has bytes, whatever the count
        rows = np.flatnonzero(sizes > place)
        values[rows] = values[rows] * np.uint32(31) + data[starts[rows] + place]
    return values.view(np.int32)
