"""The text in front of a body: TubeMQ's form, there and back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubestore.errors import InvalidMessage
from tubestore.record.attributes import encode_prefix, parse_text, split_payload

words = st.text(
    st.characters(codec="utf-8", exclude_characters=",="), min_size=1, max_size=15
).filter(lambda text: bool(text.strip()) and "$msg" not in text)


def test_the_text_is_tubemq_s() -> None:
    prefix = encode_prefix(" tid1 ", 1_704_067_200_000, {"k": "v", "l": "w"})
    assert prefix == b"\0\0\0\x2d$msgType$=tid1,$msgTime$=202401010000,k=v,l=w"


def test_attributes_without_an_item_have_no_system_names() -> None:
    assert encode_prefix(None, 0, {"only": "user"}) == b"\0\0\0\x09only=user"


@pytest.mark.parametrize("item", [None, "", "  "])
@pytest.mark.parametrize("attributes", [None, {}])
def test_nothing_to_say_is_no_prefix(item: str | None, attributes: Any) -> None:
    assert encode_prefix(item, 0, attributes) == b""


@given(st.one_of(st.none(), words), st.dictionaries(words, words, max_size=5), st.binary())
def test_what_was_encoded_is_split_and_parsed(
    item: str | None, attributes: dict[str, str], body: bytes
) -> None:
    prefix = encode_prefix(item, 1_704_067_200_000, attributes)
    if not prefix:
        assert item is None
        assert not attributes
        return
    split = split_payload(prefix + body)
    assert split is not None
    text, rest = split
    assert rest == body
    found = parse_text(text)
    if item is not None:
        assert found.pop("$msgType$") == item.strip()
        assert found.pop("$msgTime$") == "202401010000"
    assert found == attributes


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_the_time_always_has_twelve_digits(time_ms: int) -> None:
    text = encode_prefix("a", time_ms)[4:].decode()
    assert re.fullmatch(r"\$msgType\$=a,\$msgTime\$=[0-9]{12}", text)


@given(st.binary(max_size=40))
def test_splitting_anything_loses_nothing(payload: bytes) -> None:
    split = split_payload(payload)
    if split is None:
        size = int.from_bytes(payload[:4], "big", signed=True)
        assert len(payload) < 4 or size > len(payload) - 4
    else:
        assert payload[:4] + split[0] + split[1] == payload


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", None),
        (b"\0\0\0", None),
        (b"\0\0\0\0", (b"", b"")),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1ab", (b"a", b"b")),
        (b"\xff\xff\xff\xffab", (b"", b"ab")),
        (b"\x7f\xff\xff\xffab", None),
    ],
)
def test_a_length_may_be_zero_or_negative_but_not_too_large(
    payload: bytes, expected: tuple[bytes, bytes] | None
) -> None:
    assert split_payload(payload) == expected


@given(st.binary(max_size=60))
def test_parsing_anything_gives_a_mapping(text: bytes) -> None:
    found = parse_text(text)
    assert all(isinstance(k, str) and isinstance(v, str) for k, v in found.items())


def test_items_of_odd_forms_are_kept_as_far_as_they_go() -> None:
    assert parse_text(b"a,b=,=c,,d=e=f,\xff=g") == {
        "a": "",
        "b": "",
        "": "c",
        "d": "e=f",
        "\ufffd": "g",
    }


@pytest.mark.parametrize(
    ("item", "attributes"),
    [
        ("a,b", None),
        ("a=b", None),
        ("x$msgType$", None),
        (None, {"a,b": "c"}),
        (None, {"a": "b=c"}),
        (None, {"$msgTime$": "x"}),
        (None, {"a": " "}),
        (None, {"": "a"}),
        (None, {"a": None}),
        (None, {1: "a"}),
        (5, None),
        (None, [("a", "b")]),
        ("\ud800", None),
    ],
)
def test_what_the_text_cannot_carry_is_refused(item: Any, attributes: Any) -> None:
    with pytest.raises(InvalidMessage):
        encode_prefix(item, 0, attributes)
