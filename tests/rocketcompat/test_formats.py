"""RocketMQ's constants, names and small encodings, and the options."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketcompat import formats, options
from rocketcompat.formats import (
    MESSAGE_HEADS,
    decode_host,
    encode_host,
    encode_properties,
    message_id,
    parse_offset_name,
    parse_properties,
    record_size,
)


@pytest.mark.parametrize("module", [formats, options])
def test_the_examples_in_the_documentation_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_the_four_heads_differ_only_in_the_widths_of_the_hosts() -> None:
    assert [head.size for head in MESSAGE_HEADS] == [88, 100, 100, 112]
    assert {tuple(f.name for f in head.fields) for head in MESSAGE_HEADS} == {
        tuple(f.name for f in MESSAGE_HEADS[0].fields)
    }
    assert [head.position("store_timestamp") for head in MESSAGE_HEADS] == [56, 68, 56, 68]
    assert MESSAGE_HEADS[0].position("body_length") == 84


def test_a_record_takes_what_the_specification_requires() -> None:
    assert record_size(0, formats.MAGIC_V1, 0, 0, 0) == 91
    assert record_size(1, formats.MAGIC_V1, 0, 0, 0) == 103
    assert record_size(3, formats.MAGIC_V1, 0, 0, 0) == 115
    assert record_size(0, formats.MAGIC_V2, 0, 0, 0) == 92


def test_message_ids_are_those_of_the_golden_records() -> None:
    assert message_id(encode_host("192.168.0.9:10911"), 0) == "C0A8000900002A9F0000000000000000"
    long = message_id(encode_host("[::1]:124"), 137)
    assert long == "000000000000000000000000000000010000007C0000000000000089"


@pytest.mark.parametrize("host", ["10.1.2.3", "10.1.2.3:", "10.1.2.3:65536", "x:1", "1.2.3.4:-1"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        encode_host(host)


@given(st.ip_addresses(), st.integers(0, 65535))
def test_a_host_is_read_as_it_was_written(address: object, port: int) -> None:
    text = f"{address}:{port}" if "." in str(address) else f"[{address}]:{port}"
    assert encode_host(decode_host(encode_host(text))) == encode_host(text)


_text = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1)


@given(st.dictionaries(_text, _text), st.booleans())
def test_properties_are_read_as_they_were_written(pairs: dict[str, str], ended: bool) -> None:
    assert parse_properties(encode_properties(pairs, trailing_separator=ended)) == pairs


def test_digits_of_other_scripts_are_names_too() -> None:
    assert parse_offset_name("٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٤٠٩٦") == 4096
    assert parse_offset_name("4096.tmp") is None
