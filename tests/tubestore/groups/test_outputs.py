"""Messages put aside, and output that is committed together with positions."""

from __future__ import annotations

import contextlib
import errno
from typing import Any

import pytest

import tubestore
from tubestore.clock import ManualClock
from tubestore.errors import (
    InvalidMessage,
    MemberFenced,
    OutputIncomplete,
    ReadOnlyStore,
    UnknownTopic,
)
from tubestore.groups import positions_log
from tubestore.groups.consumer import Consumer
from tubestore.groups.outputs import put_aside_row
from tubestore.offline.check import check
from tubestore.testing import FaultyVfs, MemoryVfs

Store = tubestore.MessageStoreManager
TOPICS = ("a", "b", "c")
OUTPUT_FILE = "/store/.tubestore/groups/g/output"


def fill(store: Store, count: int, first: int = 0) -> None:
    topic = store.create_topic("in", partitions=2, exist_ok=True)
    for number in range(first, first + count):
        topic.append(b"%d" % number, partition=number % 2)


def member(store: Store, group: str = "g", **how: Any) -> Consumer:
    return store.consumer(group, "in", auto_commit=False, **how)


def transform(polled: tubestore.Polled, topics: tuple[str, ...] = ("out",)) -> dict[str, Any]:
    rows = [(topic, b">" + (m.body or b"")) for m in polled for topic in topics]
    return {"topic": [topic for topic, _ in rows], "body": [body for _, body in rows]}


def bodies(store: Store, topic: str = "out") -> list[bytes]:
    return sorted(message.body or b"" for n in store[topic].partition_ids
                  for message in store[topic].read(n, limit=10_000))  # fmt: skip


def expected(count: int) -> list[bytes]:
    return sorted(b">%d" % number for number in range(count))


def opened(vfs: Any, clock: ManualClock, mode: Any = "w") -> Store:
    return tubestore.open("/store", mode, vfs=vfs, clock=clock, background=False)


# -- put aside -----------------------------------------------------------------------------------


def test_a_message_that_is_put_aside_keeps_what_it_is_and_where_it_comes_from(
    store: Store, clock: ManualClock
) -> None:
    aside = store.create_topic("aside")
    topic = store.create_topic("in", partitions=2)
    topic.append(b"bad", partition=1, filter_item="f", attributes={"k": "v"}, received_time=1000)
    with member(store) as consumer:
        (message,) = consumer.poll()
        ack = consumer.put_aside(message, "aside", "no JSON, line=1")
        assert (ack.partition, ack.offset, ack.durability) == (0, 0, "page_cache")
    (found,) = aside.read(0)
    assert (found.body, found.filter_item) == (b"bad", "f")
    assert {k: v for k, v in found.attributes.items() if not k.startswith("$")} == {
        "k": "v",
        "origin-topic": "in",
        "origin-partition": "1",
        "origin-offset": "0",
        "origin-time": "1000",
        "origin-group": "g",
        "reason": "no JSON; line:1",
    }
    with store.consumer("again", "aside", auto_commit=False) as consumer:
        (message,) = consumer.poll()
        consumer.put_aside(message, "aside", "still bad")
    again = list(aside.read(0))[1].attributes
    assert (again["origin-topic"], again["origin-group"]) == ("in", "g")
    assert again["reason"] == "still bad"


@pytest.mark.parametrize("given", [None, 5, b"x", {"body": b"x"}], ids=repr)
def test_what_is_no_message_is_not_put_aside(given: Any) -> None:
    with pytest.raises(InvalidMessage, match="is not a Message"):
        put_aside_row(given, "aside", "bad", None)


