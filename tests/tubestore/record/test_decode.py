"""Entries and bytes as Arrow columns: right, and never an exception, whatever the bytes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tube import T0, encode_rows, make_row, make_rows
from tubestore.messages import MESSAGE_SCHEMA, STATES
from tubestore.record.attributes import encode_prefix
from tubestore.record.columns import columns_for
from tubestore.record.decode import decode
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.locate import Data
from tubestore.record.payloads import attribute_maps
from tubestore.record.records import ENTRY_SIZE, HEADER_SIZE, Row

ALL = list(MESSAGE_SCHEMA.names)


def decoded(
    entries: Any, data: bytes | None, columns: list[str] = ALL, **options: Any
) -> list[dict[str, Any]]:
    offsets = np.arange(len(entries), dtype=np.int64) * ENTRY_SIZE
    given = None if data is None else Data(memoryview(data), 0)
    batch, bad = decode("t", 3, offsets, entries, given, columns_for(tuple(columns), **options))
    assert batch.schema.names == columns
    batch.validate(full=True)
    rows: list[dict[str, Any]] = batch.to_pylist()
    if "state" in columns:
        states = [row["state"] for row in rows]
        first = next(((n, state) for n, state in enumerate(states) if state != "ok"), None)
        assert bad == first
    return rows


def decode_rows(rows: list[Row], **options: Any) -> list[dict[str, Any]]:
    batch = encode_rows(rows, 0, 0)
    return decoded(batch.entries, batch.data.tobytes(), **options)


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


def test_attributes_and_plain_messages_may_be_mixed() -> None:
    rows = [
        make_row(b"plain"),
        make_row(encode_prefix("a", T0, {"k": "v"}) + b"one", flag=1),
        make_row(b"\0\0\0\0two", flag=1),
        make_row(b"\xff\xff\xff\xfethree", flag=-1),
        make_row(b"\0\0\0\x03k=v", flag=3),
        make_row(encode_prefix(None, T0, {"x": "y"}) + b"last", flag=1),
    ]
    found = decode_rows(rows)
    assert [row["body"] for row in found] == [b"plain", b"one", b"two", b"three", b"", b"last"]
    assert [row["filter_item"] for row in found] == [None, "a", None, None, None, None]
    maps = [None if row["attributes"] is None else dict(row["attributes"]) for row in found]
    assert maps[0] is None
    assert maps[1] == {"$msgType$": "a", "$msgTime$": "202311142213", "k": "v"}
    assert maps[2:] == [{}, {}, {"k": "v"}, {"x": "y"}]
    assert {row["state"] for row in found} == {"ok"}


@pytest.mark.parametrize("payload", [b"x", b"\0\0\0", b"\0\0\0\x01", b"\x7f\xff\xff\xffabc"])
def test_an_impossible_attribute_length_is_a_state(payload: bytes) -> None:
    rows = [make_row(b"before"), make_row(payload, flag=1), make_row(b"after")]
    found = decode_rows(rows)
    assert [row["state"] for row in found] == ["ok", "bad_attributes", "ok"]
    assert [row["body"] for row in found] == [b"before", None, b"after"]
    assert found[1]["flag"] == 1


@pytest.mark.parametrize("columns", [["body"], ["state"], ["offset", "body"], ["attributes"], []])
def test_only_the_columns_asked_for_are_there(columns: list[str]) -> None:
    batch = encode_rows(make_rows(5), 0, 0)
    for row in decoded(batch.entries, batch.data.tobytes(), columns):
        assert list(row) == columns


def test_without_data_every_row_is_missing() -> None:
    batch = encode_rows(make_rows(4), 0, 0)
    found = decoded(batch.entries, None)
    assert {row["state"] for row in found} == {"missing"}
    assert {row["body"] for row in found} == {None}
    assert [row["partition"] for row in found] == [0, 1, 2, 0]


def test_a_bad_checksum_is_a_state_only_when_one_asks() -> None:
    batch = encode_rows(make_rows(3), 0, 0)
    data = bytearray(batch.data.tobytes())
    data[HEADER_SIZE] ^= 1
    assert [r["state"] for r in decoded(batch.entries, bytes(data))] == ["ok"] * 3
    states = [r["state"] for r in decoded(batch.entries, bytes(data), verify=True)]
    assert states == ["bad_checksum", "ok", "ok"]


@given(st.binary(max_size=300), st.binary(max_size=200), st.booleans())
def test_garbage_is_rows_with_states(index: bytes, data: bytes, verify: bool) -> None:
    entries = np.frombuffer(index, INDEX_ENTRY.dtype, len(index) // ENTRY_SIZE)
    for row in decoded(entries, data, verify=verify):
        assert row["state"] in STATES
        assert row["state"] != "ok"
        assert row["body"] is None


@given(st.data(), st.booleans())
def test_any_flipped_byte_is_a_row_like_the_others(data: st.DataObject, verify: bool) -> None:
    rows = make_rows(6)
    rows[2] = make_row(encode_prefix("a", T0, {"k": "v"}) + b"one", flag=1)
    batch = encode_rows(rows, 0, 0)
    raw = bytearray(batch.data.tobytes())
    entries = batch.entries.copy()
    index = bytearray(entries.tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        index[data.draw(st.integers(0, len(index) - 1))] = data.draw(st.integers(0, 255))
    found = decoded(np.frombuffer(bytes(index), INDEX_ENTRY.dtype), bytes(raw), verify=verify)
    assert len(found) == 6
    assert {row["state"] for row in found} <= set(STATES)


@given(st.lists(st.binary(max_size=25), max_size=8))
def test_any_text_is_a_map(texts: list[bytes]) -> None:
    maps = attribute_maps(pa.array(texts, pa.large_binary()))
    assert len(maps) == len(texts)
    maps.validate(full=True)


@pytest.mark.parametrize("kinds", [1, 2, 30])
def test_attributes_that_are_alike_are_those_of_every_row(kinds: int) -> None:
    rows, expected = [], []
    for n in range(30):
        own = {"k": f"v{n % kinds}"} if n % 3 else None
        prefix = b"" if own is None else encode_prefix(f"t{n % kinds}", T0, own)
        rows.append(make_row(prefix + b"body %d" % n, flag=int(own is not None), msg_id=n))
        expected.append((f"t{n % kinds}", own["k"], b"body %d" % n) if own else
                        (None, None, b"body %d" % n))  # fmt: skip
    found = [
        (row["filter_item"], dict(row["attributes"] or []).get("k"), row["body"])
        for row in decode_rows(rows)
    ]
    assert found == expected


def attributed_payload(length: int, rest: bytes) -> bytes:
    return length.to_bytes(4, "big", signed=True) + rest


payloads = st.one_of(
    # Of one size in most cases, since such records are looked at as rows of a table.
    st.builds(attributed_payload, st.integers(-1, 9), st.binary(min_size=8, max_size=8)),
    st.builds(attributed_payload, st.just(3), st.binary(min_size=8, max_size=8)),
    st.builds(attributed_payload, st.integers(-1, 9), st.binary(max_size=8)),
    st.binary(min_size=1, max_size=3),
)


@given(
    st.lists(st.tuples(payloads, st.booleans()), min_size=1, max_size=6),
    st.integers(1, 9),
    st.booleans(),
)
def test_a_body_is_what_is_behind_the_attributes_known_or_not_that_there_are_some(
    drawn: list[tuple[bytes, bool]], times: int, attributed: bool
) -> None:
    drawn = drawn * times
    batch = encode_rows([make_row(payload, flag=int(flagged)) for payload, flagged in drawn], 0, 0)
    data = Data(memoryview(batch.data.tobytes()), 0)
    data.attributed = attributed
    offsets = np.arange(len(drawn), dtype=np.int64) * ENTRY_SIZE
    found, bad = decode("t", 3, offsets, batch.entries, data, columns_for(("body", "state")))
    found.validate(full=True)
    expected: list[bytes | None] = []
    for payload, flagged in drawn:
        length, rest = int.from_bytes(payload[:4], "big", signed=True), payload[4:]
        broken = flagged and (len(payload) < 4 or length > len(rest))
        expected.append(None if broken else rest[max(length, 0) :] if flagged else payload)
    assert found.column("body").to_pylist() == expected
    states = ["ok" if body is not None else "bad_attributes" for body in expected]
    assert found.column("state").to_pylist() == states
    assert bad == next(((n, s) for n, s in enumerate(states) if s != "ok"), None)
    assert data.attributed == (attributed or any(flagged for _, flagged in drawn))


def test_no_rows_are_an_empty_batch() -> None:
    assert decoded(np.empty(0, INDEX_ENTRY.dtype), b"") == []
