"""TubeMQ's constants and hashes, as the real classes have them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubestore import options
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
