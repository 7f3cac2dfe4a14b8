"""Names of files and directories, there and back, and names that are none of ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubestore.errors import InvalidName
from tubestore.record.names import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    TOPIC_LENGTH_MAX,
    check_topic_name,
    parse_segment_name,
    parse_store_key,
    segment_name,
    store_key,
)


@given(st.integers(0, (1 << 63) - 1))
def test_a_segment_name_goes_there_and_back(start: int) -> None:
    name = segment_name(start, DATA_SUFFIX)
    assert len(name) == 25
    assert parse_segment_name(name, DATA_SUFFIX) == start
    assert parse_segment_name(name, INDEX_SUFFIX) is None


def test_any_count_of_digits_and_digits_of_any_script_are_parsed() -> None:
    assert parse_segment_name("0.tube", DATA_SUFFIX) == 0
    assert parse_segment_name("\u0660\u0661\u0662.tube", DATA_SUFFIX) == 12


@pytest.mark.parametrize(
    "name",
    [".tube", "x.tube", "-1.tube", "1 .tube", "1.5.tube", "0x1.tube", "1.tube.tmp", "1", "", "²."],
)
def test_what_is_no_segment_is_passed_by(name: str) -> None:
    assert parse_segment_name(name, DATA_SUFFIX) is None


@given(st.text("Ab09_%|-", min_size=1, max_size=20), st.integers(0, 10_000))
def test_a_store_key_splits_at_the_last_dash(topic: str, store_id: int) -> None:
    assert parse_store_key(store_key(topic, store_id)) == (topic, store_id)


@pytest.mark.parametrize(
    "name", ["a", "-1", "a-", "a-x", "a-01", "a--", "a-1x", "a-+1", "", "-", "a-\u0661", "a-1.5"]
)
def test_what_is_no_shard_is_passed_by(name: str) -> None:
    assert parse_store_key(name) is None


@pytest.mark.parametrize(
    "name", ["a", "A_1", "a-b", "%RETRY%group", "a|b", "a.b", "__offset_history__", "9", "a-1"]
)
def test_names_that_a_directory_can_carry_are_taken(name: str) -> None:
    assert check_topic_name(name) == name
    assert parse_store_key(store_key(name, 3)) == (name, 3)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "-a",
        "a/b",
        "a\\b",
        "a b",
        "a\n",
        "a\0",
        "\u00e4",
        "x" * (TOPIC_LENGTH_MAX + 1),
        None,
        5,
        b"bytes",
    ],
)
def test_other_names_are_refused(name: object) -> None:
    with pytest.raises(InvalidName):
        check_topic_name(name)  # type: ignore[arg-type]


def test_a_name_of_an_offset_that_eight_bytes_cannot_hold_is_none() -> None:
    assert parse_segment_name(f"{(1 << 63) - 1}.tube", DATA_SUFFIX) == (1 << 63) - 1
    assert parse_segment_name(f"{1 << 63}.tube", DATA_SUFFIX) is None
