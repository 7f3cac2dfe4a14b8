"""Positions in a shard: first, last and next offsets, by count and by time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.support.topics import T0
from tests.support.topics import filled as filled
from tests.support.topics import topic as topic
from tubestore.record.records import ENTRY_SIZE
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import Topic


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
