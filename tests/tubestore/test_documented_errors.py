"""Whatever call to the disk fails, the public calls raise errors of ours and no other ones."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import tubestore
from tests.support.refused_calls import Files, refusals
from tubestore.clock import ManualClock
from tubestore.staging.writer import StagedWriter
from tubestore.store.manager import MessageStoreManager
from tubestore.testing import FaultyVfs, MemoryVfs

Store = MessageStoreManager


def rows(count: int = 12) -> dict[str, Any]:
    return {"body": [b"%d" % n for n in range(count)], "filter_item": ["a", "b"] * (count // 2)}


def many_rows() -> dict[str, Any]:
    return {"topic": ["t", "u"] * 6, "body": [b"%d" % n for n in range(12)]}


def consumed(store: Store, group: str | None) -> None:
    with store.consumer(group, "t") as consumer:
        consumer.poll()
        if group is not None:
            consumer.commit()
        consumer.rewind(1)
        consumer.unread()


def transferred(store: Store) -> None:
    with store.consumer("g", "t", auto_commit=False, durability="fsync") as consumer:
        (message, *_) = consumer.poll()
        consumer.put_aside(message, "u", "bad")
        consumer.commit_with(many_rows())


#: The public calls that touch files, each on a store that has messages and was opened anew.
CALLS: dict[str, Callable[[Store], Any]] = {
    "create_topic": lambda s: s.create_topic("new", partitions=3),
    "change_topic": lambda s: s.change_topic("t", partitions=4),
    "ensure_topics": lambda s: s.ensure_topics({"v": tubestore.TopicOptions()}),
    "delete_topic": lambda s: s.delete_topic("u"),
    "describe_topic": lambda s: s.describe_topic("t"),
    "retain": lambda s: s.retain(max_bytes=0),
    "retain by age": lambda s: s.retain(max_age=0),
    "explain_retention": lambda s: s.explain_retention(max_bytes=0),
    "topic.retain": lambda s: s["t"].retain(max_bytes=0),
    "topic.explain_retention": lambda s: s["t"].explain_retention(),
    "empty_trash": lambda s: (s["t"].retain(max_bytes=0), s.empty_trash(0)),
    "lease": lambda s: s.lease().release(),
    "append": lambda s: s["t"].append(b"x", durability="fsync"),
    "append to memory": lambda s: s["t"].append(b"x", durability="memory"),
    "topic.append_batch": lambda s: s["t"].append_batch(rows(), durability="fsync"),
    "append_batch": lambda s: s.append_batch(many_rows(), durability="fsync"),
    "flush": lambda s: (s["t"].append(b"x", durability="memory"), s.flush()),
    "sync": lambda s: (s["t"].append(b"x"), s.sync()),
    "topic.sync": lambda s: (s["t"].append(b"x"), s["t"].sync(), s["t"].flush()),
    "maintain": lambda s: (s["t"].append(b"x", durability="memory"), s.maintain()),
    "stats": lambda s: (s["t"].read(0), s.stats()),
    "consumer": lambda s: consumed(s, "g"),
    "consumer with output": transferred,
    "follower": lambda s: consumed(s, None),
    "read": lambda s: s["t"].read(0).table,
    "read with a filter": lambda s: s["t"].read(0, filter_items=["a"]).table,
    "read_many": lambda s: s["t"].read_many({0: 0}).table,
    "get_messages": lambda s: s["t"].get_messages(0, 0),
    "message_at": lambda s: s["t"].message_at(0, 0),
    "messages": lambda s: list(s["t"].messages(0)),
    "follow": lambda s: list(s["t"].follow(0, idle_timeout=0)),
    "scan": lambda s: s["t"].scan().read_all(),
    "places": lambda s: (s["t"].first_offset(0), s["t"].last_offset(0), s["t"].next_offset(0)),
    "count": lambda s: (s["t"].count(0), s["t"].skip(0, "latest", -3), s["t"].partitions()),
    "offset_at": lambda s: s["t"].offset_at(0, 5, boundary="nearest"),
    "clean_staging": lambda s: s.clean_staging(),
    "publish": lambda s: s.publish("job", STAGED, create_topics=True),
    "abort": lambda s: s.abort("job"),
    "refresh": lambda s: s.refresh(),
    "close": lambda s: (s["t"].append(b"x"), s.close()),
}
STAGED: list[Any] = []
SMALL: dict[str, Any] = {
    "segment_size_bytes": 300,
    "index_segment_size_bytes": 140,
    "append_timeout_ms": 0,
    "journal_shards_min": 2,
}


#: Calls that a writer makes without the disk.
NO_CALLS = {"refresh"}


@functools.cache
def files() -> Files:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    with tubestore.open("/s", vfs=vfs, clock=clock, background=False, **SMALL) as store:
        for name in ("t", "u"):
            store.create_topic(name).append_batch(rows())
    with StagedWriter("/s", "job", "0", vfs=vfs) as writer:
        writer.write({"topic": ["t"] * 3, "body": [b"x"] * 3, "partition": [0] * 3})
        STAGED[:] = writer.finish()
    clock.advance(1000)
    return Files(vfs, clock)


def open_store(mode: Any, vfs: FaultyVfs, clock: ManualClock) -> Store:
    return tubestore.open("/s", mode, vfs=vfs, clock=clock, background=False, **SMALL)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_the_system_refuses_raises_a_documented_error(name: str) -> None:
    assert (
        refusals(lambda: files().opened(partial(open_store, "w"), give_up=True), CALLS[name])
        or name in NO_CALLS
    )


@pytest.mark.parametrize("name", ["read", "scan", "messages", "refresh", "count", "lease"])
def test_a_reader_raises_documented_errors_too(name: str) -> None:
    assert refusals(lambda: files().opened(partial(open_store, "r"), give_up=True), CALLS[name])


@pytest.mark.parametrize("mode", ["w", "r"])
def test_opening_and_closing_raise_documented_errors(mode: Any) -> None:
    assert refusals(lambda: files().opening(partial(open_store, mode)), lambda use: use())


def test_the_error_names_the_file_and_keeps_its_cause() -> None:
    faulty, clock = files().again()
    faulty.fail("lock", error=errno.EACCES)
    with pytest.raises(tubestore.StorageError) as caught:
        tubestore.open("/s", vfs=faulty, clock=clock)
    error = caught.value
    assert (error.errno, error.filename) == (errno.EACCES, "/s/.tubestore/lock")
    assert isinstance(error.__cause__, OSError)
    assert str(error) == "/s/.tubestore/lock: Permission denied"
