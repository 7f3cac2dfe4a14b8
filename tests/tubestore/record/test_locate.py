"""The records of some index entries are found, whatever the bytes are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine.decoded import decoded
from tests.support.tube import T0, encode_rows, make_row, make_rows
from tubestore.messages import STATES
from tubestore.record.attributes import encode_prefix
from tubestore.record.columns import columns_for
from tubestore.record.decode import decode
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.locate import Data
from tubestore.record.records import ENTRY_SIZE


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
