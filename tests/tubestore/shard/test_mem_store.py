"""A buffer: offsets without gap, and bytes as soon as somebody wants them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tube import columns_of, encode_rows, make_row, make_rows
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE, Row, encode_columns, pack_header
from tubestore.shard.mem_store import MsgMemStore


def _add(buffer: MsgMemStore, row: Row) -> int:
    return buffer.add(pack_header(*row), row.payload)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=8), st.booleans())
def test_rows_and_batches_give_the_bytes_of_one_batch(
    steps: list[tuple[bool, int]], look_between: bool
) -> None:
    buffer = MsgMemStore(280, 1000)
    rows = make_rows(sum(count for _, count in steps))
    taken = 0
    for as_batch, count in steps:
        some = rows[taken : taken + count]
        expected = 280 + taken * ENTRY_SIZE
        if as_batch:
            assert buffer.add_batch(encode_columns(columns_of(some))) == expected
        else:
            offsets = [_add(buffer, row) for row in some]
            assert offsets == [expected + n * ENTRY_SIZE for n in range(count)]
        taken += count
        if look_between:
            buffer.batches()
    parts = buffer.batches()
    data = b"".join(p.batch.data.tobytes() for p in parts)
    entries = b"".join(p.batch.entries.tobytes() for p in parts)
    if rows:
        whole = encode_rows(rows, 280, 1000)
        assert data == whole.data.tobytes()
        assert entries == whole.entries.tobytes()
        assert parts[-1].index_end == buffer.index_end
    assert (buffer.index_end, buffer.data_end) == (280 + taken * ENTRY_SIZE, 1000 + len(data))
    assert (buffer.count, buffer.size_bytes) == (taken, len(data))


def test_a_reader_after_each_message_leaves_few_batches() -> None:
    buffer, rows = MsgMemStore(280, 1000), make_rows(300)
    for row in rows:
        _add(buffer, row)
        parts = buffer.batches()
        buffer.check_invariants()
    sizes = [len(part.batch.data) for part in parts]
    assert len(sizes) <= 9
    assert all(larger >= 2 * smaller for larger, smaller in pairwise(sizes))
    assert (
        b"".join(p.batch.data.tobytes() for p in parts)
        == encode_rows(rows, 280, 1000).data.tobytes()
    )


def test_a_large_batch_is_not_copied_for_a_message_behind_it() -> None:
    buffer = MsgMemStore(0, 0)
    large = encode_columns(columns_of(make_rows(200)))
    buffer.add_batch(large)
    _add(buffer, make_row(b"a"))
    assert buffer.batches()[0].batch is large


def test_batches_that_were_handed_out_do_not_change() -> None:
    buffer = MsgMemStore(0, 0)
    _add(buffer, make_row(b"a"))
    first = buffer.batches()
    held = first[0].batch.data.tobytes()
    for row in make_rows(20):
        _add(buffer, row)
    buffer.add_batch(encode_columns(columns_of(make_rows(5))))
    assert len(first) == 1
    assert first[0].batch.data.tobytes() == held
    assert np.array_equal(buffer.batches()[0].batch.data, first[0].batch.data)


def test_an_empty_buffer_takes_whatever_comes_and_a_used_one_only_what_fits() -> None:
    buffer = MsgMemStore(0, 0)
    assert buffer.has_room(10**9, 10**6, 100, 2)
    _add(buffer, make_row(b"x"))
    size = HEADER_SIZE + 1
    assert buffer.size_bytes == size
    assert buffer.has_room(100 - size, 1, 100, 2)
    assert not buffer.has_room(100 - size + 1, 1, 100, 2)
    assert not buffer.has_room(1, 2, 100, 2)
