"""Reads of many partitions at once, and the places where messages stand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.support.topics import T0, bodies
from tests.support.topics import filled as filled
from tests.support.topics import topic as topic
from tubestore.errors import (
    InvalidMessage,
    OffsetOutOfRange,
)
from tubestore.record.records import ENTRY_SIZE
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import Topic

# -- many partitions at once -----------------------------------------------------------------


def test_a_read_of_many_is_that_of_each(filled: Topic) -> None:
    starts: dict[int, Any] = {0: "earliest", 1: 29, 3: 50 * ENTRY_SIZE}
    for limit in (0, 1, 7, 1000):
        many = filled.read_many(starts, limit=limit)
        offsets = many.table.column("offset").to_pylist()
        assert offsets == sorted(offsets)
        for partition, start in starts.items():
            one = filled.read(partition, start, limit=limit)
            assert many.next_offset[partition] == one.next_offset
            assert many.truncated[partition] == one.truncated
            assert many.end_offset[partition] == one.end_offset
            assert bodies(many[partition]) == bodies(one)
            assert many[partition].next_offset == one.next_offset
        assert len(many) == len(list(many)) == many.table.num_rows
    assert pa.table(many) == pa.table(many)


def test_a_read_of_many_takes_the_filters_of_a_read(filled: Topic) -> None:
    chosen: list[dict[str, Any]] = [
        {"filter_items": ["even"]},
        {"filter_items": ["odd", "nobody's"], "limit": 3},
        {"start": T0 + 20, "end": T0 + 95, "limit": 7},
        {"filter_items": ["even", "odd"], "start": T0 + 50},
        {"filter_items": []},
    ]
    for filters in chosen:
        many = filled.read_many({0: "earliest", 2: 30 * ENTRY_SIZE}, **filters)
        for partition, start in ((0, 0), (2, 30 * ENTRY_SIZE)):
            one = filled.read(partition, start, **filters)
            assert bodies(many[partition]) == bodies(one)
            assert many.next_offset[partition] == one.next_offset
            assert many.truncated[partition] == one.truncated
    with pytest.raises(TypeError):
        filled.read_many({0: 0}, filter_items="even")


def test_reads_of_many_give_everything_once_whatever_the_limits(filled: Topic) -> None:
    for limit, max_bytes in ((3, None), (1000, 500), (1000, 1), (2, 200)):
        found: list[bytes | None] = []
        position: dict[int, Any] = dict.fromkeys(range(4), "earliest")
        while True:
            page = filled.read_many(position, limit=limit, max_bytes=max_bytes)
            found += [m.body for m in page]
            if not any(page.truncated.values()):
                break
            position = dict(page.next_offset)
        assert sorted(found) == [b"%03d" % n for n in range(100)]  # type: ignore[type-var]


def test_a_read_of_many_goes_over_shards(store: MessageStoreManager) -> None:
    topic = store.create_topic("t", partitions=2, stores=2)
    for number in range(40):
        topic.append(b"%02d" % number, partition=number % 2 * 10_000 + number // 2 % 2)
    page = topic.read_many(dict.fromkeys([10_001, 0, 1], "earliest"), columns=["offset", "body"])
    odd = [b"%02d" % n for n in range(40) if n % 2 and n // 2 % 2]
    even = [b"%02d" % n for n in range(0, 40, 2)]
    assert page.table.column("body").to_pylist() == even + odd
    with pytest.raises(KeyError):
        page[10_000]
    both = topic.read_many({0: 0, 10_000: 0}, max_bytes=1)
    assert len(both) == 2  # one a shard


def test_a_read_of_many_refuses_what_a_read_refuses(filled: Topic) -> None:
    with pytest.raises(InvalidMessage):
        filled.read_many({0: 0, 4: 0})
    with pytest.raises(OffsetOutOfRange):
        filled.read_many({0: 1 << 40})
    with pytest.raises(ValueError, match="limit"):
        filled.read_many({0: 0}, limit=-1)
    with pytest.raises(ValueError, match="nonsense"):
        filled.read_many({0: 0}, columns=["nonsense"])
    assert len(filled.read_many({})) == 0
    assert "of 1 partitions" in repr(filled.read_many({0: 0}))


# -- places ----------------------------------------------------------------------------------


def test_first_last_and_next_offsets_and_counts(filled: Topic) -> None:
    assert [filled.first_offset(p) for p in range(4)] == [n * ENTRY_SIZE for n in range(4)]
    assert [filled.last_offset(p) for p in range(4)] == [n * ENTRY_SIZE for n in range(96, 100)]
    assert filled.next_offset(2) == 100 * ENTRY_SIZE
    assert filled.count(1) == 25
    assert filled.count(1, 2 * ENTRY_SIZE, 9 * ENTRY_SIZE) == 1
    assert filled.count(1, "latest") == 0


def test_an_empty_partition_has_a_next_offset_only(store: MessageStoreManager) -> None:
    topic = store.create_topic("t", partitions=2)
    assert (topic.first_offset(0), topic.last_offset(0), topic.next_offset(0)) == (0, None, 0)
    topic.append(b"x", partition=1)
    assert (topic.first_offset(0), topic.last_offset(0)) == (28, None)
    assert (topic.offset_at(0, 0), topic.offset_at(0, T0, boundary="upper")) == (28, 28)


@pytest.mark.parametrize("count", [0, 1, 5, 24, 25, 26, 1000])
def test_skipping_counts_messages_of_the_partition(filled: Topic, count: int) -> None:
    mine = [n * ENTRY_SIZE for n in range(2, 100, 4)]
    ahead = filled.skip(2, "earliest", count)
    assert ahead == (0 if count == 0 else [*mine, 2800][min(count, 25)])
    back = filled.skip(2, "latest", -count)
    assert len(filled.read(2, back)) == min(count, 25)
    assert back == 2800 if count == 0 else back in (0, *mine)


def scattered(store: MessageStoreManager, times: list[int]) -> Topic:
    """Messages by turns in two partitions, received at these times."""
    topic = store.create_topic("t", partitions=2)
    rows = [
        {"body": b"%d" % n, "partition": n % 2, "received_time_ms": time}
        for n, time in enumerate(times)
    ]
    topic.append_batch(rows)
    return topic


TIMES = [50, 10, 30, 60, 20, 40, 90, 70, 80, 5]


@pytest.mark.parametrize("time", [-5, 0, 5, 20, 35, 50, 55, 60, 90, 91, 1 << 62])
def test_an_offset_by_time_is_right_when_times_are_out_of_order(
    store: MessageStoreManager, time: int
) -> None:
    topic = scattered(store, TIMES)
    mine = [(n * ENTRY_SIZE, t) for n, t in enumerate(TIMES) if n % 2 == 0]
    after = [(o, t) for o, t in mine if t >= time]
    before = [(o, t) for o, t in mine if t <= time]
    assert topic.offset_at(0, time) == (after[0][0] if after else 280)
    assert topic.offset_at(0, time, boundary="upper") == (before[-1][0] if before else 0)
    nearest = topic.offset_at(0, time, boundary="nearest")
    candidates = [*after[:1], *before[-1:]]
    least = min(abs(t - time) for _, t in candidates)
    assert nearest in [o for o, t in candidates if abs(t - time) == least]


def test_an_offset_by_time_takes_dates_and_refuses_others(filled: Topic) -> None:
    moment = datetime.fromtimestamp((T0 + 41) / 1000, UTC)
    assert filled.offset_at(1, moment) == 41 * ENTRY_SIZE
    with pytest.raises(ValueError, match="time zone"):
        filled.offset_at(1, datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="boundary"):
        filled.offset_at(1, 0, boundary="first")  # type: ignore[arg-type]
