"""Settings of stores and topics: bounds, and which partitions a topic has."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from inspect import signature
from typing import Any

import pytest

from tubestore.errors import InvalidMessage
from tubestore.options import StoreOptions, TopicOptions


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("durability", "disk", ValueError),
        ("on_damage", "ignore", ValueError),
        ("segment_size_bytes", 0, ValueError),
        ("segment_size_bytes", 1 << 62, ValueError),
        ("segment_size_bytes", 1.5, TypeError),
        ("segment_size_bytes", True, TypeError),
        ("append_timeout_ms", -1, ValueError),
        ("colour", 1, TypeError),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(
    name: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=name):
        StoreOptions().with_values(**{name: value})


@pytest.mark.parametrize(
    "name", ["sync_after_bytes", "append_timeout_ms", "journal_size_bytes", "trash_grace_ms"]
)
def test_zero_switches_off_what_can_be_off(name: str) -> None:
    assert getattr(StoreOptions().with_values(**{name: 0}), name) == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"partitions": 0}, "partitions = 0"),
        ({"partitions": 10_001}, "1 to 10000 a store"),
        ({"stores": 0}, "stores = 0"),
        ({"stores": True}, "a whole number"),
        ({"routing": "crc"}, "routing 'crc'"),
        ({"max_age_ms": 0}, "max_age_ms = 0"),
        ({"max_bytes": 1 << 63}, "or None for no bound"),
    ],
)
def test_settings_of_a_topic_that_cannot_be_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidMessage, match=words):
        TopicOptions(**values)


def test_partitions_are_numbered_store_by_store() -> None:
    topic = TopicOptions(partitions=3, stores=2)
    ids = [topic.partition_id(number) for number in range(topic.partition_count)]
    assert ids == [0, 1, 2, 10_000, 10_001, 10_002]
    assert all(topic.holds(number) for number in ids)
    assert not any(topic.holds(number) for number in (-1, 3, 9_999, 10_003, 20_000))


@pytest.mark.parametrize(
    ("partitions", "stores", "text"),
    [
        (1, 1, "partition 0"),
        (4, 1, "partitions 0 to 3"),
        (4, 2, "partitions 0 to 3 in each of 2 stores: store * 10000 + number"),
    ],
)
def test_partitions_are_named_in_words(partitions: int, stores: int, text: str) -> None:
    assert TopicOptions(partitions, stores).partition_names() == text


def test_settings_grow_to_cover_others_and_keep_their_own() -> None:
    one, other = TopicOptions(4, 1, max_age_ms=5), TopicOptions(2, 3)
    grown = one.grown_to(other)
    assert (grown.partitions, grown.stores, grown.max_age_ms) == (4, 3, 5)
    assert grown.covers(one)
    assert grown.covers(other)
    assert not one.covers(other)
    assert not other.covers(one)


def test_the_identity_of_a_topic_is_no_setting() -> None:
    assert TopicOptions(2, id=5) == TopicOptions(2, id=6)


def test_bounds_of_a_topic_are_numbers_or_texts() -> None:
    assert TopicOptions(max_age_ms="7d", max_bytes="1.5GB") == TopicOptions(
        max_age_ms=timedelta(days=7), max_bytes=1_500_000_000
    )
    assert TopicOptions(max_age_ms="7d").as_json()["max_age_ms"] == 7 * 86_400_000
    with pytest.raises(InvalidMessage, match=r"^max_age_ms: '7' is not a valid age"):
        TopicOptions(max_age_ms="7")
    with pytest.raises(InvalidMessage, match=r"^max_bytes: '1 GO' is not a valid size"):
        TopicOptions(max_bytes="1 GO")


@pytest.mark.parametrize("options", [StoreOptions, TopicOptions])
def test_a_misspelt_setting_is_refused_with_the_nearest_name(options: Any) -> None:
    near = fields(options)[0].name
    for make in (options, options().with_values):
        with pytest.raises(TypeError) as refused:
            make(**{f"{near}x": 1})
        words = f"{options.__name__}: unknown '{near}x'; did you mean '{near}'?"
        assert str(refused.value) == words
    assert str(signature(options)).startswith(f"({near}: ")


def test_sizes_and_times_of_a_store_s_settings_are_numbers_or_texts() -> None:
    given: dict[str, Any] = {
        "segment_size_bytes": "1GB",
        "payload_size_max": "2MiB",
        "sync_after_ms": "10s",
        "trash_grace_ms": timedelta(minutes=1),
    }
    options = StoreOptions(**given)
    assert options.segment_size_bytes == 1_000_000_000
    assert options.payload_size_max == 2 << 20
    assert (options.sync_after_ms, options.trash_grace_ms) == (10_000, 60_000)
    with pytest.raises(InvalidMessage, match=r"^segment_size_bytes: '1 GO' is not a valid size"):
        StoreOptions(segment_size_bytes="1 GO")
    with pytest.raises(TypeError, match="sync_after_messages = '10s': a whole number"):
        StoreOptions(sync_after_messages="10s")  # type: ignore[arg-type]
