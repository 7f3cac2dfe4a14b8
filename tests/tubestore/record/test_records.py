"""Records and entries: TubeMQ's bytes, rows and columns alike, and what garbage gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tube import T0, columns_of, encode_row, encode_rows, make_row, make_rows
from tubestore.record.attributes import encode_prefix
from tubestore.record.layouts import DATA_HEADER, INDEX_ENTRY, address_to_int, key_code_of
from tubestore.record.records import (
    ENTRY_SIZE,
    HEADER_SIZE,
    RecordColumns,
    Row,
    binary_sizes,
    encode_columns,
    entries_in,
    entry_of,
    inspect,
    verify_entries,
)

I4 = st.integers(-(1 << 31), (1 << 31) - 1)
I8 = st.integers(-(1 << 63), (1 << 63) - 1)
rows_of = st.lists(
    st.builds(Row, I4, I4, I8, I4, I8, I4, st.binary(min_size=1, max_size=60)),
    min_size=1,
    max_size=20,
)
positions = st.integers(0, 1 << 40)


def test_the_bytes_are_those_of_the_real_classes() -> None:
    """Seen with the real classes; only the msgId differs from run to run."""
    prefix = encode_prefix("tid1", 1_704_067_200_000, {"k": "v"})
    rows = [
        make_row(b"hello", 0, report_address=address_to_int("10.0.0.1"), msg_id=0x0102030405060708),
        make_row(
            prefix + b"hello",
            1,
            key_code=key_code_of("tid1"),
            received_time=T0 + 1,
            report_address=address_to_int("10.0.0.1"),
            msg_id=-2,
            flag=1,
        ),
    ]
    batch = encode_rows(rows, 0, 0)
    assert batch.data.tobytes().hex() == (
        "00000035" "02c998b8" "3610a686" "00000000" "0000000000000000" "0000018bcfe56800"
        "0a000001" "ffffffff" "0102030405060708" "00000000" "68656c6c6f"
        "00000062" "02c998b8" "5434f936" "00000001" "000000000000001c" "0000018bcfe56801"
        "0a000001" "00365182" "fffffffffffffffe" "00000001"
        "00000029" "246d736754797065243d746964312c246d736754696d65243d323032343031303130303030"
        "2c6b3d76" "68656c6c6f"
    )  # fmt: skip
    assert batch.entries.tobytes().hex() == (
        "00000000" "0000000000000000" "00000039" "ffffffff" "0000018bcfe56800"
        "00000001" "0000000000000039" "00000066" "00365182" "0000018bcfe56801"
    )  # fmt: skip


@given(rows_of, positions, positions)
def test_rows_and_columns_give_the_same_bytes(rows: list[Row], index: int, data: int) -> None:
    one_by_one_data, one_by_one_index = b"", b""
    for number, row in enumerate(rows):
        (header, payload), entry = encode_row(
            row, index + number * ENTRY_SIZE, data + len(one_by_one_data)
        )
        one_by_one_data += header + payload
        one_by_one_index += entry
    together = encode_rows(rows, index, data)
    columns = encode_columns(columns_of(rows))
    columns.place(index, data)
    for batch in (together, columns):
        assert batch.data.tobytes() == one_by_one_data
        assert batch.entries.tobytes() == one_by_one_index


@given(rows_of)
def test_what_was_encoded_is_intact_and_verifies(rows: list[Row]) -> None:
    batch = encode_rows(rows, 280, 1000)
    data = batch.data.tobytes()
    at = 0
    for number, row in enumerate(rows):
        header, reason = inspect(data, at, len(data))
        assert reason is None
        assert header.queue_logic_offset == 280 + number * ENTRY_SIZE
        assert entry_of(header, 1000 + at) == batch.entries[number].tobytes()
        at += HEADER_SIZE + len(row.payload)
    assert at == len(data)
    assert verify_entries(batch.entries, 280, data, 1000).all()
    assert not verify_entries(batch.entries, 308, data, 1000).any()


def test_payloads_may_come_in_parts() -> None:
    rows = make_rows(10)
    whole = columns_of(rows)
    halves = [
        pa.array([r.payload[:3] for r in rows], pa.large_binary()),
        pa.array([r.payload[3:] for r in rows], pa.large_binary()),
    ]
    split = RecordColumns(
        whole.partition_ids,
        whole.key_codes,
        whole.received_times,
        whole.report_addresses,
        whole.msg_ids,
        whole.flags,
        halves,
    )
    assert encode_columns(split).data.tobytes() == encode_columns(whole).data.tobytes()
    assert split.sizes.tolist() == [HEADER_SIZE + len(r.payload) for r in rows]


def test_a_part_of_a_batch_is_a_batch() -> None:
    rows = make_rows(12)
    batch = encode_columns(columns_of(rows))
    for first, end in ((0, 5), (5, 12), (0, 12), (11, 12), (3, 3)):
        part = batch.part(first, end)
        assert len(part) == end - first
        if first < end:
            part.place(28, 100)
            expected = encode_rows(rows[first:end], 28, 100)
            assert part.data.tobytes() == expected.data.tobytes()
            assert part.entries.tobytes() == expected.entries.tobytes()


def test_taking_rows_keeps_their_order() -> None:
    rows = make_rows(9)
    places = np.array([8, 0, 3])
    taken = encode_columns(columns_of(rows).take(places))
    expected = encode_columns(columns_of([rows[p] for p in places]))
    assert taken.data.tobytes() == expected.data.tobytes()


def test_sizes_of_a_slice_are_its_own() -> None:
    column = pa.array([b"a", b"bb", b"ccc", b""], pa.large_binary())
    assert binary_sizes(column.slice(1, 2)).tolist() == [2, 3]
    assert binary_sizes(column.slice(4)).tolist() == []


# -- garbage ---------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.integers(0, 300))
def test_inspecting_garbage_gives_a_reason(data: bytes, at: int) -> None:
    _, reason = inspect(data, at, len(data))
    assert isinstance(reason, str)


@given(st.binary(max_size=400))
def test_verifying_garbage_gives_no_good_entry(data: bytes) -> None:
    entries = entries_in(data)
    assert len(entries) == len(data) // ENTRY_SIZE
    assert not verify_entries(entries, 0, data, 0).any()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"token": 0x02C99B5E}, "token"),
        ({"length": 48}, "impossible"),
        ({"length": -1}, "impossible"),
        ({"length": 29_360_177}, "impossible"),
        ({"length": 500}, "are there"),
        ({"length": 51}, "checksum"),
        ({"checksum": 5}, "checksum"),
    ],
)
def test_inspecting_reports_what_is_wrong(change: dict[str, Any], reason: str) -> None:
    (header, payload), _ = encode_row(make_row(b"hello"), 0, 0)
    good = DATA_HEADER.unpack_from(header)
    data = DATA_HEADER.pack(**{**good._asdict(), **change}) + payload
    assert reason in str(inspect(data, 0, len(data))[1])


def test_inspecting_stops_at_the_given_end() -> None:
    (header, payload), _ = encode_row(make_row(b"hello"), 0, 0)
    data = header + payload
    assert inspect(data + b"more", 0, len(data))[1] is None
    assert "are there" in str(inspect(data + b"more", 0, len(data) - 1)[1])
    assert "too few" in str(inspect(data, 0, HEADER_SIZE - 1)[1])


@pytest.mark.parametrize("field", [f.name for f in INDEX_ENTRY.fields])
def test_an_entry_that_differs_in_any_field_is_not_good(field: str) -> None:
    batch = encode_rows(make_rows(5), 0, 0)
    entries = batch.entries.copy()
    entries[field][2] += 1
    assert verify_entries(entries, 0, batch.data.tobytes(), 0).tolist() == [
        True,
        True,
        False,
        True,
        True,
    ]


def test_of_thousands_of_entries_the_bad_ones_alone_are_not_good() -> None:
    batch = encode_rows(make_rows(5000), 280, 1000)
    data = bytearray(batch.data.tobytes())
    for row in (0, 2047, 2048, 4999):
        data[int(batch.starts[row]) + HEADER_SIZE] ^= 1
    good = verify_entries(batch.entries, 280, data, 1000)
    assert np.flatnonzero(~good).tolist() == [0, 2047, 2048, 4999]
