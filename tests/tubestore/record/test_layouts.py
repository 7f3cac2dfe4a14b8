"""TubeMQ's constants and hashes, as tubemq-store.md gives them (seen with the real classes)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubestore import options
from tubestore.core.java_hash import java_hash
from tubestore.record import layouts
from tubestore.record.layouts import address_from_int, address_to_int, key_code_of


def test_the_constants_are_what_is_on_disk() -> None:
    assert layouts.DATA_HEADER.size == 52
    assert layouts.INDEX_ENTRY.size == 28
    assert layouts.TOKEN_MESSAGE == 0x02C998B8
    assert layouts.LENGTH_BEFORE_PAYLOAD == 48
    assert layouts.RECORD_SIZE_MAX == 29_360_180
    assert options.DEFAULT_PAYLOAD_SIZE_MAX == 1_058_816
    assert options.PARTITIONS_PER_STORE == 10_000


@pytest.mark.parametrize(
    ("name", "position"),
    [("token", 4), ("checksum", 8), ("queue_logic_offset", 16), ("msg_id", 40), ("flag", 48)],
)
def test_the_fields_are_where_the_specification_puts_them(name: str, position: int) -> None:
    assert layouts.DATA_HEADER.position(name) == position


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


@pytest.mark.parametrize("item", [None, "", " ", "\t\n "])
def test_a_blank_filter_item_is_none(item: str | None) -> None:
    assert key_code_of(item) == layouts.NO_KEY_CODE == -1


def test_a_filter_item_is_trimmed() -> None:
    assert key_code_of("  tid1\t") == 3559810


@given(st.ip_addresses(v=4))
def test_an_address_goes_there_and_back(address: object) -> None:
    value = address_to_int(str(address))
    assert -(1 << 31) <= value < 1 << 31
    assert address_from_int(value) == str(address)


@pytest.mark.parametrize("address", ["", "1.2.3", "1.2.3.256", "::1", "localhost"])
def test_what_is_no_ipv4_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        address_to_int(address)