def test_a_message_is_put_aside_before_its_position_is_committed(
    store: Store, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    fill(store, 1)
    store.create_topic("aside")
    consumer = store.consumer("g", "in")
    for message in consumer.messages(idle_timeout=0):
        consumer.put_aside(message, "aside", "bad")
        assert store.describe_group("g").partitions[0].position == 0
    consumer.close()
    assert store.describe_group("g").partitions[0].position == 28


def test_what_cannot_be_put_aside_is_refused(
    store: Store, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    fill(store, 1)
    with member(store) as consumer:
        (message,) = consumer.poll()
        with pytest.raises(UnknownTopic):
            consumer.put_aside(message, "aside", "bad")
        with pytest.raises(InvalidMessage, match="reason"):
            consumer.put_aside(message, "in", " ")
        damaged = tubestore.Message("in", 0, 0, None, 0, None, {}, -1, 0, "bad_checksum")
        with pytest.raises(InvalidMessage, match="bad_checksum"):
            consumer.put_aside(damaged, "in", "bad")
    store.flush()
    with opened(memory_vfs, clock, "r") as reader, member(reader) as consumer:
        (message,) = consumer.poll()
        with pytest.raises(ReadOnlyStore):
            consumer.put_aside(message, "in", "bad")


# -- exactly once --------------------------------------------------------------------------------


def test_output_and_positions_are_committed_together(store: Store) -> None:
    fill(store, 10)
    store.create_topic("out", partitions=3)
    store.create_topic("count")
    with member(store) as consumer:
        while len(polled := consumer.poll(3)):
            ack = consumer.commit_with(transform(polled, ("out", "count")))
            assert (len(ack), ack.durability) == (2 * len(polled), "page_cache")
    assert bodies(store) == bodies(store, "count") == expected(10)
    with member(store) as consumer:
        assert len(consumer.poll()) == 0


def test_a_commit_with_no_output_commits_the_positions(store: Store) -> None:
    fill(store, 2)
    with member(store) as consumer:
        consumer.poll()
        assert len(consumer.commit_with({"topic": [], "body": []})) == 0
        assert len(consumer.commit_with([])) == 0
    with member(store) as consumer:
        assert len(consumer.poll()) == 0


def test_positions_can_be_given_with_output(store: Store) -> None:
    fill(store, 4)
    store.create_topic("out")
    with member(store) as consumer:
        consumer.poll()
        consumer.commit_with({"topic": ["out"], "body": [b">0"]}, {("in", 0): 28})
    with member(store) as consumer:
        assert sorted(m.body or b"" for m in consumer.poll()) == [b"1", b"2", b"3"]


def test_output_that_is_refused_changes_nothing(
    store: Store, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    fill(store, 2)
    store.create_topic("out")
    automatic, alone = store.consumer("auto", "in"), store.consumer(None, "in", auto_commit=False)
    with pytest.raises(InvalidMessage, match="auto_commit=False"):
        automatic.commit_with({"topic": ["out"], "body": [b"x"]})
    with pytest.raises(InvalidMessage, match="no group"):
        alone.commit_with({"topic": ["out"], "body": [b"x"]})
    with member(store) as consumer:
        assert len(consumer.poll()) == 2
        with pytest.raises(UnknownTopic):
            consumer.commit_with({"topic": ["nowhere"], "body": [b"x"]})
        with pytest.raises(InvalidMessage, match="body"):
            consumer.commit_with({"topic": ["out"], "body": [b""]})
        with pytest.raises(MemberFenced):
            consumer.commit_with({"topic": ["out"], "body": [b"x"]}, {("out", 0): 28})
    with opened(memory_vfs, clock, "r") as reader, member(reader) as consumer:
        assert len(consumer.poll()) == 2
        with pytest.raises(ReadOnlyStore):
            consumer.commit_with({"topic": ["out"], "body": [b"x"]})
    assert bodies(store) == []
    assert {row.position for row in store.describe_group("g").partitions} == {0}


def interrupted(faulty: FaultyVfs, clock: ManualClock, topic: str, error: int = errno.EIO) -> Store:
    """Return a store in which the output of messages 0 to 2 did not reach one of its topics."""
    store = opened(faulty, clock)
    fill(store, 4)
    for name in TOPICS:
        store.create_topic(name)
    with member(store) as consumer:
        polled = consumer.poll(3)
        faulty.fail("pwrite", path=f"/{topic}-0/", error=error)
        with pytest.raises(OutputIncomplete, match="output was recorded") as caught:
            consumer.commit_with(transform(polled, TOPICS))
        assert caught.value.taken == "yes"
    faulty.heal()
    return store


def finish(store: Store) -> None:
    """Process what is left, and compare: each message once in each topic."""
    with member(store) as consumer:
        while len(polled := consumer.poll(3)):
            consumer.commit_with(transform(polled, TOPICS))
    for name in TOPICS:
        assert bodies(store, name) == expected(4)


@pytest.mark.parametrize("topic", TOPICS)
def test_output_that_was_recorded_and_not_appended_follows_at_the_next_opening(
    memory_vfs: MemoryVfs, clock: ManualClock, topic: str
) -> None:
    store = interrupted(FaultyVfs(memory_vfs), clock, topic)
    with member(store, on_removed="raise") as consumer:
        (left,) = consumer.poll()
        assert left.body == b"3", "the positions were recorded"
    with contextlib.suppress(tubestore.TubeStoreError):
        store.close()
    findings = [each for each in check("/store", vfs=memory_vfs) if each.path == OUTPUT_FILE]
    assert [each.severity for each in findings] == ["warning"]
    with opened(memory_vfs, clock) as again:
        assert not again.problems
        finish(again)
    assert not list(check("/store", vfs=memory_vfs))
    with opened(memory_vfs, clock) as again:
        finish(again)


def test_a_frame_of_a_killed_process_is_synced_before_its_output_is(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    """A power cut would otherwise leave output without its positions."""
    store = interrupted(FaultyVfs(memory_vfs), clock, "a")
    with contextlib.suppress(tubestore.TubeStoreError):
        store.close()
    journal = memory_vfs.record()
    with opened(memory_vfs, clock):
        calls = [str(call) for call in journal.calls]
    frame = next(at for at, call in enumerate(calls) if call.startswith("sync(") and "/g/" in call)
    written = [at for at, call in enumerate(calls) if "pwrite(/store/a-0" in call]
    assert written
    assert frame < written[0]


def test_output_that_found_no_room_follows_at_the_next_commit(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = interrupted(faulty, clock, "b", errno.ENOSPC)
    clock.advance(60_000)
    with member(store) as consumer:
        faulty.fail("pwrite", path="/b-0/", error=errno.ENOSPC)
        polled = consumer.poll()
        with pytest.raises(OutputIncomplete) as caught:
            consumer.commit_with(transform(polled, TOPICS))
        assert caught.value.taken == "no"
        faulty.heal()
        consumer.commit_with(transform(polled, TOPICS))
    finish(store)
    store.close()


def test_a_group_with_output_to_come_is_not_deleted(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    store = interrupted(FaultyVfs(memory_vfs), clock, "a")
    with pytest.raises(InvalidMessage, match="not in its topics yet"):
        store.delete_group("g")
    clock.advance(10**9)
    assert store.expire_groups("1d") == []
    with contextlib.suppress(tubestore.TubeStoreError):
        store.close()
    with opened(memory_vfs, clock) as again:
        again.delete_group("g")
        assert bodies(again, "a") == expected(3)


def test_output_for_a_topic_that_was_deleted_goes_nowhere(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    store = interrupted(FaultyVfs(memory_vfs), clock, "a")
    store.delete_topic("a")
    store.create_topic("a")
    store.delete_topic("b")
    with contextlib.suppress(tubestore.TubeStoreError):
        store.close()
    with opened(memory_vfs, clock) as again:
        assert again.problems == []
        assert bodies(again, "a") == []
        assert bodies(again, "c") == expected(3)


def test_a_position_log_that_is_followed_by_a_new_one_keeps_output_to_come(
    memory_vfs: MemoryVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = interrupted(FaultyVfs(memory_vfs), clock, "a")
    monkeypatch.setattr(positions_log, "GROWN_BYTES", 1)
    monkeypatch.setattr(positions_log, "GROWN_TIMES", 0)
    with member(store) as consumer:
        consumer.poll(1)
        for _ in range(2):
            consumer.commit({("in", 1): 56})
    with contextlib.suppress(tubestore.TubeStoreError):
        store.close()
    names = [path.rpartition("/")[2] for path in memory_vfs.tree() if "/groups/g/pos" in path]
    assert len(names) == 2
    assert names[0] != positions_log.log_name(1)
    with opened(memory_vfs, clock) as again:
        finish(again)


def test_much_output_begins_a_new_log_of_positions(
    store: Store, memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions_log, "GROWN_OUTPUT", 5000)
    fill(store, 30)
    store.create_topic("out")
    with member(store) as consumer:
        while len(polled := consumer.poll(1)):
            consumer.commit_with(transform(polled))
    logs = [len(data) for path, data in memory_vfs.tree().items() if "/groups/g/pos" in path]
    assert len(logs) == 2
    assert max(logs) < 12_000
    assert bodies(store) == expected(30)
