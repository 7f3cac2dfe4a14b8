"""Reads by key, and one record by its place."""

from __future__ import annotations

import pytest

from rocketcompat.messages import Message
from rocketcompat.reading.keys import look_message_by_offset, query_message
from tests.support.golden import GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.files.pulled import VERSIONS, parts_of, small_store


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["basic", "rolled", "keys-tags", "crash"])
def test_queries_by_hash_answer_as_the_real_store_does(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    parts = parts_of(real)
    for row in real.queries(type="query"):
        arguments = (row["topic"], row["key"], row["max"], row["begin"], row["end"])
        result = query_message(parts, *arguments, by_hash=True)
        assert result.physical_offsets == [m["physicalOffset"] for m in row["messages"]]
        assert result.index_last_update_timestamp == row["indexLastUpdateTimestamp"]
        assert result.index_last_update_physical_offset == row["indexLastUpdatePhyoffset"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["basic", "rolled", "keys-tags", "crash"])
def test_queries_find_each_message_with_the_key_once(
    golden: GoldenFactory, version: str, scenario: str
) -> None:
    """The real store answers by hash (Aa = BB), once for each of a message's keys that match."""
    real = golden("rocketmq", version, scenario)
    parts = parts_of(real)
    log = {row["physicalOffset"]: row for row in real.expected(type="message")}
    for row in real.queries(type="query"):
        arguments = (row["topic"], row["key"], row["max"], row["begin"], row["end"])
        result = query_message(parts, *arguments)
        having = []
        for offset, message in sorted(log.items()):
            properties = message["properties"]
            keys = [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")]
            in_time = row["begin"] <= message["storeTimestamp"] <= row["end"]
            if message["topic"] == row["topic"] and row["key"] in keys and in_time and row["key"]:
                having.append(offset)
        assert result.physical_offsets == having[-min(row["max"], 64) :]


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_looked_up_by_physical_offset(golden: GoldenFactory, version: str) -> None:
    real = golden("rocketmq", version, "basic")
    parts = parts_of(real)
    for row in real.queries(type="lookup"):
        record = look_message_by_offset(parts, row["phy"])
        assert (record is not None) == row["found"]
        if record is not None:
            assert (record.queue_offset, record.size) == (row["queueOffset"], row["storeSize"])


def test_a_window_between_two_seconds_finds_its_message() -> None:
    """The real one keeps whole seconds and misses it: 1,001,200 counts as 1,001,000."""
    parts = small_store(*(Message("T", b"", keys=["k"]) for _ in range(6)))
    third = 1_001_200
    assert len(query_message(parts, "T", "k", 32, third, third, by_hash=True)) == 0
    (record,) = query_message(parts, "T", "k", 32, third, third)
    assert record.store_timestamp == third
