"""The hash is Java's, of any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubestore.core.java_hash import java_hash


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("tid1", 3559810),
        ("Aa", 2112),
        ("BB", 2112),
        ("streamId1", -315646250),
        ("\u6d41", 27969),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -2147483648),
    ],
)
def test_the_hash_is_java_s(text: str, value: int) -> None:
    assert java_hash(text) == value


@given(st.text())
def test_the_hash_is_a_signed_int_of_the_code_units(text: str) -> None:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) % (1 << 32)
    assert java_hash(text) % (1 << 32) == value
    assert -(1 << 31) <= java_hash(text) < 1 << 31


def test_a_lone_surrogate_has_a_hash_as_in_java() -> None:
    assert java_hash("\ud800") == 0xD800
