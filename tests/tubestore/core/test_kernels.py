"""The column kernels against the plain loops that they replace."""

from __future__ import annotations

import gc
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubestore.core import kernels
from tubestore.core.java_hash import java_hash

chunks = st.lists(st.binary(max_size=40), max_size=30)
DATA = bytes(range(256)) * 3


@st.composite
def spans(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Pieces of DATA: in any order, perhaps empty, perhaps over each other."""
    starts = draw(st.lists(st.integers(0, len(DATA)), max_size=25))
    return [(start, draw(st.integers(0, len(DATA) - start))) for start in starts]


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    return (
        np.array([start for start, _ in pairs], np.int64),
        np.array([size for _, size in pairs], np.int64),
    )


@given(spans())
def test_slices_copy_out_the_bytes_in_the_order_asked_for(pairs: list[tuple[int, int]]) -> None:
    found = kernels.slices(DATA, *arrays(pairs))
    assert found.type == pa.large_binary()
    assert found.to_pylist() == [DATA[start : start + size] for start, size in pairs]


@given(chunks)
def test_slices_of_a_log_are_its_pieces(pieces: list[bytes]) -> None:
    sizes = np.array([len(p) for p in pieces], np.int64)
    starts = kernels.offsets_of(sizes)[:-1]
    assert kernels.slices(b"".join(pieces), starts, sizes).to_pylist() == pieces


@given(spans())
def test_checksums_are_zlib_s(pairs: list[tuple[int, int]]) -> None:
    starts, sizes = arrays(pairs)
    found = kernels.crc_each(DATA, starts, starts + sizes)
    assert found.dtype == np.int32
    assert found.tolist() == [zlib.crc32(DATA[a : a + n]) & 0x7FFFFFFF for a, n in pairs]


@given(st.integers(0, 40), st.integers(0, 12), st.integers(-3, 9), st.integers(1, 30))
def test_checksums_of_slices_at_one_distance_are_zlib_s(
    first: int, size: int, gap: int, count: int
) -> None:
    starts = first + max(0, size + gap) * np.arange(count)
    found = kernels.crc_each(DATA, starts, starts + size)
    expected = [zlib.crc32(DATA[a : a + size]) & 0x7FFFFFFF for a in starts.tolist()]
    assert found.tolist() == expected


@given(spans())
def test_checksums_of_slices_over_each_other_are_those_of_each(
    pairs: list[tuple[int, int]],
) -> None:
    starts, sizes = arrays(pairs)
    found = kernels.crc_overlapping(DATA, starts, starts + sizes)
    assert found.tolist() == kernels.crc_each(DATA, starts, starts + sizes).tolist()


@given(st.lists(st.integers(0, len(DATA) - 9), min_size=1, max_size=20), st.integers(1, 9))
def test_pieces_of_one_size_are_slices(starts: list[int], size: int) -> None:
    data = kernels.bytes_of(DATA)
    found = kernels.even_pieces(kernels.windows(data, size), np.array(starts, np.int64))
    found.validate(full=True)
    assert found.to_pylist() == [DATA[start : start + size] for start in starts]
    table = data[: len(DATA) // 32 * 32].reshape(-1, 32)[:, 7 : 7 + size]
    assert kernels.spaced_pieces(table).to_pylist() == [bytes(row) for row in table]


@given(st.lists(st.none() | st.text(max_size=9), max_size=20), st.integers(0, 20))
def test_a_widened_column_is_the_same_as_large_binary(texts: list[str | None], skip: int) -> None:
    column = pa.array(texts, pa.string()).slice(min(skip, len(texts)))
    for narrow in (column, column.cast(pa.binary())):
        found = kernels.widened(narrow)
        found.validate(full=True)
        assert found.equals(column.cast(pa.large_string()).cast(pa.large_binary()))


@given(st.lists(st.none() | st.binary(max_size=9), max_size=20), st.integers(0, 20))
def test_a_narrowed_column_is_the_same_as_binary(texts: list[bytes | None], skip: int) -> None:
    for given_texts in (texts, [text for text in texts if text is not None]):
        column = pa.array(given_texts, pa.large_binary()).slice(min(skip, len(given_texts)))
        found = kernels.narrowed(column)
        found.validate(full=True)
        assert found.equals(column.cast(pa.binary()))


def test_checksums_have_the_values_of_the_specification() -> None:
    data = b"123456789hello"
    found = kernels.crc_each(data, np.array([0, 9]), np.array([9, 14]))
    assert found.tolist() == [0x4BF43926, 0x3610A686]


@given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=20))
def test_interleave_joins_row_by_row(rows: list[tuple[bytes, bytes]]) -> None:
    left = pa.array([a for a, _ in rows], pa.large_binary())
    right = pa.array([b for _, b in rows], pa.large_binary())
    joined = b"".join(a + b for a, b in rows)
    buffer = kernels.interleave(left, right)
    assert (bytes(buffer)[: len(joined)] if buffer is not None else b"") == joined


def test_fixed_binary_shows_rows_as_bytes() -> None:
    rows = np.array([(1, 2), (3, 4)], np.dtype([("a", ">i2"), ("b", ">i4")]))
    column = kernels.fixed_binary(rows)
    assert column.to_pylist() == [b"\0\1\0\0\0\2", b"\0\3\0\0\0\4"]


@given(st.lists(st.integers(0, len(DATA) - 4), max_size=30))
def test_gather_reads_fields_anywhere(positions: list[int]) -> None:
    found = kernels.gather(kernels.bytes_of(DATA), np.array(positions, np.int64), np.dtype(">i4"))
    assert found.tolist() == [
        int.from_bytes(DATA[p : p + 4], "big", signed=True) for p in positions
    ]


@pytest.mark.parametrize("position", [-1, len(DATA) - 3, len(DATA), 1 << 40])
def test_gather_refuses_to_read_outside(position: int) -> None:
    with pytest.raises(IndexError):
        kernels.gather(kernels.bytes_of(DATA), np.array([0, position]), np.dtype(">i4"))


def test_scatter_writes_fields_anywhere() -> None:
    data = np.zeros(20, np.uint8)
    kernels.scatter(data, np.array([1, 12]), np.array([-2, 5], ">i4"))
    assert data.tobytes() == b"\0\xff\xff\xff\xfe" + bytes(10) + b"\5" + bytes(4)
    kernels.scatter(data, np.empty(0, np.int64), np.empty(0, ">i4"))


@given(st.lists(st.integers(-3, 3), max_size=40))
def test_ranks_count_the_equal_ones_before(values: list[int]) -> None:
    expected = [values[:n].count(v) for n, v in enumerate(values)]
    assert kernels.ranks(np.array(values, np.int64)).tolist() == expected


@given(st.lists(st.one_of(st.none(), st.text(max_size=12)), max_size=20), st.integers(0, 3))
def test_the_hash_of_a_column_is_java_s_of_each_text(texts: list[str | None], first: int) -> None:
    clean = [None if t is None else t.encode("utf-8", "replace").decode() for t in texts]
    column = pa.array(clean, pa.string()).slice(first)
    assert kernels.java_hashes(column).tolist() == [java_hash(t or "") for t in clean[first:]]


@given(st.lists(st.text(st.characters(codec="ascii"), max_size=12), min_size=1, max_size=20))
def test_the_hash_of_a_column_of_ascii_is_java_s_too(texts: list[str]) -> None:
    assert kernels.java_hashes(pa.array(texts)).tolist() == [java_hash(t) for t in texts]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_slices_let_go_of_the_bytes_that_they_copied_from(count: int) -> None:
    data, places = memoryview(bytearray(1000)), np.arange(count) * 10
    before = _live_views()
    for _ in range(20):
        kernels.slices(data, places, np.full(count, 5))
    after = _live_views()
    assert after == before


def _live_views() -> int:
    gc.collect()
    return sum(type(thing) is memoryview for thing in gc.get_objects())


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), max_size=60), st.booleans())
def test_views_show_the_bytes_that_copies_have(rows: list[tuple[int, int]], long: bool) -> None:
    """Gaps and sizes, short pieces (which stand in the view) among long ones or none."""
    data = bytes(n % 251 for n in range(8000))
    starts, ends, at = [], [], 0
    for gap, size in rows:
        starts.append(at + gap)
        at += gap + size + (13 if long else 0)
        ends.append(at)
    column = kernels.views(data, np.array(starts, np.int64), np.array(ends, np.int64))
    column.validate(full=True)
    expected = [data[a:b] for a, b in zip(starts, ends, strict=True)]
    assert column.to_pylist() == expected
    copies = pa.array(expected, pa.large_binary())
    assert kernels.as_views(copies).to_pylist() == expected
    with_null = pa.array([None, *expected, None, b"x" * 20], pa.large_binary())
    shown = kernels.as_views(with_null.slice(1))
    shown.validate(full=True)
    assert shown.to_pylist() == [*expected, None, b"x" * 20]


def test_views_over_more_than_they_can_reach_are_refused() -> None:
    with pytest.raises(OverflowError):
        kernels.views(b"", np.array([0, 1 << 31]), np.array([1, (1 << 31) + 1]))


@given(st.lists(st.integers(0, 90), max_size=60), st.sampled_from([1, 1 << 12, 1 << 20, 1 << 33]))
def test_integers_are_brought_in_order_as_numpy_does_it(values: list[int], factor: int) -> None:
    some = np.resize(np.array(values, np.int64) * factor, 50 * len(values))
    order = kernels.stable_order(some, 91 * factor)
    assert order.tolist() == some.argsort(kind="stable").tolist()


@given(st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.booleans())))
def test_integers_are_those_of_the_array_and_null_where_they_are_not_known(
    rows: list[tuple[int, bool]],
) -> None:
    values = np.array([value for value, _ in rows], np.int64)
    known = np.array([is_known for _, is_known in rows], bool)
    assert kernels.integers(pa.int64(), values).to_pylist() == values.tolist()
    expected = [value if is_known else None for value, is_known in rows]
    found = kernels.integers(pa.int64(), values, known)
    found.validate(full=True)
    assert found.to_pylist() == expected
    assert found.null_count == expected.count(None)


@given(st.lists(st.text(max_size=5), max_size=20))
def test_texts_are_a_column_of_arrow(values: list[str]) -> None:
    values = [value.encode("utf-8", "ignore").decode() for value in values]
    found = kernels.texts(values)
    found.validate(full=True)
    assert found.equals(pa.array(values, pa.string()))
