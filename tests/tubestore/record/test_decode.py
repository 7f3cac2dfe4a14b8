"""Entries and bytes as Arrow columns: right, and never an exception, whatever the bytes are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine.decoded import decode_rows, decoded
from tests.support.tube import T0, encode_rows, make_row, make_rows
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.records import Row

plain_rows = st.lists(
    st.builds(
        make_row,
        st.binary(min_size=1, max_size=30),
        st.integers(0, 9999),
        key_code=st.integers(-(1 << 31), (1 << 31) - 1),
        received_time=st.integers(-(1 << 63), (1 << 63) - 1),
        msg_id=st.integers(-(1 << 63), (1 << 63) - 1),
        flag=st.sampled_from([0, 2, -2]),
    ),
    min_size=1,
    max_size=15,
)


@given(plain_rows)
def test_what_was_written_is_what_is_read(rows: list[Row]) -> None:
    for row, found in zip(rows, decode_rows(rows, verify=True), strict=True):
        assert found["topic"] == "t"
        assert found["store_id"] == 3
        assert found["partition"] == row.partition_id
        assert found["key_code"] == row.key_code
        assert found["received_time_ms"] == row.received_time
        assert found["msg_id"] == row.msg_id
        assert found["flag"] == row.flag
        assert found["report_address"] == row.report_address
        assert found["body"] == row.payload
        assert found["state"] == "ok"
        assert found["attributes"] is None


@pytest.mark.parametrize(
    "time", [0, T0, -62_135_596_800_000, 253_402_300_799_999, 1 << 62, -(1 << 63)]
)
def test_a_time_beyond_the_calendar_is_null_and_its_number_stays(time: int) -> None:
    (row,) = decode_rows([make_row(received_time=time)])
    assert row["received_time_ms"] == time
    known = -62_135_596_800_000 <= time <= 253_402_300_799_999
    assert (row["received_time"] is not None) == known


def test_without_data_every_row_is_missing() -> None:
    batch = encode_rows(make_rows(4), 0, 0)
    found = decoded(batch.entries, None)
    assert {row["state"] for row in found} == {"missing"}
    assert {row["body"] for row in found} == {None}
    assert [row["partition"] for row in found] == [0, 1, 2, 0]


def test_no_rows_are_an_empty_batch() -> None:
    assert decoded(np.empty(0, INDEX_ENTRY.dtype), b"") == []
