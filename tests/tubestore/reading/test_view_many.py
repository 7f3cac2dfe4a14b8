"""Reads of many partitions at once, and the places where messages stand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.support.topics import T0, bodies
from tests.support.topics import filled as filled
from tests.support.topics import topic as topic
from tubestore.errors import InvalidMessage, OffsetOutOfRange
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
