"""Numbers that users give: `True` is refused wherever a number is meant, nothing is done then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rocketcompat
import tubestore
from rocketcompat.messages import Message
from tubestore.clock import ManualClock, time_ms
from tubestore.errors import InvalidMessage
from tubestore.options import StoreOptions, TopicOptions
from tubestore.store.topic import Topic
from tubestore.testing import MemoryVfs
from tubestore.values import LONG_MAX, checked_whole, whole_number


@pytest.mark.parametrize("value", [0, -3, 1 << 70, np.int16(7), np.uint64(7)])
def test_integers_of_every_kind_are_numbers(value: Any) -> None:
    assert whole_number(value) == int(value)
    assert type(whole_number(value)) is int


@pytest.mark.parametrize("value", [True, False, np.True_, 1.0, np.float64(1), "1", b"1", None, []])
def test_nothing_else_is_a_number(value: Any) -> None:
    assert whole_number(value) is None


@pytest.fixture
def topic() -> Any:
    vfs = MemoryVfs(ManualClock())
    with tubestore.open("/s", vfs=vfs, clock=ManualClock(), background=False) as store:
        made = store.create_topic("t", partitions=4)
        made.append(b"first", partition=1)
        yield made


CALLS: dict[str, Callable[[Topic], Any]] = {
    "append": lambda t: t.append(b"x", partition=True),
    "append_batch": lambda t: t.append_batch({"body": [b"x"], "partition": [True]}),
    "read": lambda t: t.read(True),
    "read from": lambda t: t.read(1, True),
    "read at most": lambda t: t.read(1, limit=True),
    "read bytes": lambda t: t.read(1, max_bytes=True),
    "read_many": lambda t: t.read_many({True: "earliest"}),
    "read_many from": lambda t: t.read_many({1: True}),
    "scan": lambda t: t.scan(limit=True),
    "messages": lambda t: t.messages(True),
    "follow": lambda t: t.follow(True),
    "message_at": lambda t: t.message_at(1, True),
    "get_messages": lambda t: t.get_messages(True, 0),
    "first_offset": lambda t: t.first_offset(True),
    "last_offset": lambda t: t.last_offset(True),
    "count": lambda t: t.count(1, True),
    "offset_at": lambda t: t.offset_at(1, True),
    "retain": lambda t: t.retain(max_bytes=True),
    "retain age": lambda t: t.retain(max_age=True),
}


@pytest.mark.parametrize("call", CALLS)
def test_true_is_not_taken_for_one(topic: Topic, call: str) -> None:
    with pytest.raises((InvalidMessage, TypeError), match=r"(?i)true|bool|integers"):
        CALLS[call](topic)
    assert [m.body for m in topic.read(1)] == [b"first"]


@pytest.mark.parametrize("name", ["partitions", "stores", "max_age_ms", "max_bytes"])
def test_settings_of_a_topic_are_numbers(name: str) -> None:
    with pytest.raises(InvalidMessage, match=f"{name} = True: a whole number"):
        TopicOptions(**{name: True})


@pytest.mark.parametrize("value", [True, 1.5, None])
def test_sizes_of_a_store_are_numbers(value: Any) -> None:
    with pytest.raises(TypeError, match=r"segment_size_bytes = .*: a whole number is needed"):
        StoreOptions(segment_size_bytes=value)


def test_a_size_that_cannot_be_read_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidMessage, match="segment_size_bytes: 'much' is not a valid size"):
        StoreOptions(segment_size_bytes="much")  # type: ignore[arg-type]


def test_a_time_is_no_truth() -> None:
    with pytest.raises(TypeError, match="True"):
        time_ms(True)


def test_a_queue_is_a_number() -> None:
    vfs = MemoryVfs(ManualClock())
    opened = rocketcompat.open("/r", mode="w", vfs=vfs, clock=ManualClock(), background=False)
    with opened as store:
        with pytest.raises(InvalidMessage, match="queue_id: True is not a whole number"):
            store.put_message(Message("t", b"x", queue_id=True))
        assert store.max_physical_offset == 0
        for ask in (
            lambda: store.get_message("t", True, 0),
            lambda: store.get_message("t", 0, True),
            lambda: store.min_offset_in_queue("t", True),
            lambda: store.max_offset_in_queue("t", True),
        ):
            with pytest.raises(InvalidMessage, match="True is not a whole number"):
                ask()


def test_a_number_that_no_field_has_room_for_is_refused_by_its_name() -> None:
    assert checked_whole("limit", LONG_MAX, most=LONG_MAX) == LONG_MAX
    for wrong in (LONG_MAX + 1, 10**30):
        with pytest.raises(ValueError, match=f"limit = {wrong}: at most"):
            checked_whole("limit", wrong, most=LONG_MAX)


def test_reads_refuse_a_limit_beyond_64_bits(memory_vfs: MemoryVfs) -> None:
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"x", partition=0)
        for read in (lambda limit: topic.read(0, limit=limit),
                     lambda limit: topic.read_many({0: 0}, limit=limit)):  # fmt: skip
            assert sum(len(page) for page in [read(LONG_MAX)]) == 1
            with pytest.raises(ValueError, match="limit = "):
                read(10**30)
        with store.consumer("g", "t") as consumer:
            assert len(consumer.poll(LONG_MAX)) == 1
            with pytest.raises(ValueError, match="limit = "):
                consumer.poll(10**30)
