"""Bodies, filter items and attributes of records, as columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine.decoded import decode_rows
from tests.support.tube import T0, make_row
from tubestore.record.attributes import encode_prefix
from tubestore.record.payloads import attribute_maps


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
