"""Consumers of one store: what they read, who has which partition, what is read again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import tubestore
from tests.support.crashes import state_now
from tubestore.clock import ManualClock
from tubestore.errors import (
    CorruptRecord,
    InvalidMessage,
    InvalidOption,
    MemberFenced,
    OffsetOutOfRange,
    ReadOnlyStore,
    StoreClosed,
    UnknownTopic,
)
from tubestore.groups.assignment import Partition
from tubestore.groups.consumer import Consumer
from tubestore.groups.directory import GroupDirectory
from tubestore.groups.positions import PositionRows
from tubestore.testing import FaultyVfs, MemoryVfs
from tubestore.values import Seconds

Store = tubestore.MessageStoreManager
SESSION_MS = 10_000


def bodies(polled: tubestore.Polled) -> list[bytes | None]:
    return [message.body for message in polled]


def fill(store: Store, count: int, topic: str = "t", partitions: int = 4) -> None:
    logs = store.create_topic(topic, partitions=partitions, exist_ok=True)
    for n in range(count):
        logs.append(b"%d" % n, partition=n % partitions)


def drain(*consumers: Consumer) -> dict[bytes, int]:
    """Poll in turn until nothing comes; returns how often each message came."""
    found: dict[bytes, int] = {}
    idle = 0
    while idle < 3:
        idle += 1
        for consumer in consumers:
            for body in bodies(consumer.poll(3)):
                assert body is not None
                found[body] = found.get(body, 0) + 1
                idle = 0
    return found


def ids(consumer: Consumer) -> list[int]:
    return [number for _, number in consumer.assignment]


# -- messages ------------------------------------------------------------------------------------


def test_messages_of_a_partition_come_in_order_and_once(store: Store) -> None:
    fill(store, 40)
    with store.consumer("g", "t") as consumer:
        seen: dict[int, list[int]] = {}
        while len(polled := consumer.poll(7)):
            for message in polled:
                seen.setdefault(message.partition, []).append(int(message.body or b""))
        assert seen == {n: list(range(n, 40, 4)) for n in range(4)}
        assert consumer.unread() == {("t", n): 0 for n in range(4)}


def test_bytes_and_columns_and_filters_bound_what_comes(store: Store) -> None:
    logs = store.create_topic("t")
    for n in range(6):
        logs.append(b"x" * 100, filter_item="ab"[n % 2])
    with store.consumer(None, "t", columns=["offset"], filter_items=["b"]) as consumer:
        polled = consumer.poll(max_bytes=1)
        assert polled.table.to_pydict() == {"offset": [28]}
        assert consumer.poll().table["offset"].to_pylist() == [84, 140]


def test_a_group_goes_on_where_it_has_committed(store: Store) -> None:
    fill(store, 8)
    with store.consumer("g", "t") as consumer:
        assert len(consumer.poll(5)) == 5
    with store.consumer("g", "t") as consumer:
        assert len(consumer.poll()) == 3
    with store.consumer("other", "t") as consumer:
        assert len(consumer.poll()) == 8


def test_what_was_not_committed_is_read_again(store: Store) -> None:
    fill(store, 8)
    with store.consumer("g", "t", auto_commit=False) as consumer:
        consumer.poll(3)
        consumer.commit()
        consumer.poll()
    with store.consumer("g", "t", auto_commit=False) as consumer:
        assert len(consumer.poll()) == 5


def test_a_block_that_fails_reads_its_last_answer_again(store: Store) -> None:
    fill(store, 8)

    def consume_and_fail() -> None:
        with store.consumer("g", "t") as consumer:
            consumer.poll(2)
            consumer.poll(3)
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        consume_and_fail()
    with store.consumer("g", "t") as consumer:
        assert len(consumer.poll()) == 6


@pytest.mark.parametrize("positions", ["x", [1], {"t": 28}, {("t", 0, 1): 28}])
def test_positions_that_are_none_are_refused(store: Store, positions: Any) -> None:
    fill(store, 4)
    consumer = store.consumer("g", ["t"])
    consumer.poll()
    with pytest.raises(InvalidMessage, match="positions"):
        consumer.commit(positions)


def test_iterating_commits_message_by_message(store: Store) -> None:
    fill(store, 8)

    def consume_and_fail() -> None:
        with store.consumer("g", "t") as consumer:
            for number, _ in enumerate(consumer):
                if number == 4:
                    raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        consume_and_fail()
    with store.consumer("g", "t") as consumer:
        assert len(list(consumer.messages(idle_timeout=0))) == 4


def test_auto_commit_counts_an_answer_at_the_next_poll(store: Store, clock: ManualClock) -> None:
    fill(store, 8)
    consumer = store.consumer("g", "t", auto_commit_interval=5)
    consumer.poll(3)
    clock.advance(6000)
    consumer.poll(1)
    with store.consumer("watch", "t"):
        pass
    kill(consumer)
    clock.advance(SESSION_MS + 1)
    with store.consumer("g", "t") as again:
        assert len(again.poll()) == 5


def kill(consumer: Consumer) -> None:
    """End a consumer as a kill does: it commits nothing and leaves no group."""
    consumer._closed = True


def test_an_append_wakes_a_poll(store: Store) -> None:
    logs = store.create_topic("t", partitions=2)
    logs.append(b"first", partition=0)
    with store.consumer(None, "t") as consumer:
        consumer.poll()
        begun = time.monotonic()
        for level in ("memory", "page_cache", "fsync"):
            timer = threading.Timer(0.02, lambda: logs.append(b"x", durability=level))  # noqa: B023
            timer.start()
            assert len(consumer.poll(timeout=60)) == 1
            timer.join()
        table = {"topic": ["t"], "body": [b"y"]}
        timer = threading.Timer(0.02, lambda: store.append_batch(table))
        timer.start()
        assert bodies(consumer.poll(timeout=60)) == [b"y"]
        timer.join()
        assert time.monotonic() - begun < 30


@pytest.mark.parametrize("none", [0, "0s", timedelta(0)])
def test_waits_and_sizes_are_numbers_texts_or_timedeltas(store: Store, none: Seconds) -> None:
    fill(store, 8, partitions=1)
    half = store["t"].partitions()["bytes"][0].as_py() // 2
    with store.consumer(
        "g", "t", session_timeout="10s", auto_commit_interval=none, max_poll_interval="5m"
    ) as consumer:
        assert len(consumer.poll(max_bytes=f"{half}B", timeout=none)) == 4
        assert len(list(consumer.messages(idle_timeout=none))) == 4
    assert store.describe_group("g").partitions[0].lag == 0
    assert len(list(store["t"].follow(0, idle_timeout=none))) == 8


@pytest.mark.parametrize("size", [0, "0", "1 GO", -1])
def test_a_poll_of_no_bytes_is_refused(store: Store, size: Any) -> None:
    fill(store, 1)
    with store.consumer(None, "t") as consumer, pytest.raises(ValueError, match="max_bytes"):
        consumer.poll(max_bytes=size)


def test_interrupt_ends_a_poll(store: Store) -> None:
    store.create_topic("t").append(b"x")
    with store.consumer("g", "t") as consumer:
        consumer.poll()
        timer = threading.Timer(0.02, consumer.interrupt)
        timer.start()
        assert len(consumer.poll(timeout=60)) == 0
        timer.join()


@pytest.mark.parametrize("stop", range(1, 9))
def test_an_iteration_that_was_left_goes_on_at_its_last_message(store: Store, stop: int) -> None:
    fill(store, 12)
    with store.consumer("g", "t") as consumer:
        first = [m.body for _, m in zip(range(stop), consumer.messages(), strict=False)]
        rest = [m.body for m in consumer.messages(idle_timeout=0)]
    assert {*first, *rest} == {b"%d" % n for n in range(12)}
    assert len(rest) == 12 - (stop - 1)


def test_a_consumer_that_is_closed_within_an_iteration_commits_what_was_asked_beyond(
    store: Store,
) -> None:
    fill(store, 8)
    with store.consumer("g", "t") as consumer:
        rows = consumer.messages()
        assert [next(rows).body, next(rows).body] == [b"0", b"1"]
    with store.consumer("g", "t") as consumer:
        assert sorted(bodies(consumer.poll())) == [b"%d" % n for n in range(1, 8)]


def test_async_for_leaves_the_loop_free(store: Store) -> None:
    fill(store, 3)

    async def consume() -> list[bytes | None]:
        found = []
        with store.consumer("g", "t") as consumer:
            async for message in consumer:
                found.append(message.body)
                if len(found) == 3:
                    asyncio.get_running_loop().call_later(
                        0.01, lambda: store["t"].append(b"more", partition=0)
                    )
                if len(found) == 4:
                    break
        return found

    assert asyncio.run(consume())[-1] == b"more"


def test_idle_partitions_cost_no_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = store.create_topic("t", partitions=10_000)
    logs.append(b"x", partition=5)
    with store.consumer("g", "t") as consumer:
        assert len(consumer.poll()) == 1
        asked: list[Any] = []
        shards = type(consumer._source)
        real = shards.view
        monkeypatch.setattr(
            shards, "view", lambda self, *key: asked.append(key) or real(self, *key)
        )
        for _ in range(10):
            assert len(consumer.poll()) == 0
        assert asked == []
        logs.append(b"y", partition=9999)
        assert bodies(consumer.poll()) == [b"y"]
        assert asked == [("t", 0)]


def test_an_answer_that_cannot_be_read_is_not_passed_by(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False) as store:
        fill(store, 4, partitions=1)
        store.sync()
    path = "/s/t-0/00000000000000000000.tube"
    file = memory_vfs.open(path)
    file.pwrite(b"?", 53 * 2 + 5)
    with tubestore.open(
        "/s", "r", vfs=memory_vfs, clock=clock, background=False, on_damage="raise"
    ) as store:
        consumer = store.consumer("g", "t")
        for _ in range(2):
            with pytest.raises(CorruptRecord):
                consumer.poll()
        assert consumer.positions() == {("t", 0): 0}


# -- partitions ----------------------------------------------------------------------------------


def test_members_share_the_partitions_and_hand_them_over(store: Store) -> None:
    fill(store, 40)
    a = store.consumer("g", "t")
    assert ids(a) == []
    a.poll(10)
    assert ids(a) == [0, 1, 2, 3]
    b = store.consumer("g", "t")
    b.poll(1)
    assert ids(b) == []
    a.poll(1)
    b.poll(1)
    assert sorted(ids(a) + ids(b)) == [0, 1, 2, 3]
    assert len(ids(a)) == 2
    a.close()
    b.poll(1)
    assert ids(b) == [0, 1, 2, 3]
    b.close()


def test_every_message_comes_to_one_member_when_members_come_and_go(store: Store) -> None:
    fill(store, 60)
    found: dict[bytes, int] = {}
    members = [store.consumer("g", "t")]
    for step in range(30):
        for consumer in members:
            for body in bodies(consumer.poll(2)):
                assert body is not None
                found[body] = found.get(body, 0) + 1
        if step % 4 == 1:
            members.append(store.consumer("g", "t"))
        if step % 6 == 5:
            members.pop(0).close()
    for body, count in drain(*members).items():
        found[body] = found.get(body, 0) + count
    for consumer in members:
        consumer.close()
    assert found == {b"%d" % n: 1 for n in range(60)}


def test_a_member_that_dies_loses_its_partitions_after_its_session(
    store: Store, clock: ManualClock
) -> None:
    fill(store, 8)
    a, b = store.consumer("g", "t"), store.consumer("g", "t")
    for _ in range(2):
        a.poll(1), b.poll(1)
    assert len(ids(b)) == 2
    clock.advance(SESSION_MS - 1)
    b.poll(1)
    assert len(ids(b)) == 2
    clock.advance(SESSION_MS // 2)
    b.poll(1)
    assert ids(b) == [0, 1, 2, 3]
    with pytest.raises(MemberFenced, match="session ended"):
        a.commit()
    kill(a)
    b.close()


def test_a_zombie_learns_what_it_has_lost_and_joins_again(store: Store, clock: ManualClock) -> None:
    fill(store, 8)
    lost: list[Partition] = []
    a = store.consumer("g", "t", on_lost=lost.extend)
    a.poll(1)
    b = store.consumer("g", "t")
    clock.advance(SESSION_MS + 1)
    b.poll(1)
    a.poll(1)
    assert lost == [("t", n) for n in range(4)]
    b.poll(1)
    a.poll(1)
    assert len(ids(a)) == 2
    a.close()
    b.close()


def test_callbacks_come_in_order_and_may_commit(store: Store) -> None:
    fill(store, 8)
    calls: list[tuple[str, list[Partition]]] = []
    a = store.consumer(
        "g",
        "t",
        auto_commit=False,
        on_assigned=lambda some: calls.append(("assigned", some)),
        on_revoked=lambda some: (calls.append(("revoked", some)), a.commit()),
    )
    a.poll()
    b = store.consumer("g", "t")
    a.poll()
    b.poll()
    assert [(name, len(some)) for name, some in calls] == [("assigned", 4), ("revoked", 2)]
    assert len(b.poll()) == 0
    a.close()
    b.close()


def test_all_strategies_cover_all_partitions(store: Store) -> None:
    fill(store, 8)
    for strategy in ("average", "circle", "consistent_hash", "sticky"):
        a = store.consumer(strategy, "t", strategy=strategy)
        b = store.consumer(strategy, "t", strategy=strategy)
        for _ in range(2):
            a.poll(), b.poll()
        assert sorted(ids(a) + ids(b)) == [0, 1, 2, 3]
        a.close()
        b.close()


def test_a_mapping_and_a_function_choose_partitions_too(store: Store) -> None:
    fill(store, 8)
    fixed = {"a": {"t": [3]}, "b": {"t": [0, 1]}}
    with store.consumer("g", "t", member="b", strategy=fixed) as b:
        assert b.member == "b"
        b.poll()
        assert ids(b) == [0, 1]
    with store.consumer("h", "t", strategy=lambda m, p, h: {x: [("t", 2)] for x in m}) as c:
        c.poll()
        assert ids(c) == [2]


def test_members_of_one_group_agree_on_strategy_and_names(store: Store) -> None:
    fill(store, 1)
    with store.consumer("g", "t", member="a"):
        with pytest.raises(InvalidMessage, match="by 'sticky', not 'average'"):
            store.consumer("g", "t", strategy="average")
        with pytest.raises(InvalidMessage, match="member 'a' already"):
            store.consumer("g", "t", member="a")


def test_new_topics_and_partitions_are_found(store: Store, clock: ManualClock) -> None:
    with store.consumer("g", ["t", "u"]) as consumer, store.consumer(None, ["t", "u"]) as follower:
        assert len(consumer.poll()) == 0
        fill(store, 4)
        fill(store, 2, "u", 1)
        clock.advance(SESSION_MS // 2)
        assert len(consumer.poll()) == 6
        assert len(follower.poll()) == 6
        store.change_topic("u", partitions=3)
        store["u"].append(b"x", partition=2)
        clock.advance(SESSION_MS // 2)
        assert bodies(consumer.poll()) == [b"x"]
        assert bodies(follower.poll()) == [b"x"]


def test_a_deleted_topic_is_lost_and_the_others_go_on(store: Store, clock: ManualClock) -> None:
    fill(store, 4)
    fill(store, 2, "u", 1)
    lost: list[Partition] = []
    with store.consumer("g", ["t", "u"], on_lost=lost.extend) as consumer:
        consumer.poll()
        store.delete_topic("u")
        clock.advance(SESSION_MS // 2)
        store["t"].append(b"x", partition=0)
        assert bodies(consumer.poll()) == [b"x"]
        assert lost == [("u", 0)]
        clock.advance(SESSION_MS // 2)
        store.create_topic("u").append(b"new")
        clock.advance(SESSION_MS // 2)
        consumer.poll()
        assert consumer.positions()[("u", 0)] == 28


def test_a_partition_that_was_begun_at_the_end_is_not_begun_there_again(
    store: Store, clock: ManualClock
) -> None:
    fill(store, 4)
    a = store.consumer("g", "t", start="latest")
    assert len(a.poll()) == 0
    kill(a)
    store["t"].append(b"between", partition=2)
    clock.advance(SESSION_MS + 1)
    with store.consumer("g", "t", start="latest") as b:
        assert bodies(b.poll()) == [b"between"]


def test_a_start_by_time_begins_at_that_message(store: Store, clock: ManualClock) -> None:
    logs = store.create_topic("t")
    for n in range(5):
        logs.append(b"%d" % n, received_time=1000 + n)
    with store.consumer(None, "t", start=1003) as consumer:
        assert bodies(consumer.poll()) == [b"3", b"4"]


def test_partitions_chosen_by_hand_need_no_group_and_write_nothing(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False) as store:
        fill(store, 8)
    before = memory_vfs.tree()
    with (
        tubestore.open("/s", "r", vfs=memory_vfs, clock=clock, background=False) as store,
        store.consumer(None, {"t": [1, 3]}) as consumer,
    ):
        assert ids(consumer) == [1, 3]
        assert len(consumer.poll()) == 4
        with pytest.raises(InvalidMessage, match="no group"):
            consumer.commit()
        with pytest.raises(UnknownTopic):
            store.consumer(None, {"u": [0]})
        with pytest.raises(InvalidMessage, match="partition 4: topic 't' has partitions 0 to 3"):
            store.consumer(None, {"t": [4]})
    assert memory_vfs.tree() == before


def test_a_group_where_nothing_can_be_written_is_refused_in_a_sentence(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False) as store:
        fill(store, 8)
    faulty = FaultyVfs(memory_vfs)
    faulty.fail("make_directories", error=30, path="groups")
    with (
        tubestore.open("/s", "r", vfs=faulty, clock=clock, background=False) as store,
        pytest.raises(ReadOnlyStore, match="choose partitions by hand"),
    ):
        store.consumer("g", "t")


# -- places --------------------------------------------------------------------------------------


def test_pause_and_resume_leave_a_partition_where_it_is(store: Store) -> None:
    fill(store, 8)
    with store.consumer("g", "t") as consumer:
        consumer.poll(1)
        consumer.pause([("t", 1), ("t", 2)])
        assert consumer.paused == [("t", 1), ("t", 2)]
        assert {m.partition for m in consumer.poll()} <= {0, 3}
        assert consumer.unread()[("t", 1)] == 2
        consumer.resume([("t", 1)])
        assert {m.partition for m in consumer.poll()} == {1}
        consumer.resume()
        assert {m.partition for m in consumer.poll()} == {2}
        with pytest.raises(InvalidMessage, match="not one of this consumer's"):
            consumer.pause([("t", 9)])


def test_a_paused_partition_is_resumed_when_all_others_of_its_shard_have_gone(
    store: Store,
) -> None:
    fill(store, 8, partitions=2)
    with store.consumer("g", "t") as a:
        a.poll(1)
        a.pause([("t", 0)])
        with store.consumer("g", "t") as b:
            a.poll(1), b.poll(1)
            assert a.assignment == a.paused == [("t", 0)]
            a.resume()
            assert {message.partition for message in a.poll()} == {0}


def test_seek_and_rewind_go_elsewhere_and_are_committed(store: Store) -> None:
    fill(store, 8, partitions=1)
    consumer = store.consumer("g", "t")
    consumer.poll()
    consumer.seek("first")
    assert len(consumer.poll()) == 8
    consumer.seek(28 * 6)
    assert bodies(consumer.poll()) == [b"6", b"7"]
    consumer.rewind(3)
    assert len(consumer.poll()) == 3
    consumer.rewind(100)
    assert consumer.positions() == {("t", 0): 0}
    consumer.seek("last")
    assert len(consumer.poll()) == 0
    with pytest.raises(OffsetOutOfRange):
        consumer.seek(28 * 9)
    with pytest.raises(ValueError, match="'first' or 'last'"):
        consumer.seek("middle")  # type: ignore[arg-type]
    consumer.seek(28 * 7)
    consumer.close()
    with store.consumer("g", "t") as again:
        assert bodies(again.poll()) == [b"7"]


def test_seek_time_goes_to_the_first_message_from_then_on(store: Store) -> None:
    logs = store.create_topic("t")
    for n in range(5):
        logs.append(b"%d" % n, received_time=1000 + n)
    with store.consumer(None, "t") as consumer:
        consumer.poll()
        consumer.seek_time(1002)
        assert bodies(consumer.poll()) == [b"2", b"3", b"4"]
        consumer.seek_time(2000)
        assert len(consumer.poll()) == 0


@pytest.mark.parametrize("policy", ["earliest", "latest", "raise"])
def test_what_retention_has_passed_is_reported(
    memory_vfs: MemoryVfs, clock: ManualClock, policy: Any
) -> None:
    small: dict[str, Any] = {"segment_size_bytes": 400, "index_segment_size_bytes": 28 * 4}
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False, **small) as store:
        logs = store.create_topic("t")
        with store.consumer("g", "t", on_removed=policy) as consumer:
            for n in range(4):
                logs.append(b"%d" % n)
            assert len(consumer.poll(2)) == 2
            for n in range(4, 40):
                logs.append(b"%d" % n)
                logs.flush()
            logs.retain(max_bytes=900)
            first = logs.first_offset(0)
            assert first > 56
            if policy == "raise":
                with pytest.raises(OffsetOutOfRange):
                    consumer.poll()
                consumer.seek("first")
                assert len(consumer.poll()) == (28 * 40 - first) // 28
                return
            polled = consumer.poll()
            goes_on = first if policy == "earliest" else 28 * 40
            assert polled.removed == [tubestore.Removed("t", 0, 56, goes_on)]
            assert len(polled) == (28 * 40 - goes_on) // 28


@pytest.mark.parametrize("beyond", [28 * 4 + 1, 1 << 62, 1 << 63])
def test_a_commit_beyond_the_end_is_refused(store: Store, beyond: int) -> None:
    fill(store, 4, partitions=1)
    with store.consumer("g", "t", auto_commit=False) as consumer:
        consumer.poll()
        with pytest.raises(OffsetOutOfRange):
            consumer.commit({("t", 0): beyond})
        with pytest.raises(OffsetOutOfRange):
            consumer.commit_with([{"topic": "t", "body": b"out"}], {("t", 0): beyond})
        with pytest.raises(TypeError, match="positions"):
            consumer.commit({("t", 0): "end"})  # type: ignore[dict-item]
        consumer.commit({("t", 0): 28 * 4})


def set_position(vfs: MemoryVfs, root: str, position: int) -> None:
    """Record a position as a group has it whose messages a kill or a power cut took."""
    files = GroupDirectory(vfs, root, "g", ManualClock())
    files.make()
    with files.locked():
        files.log.refresh(locked=True)
        rows = {"t": PositionRows(0, np.array([0]), np.array([position]))}
        files.log.append(files.log.positions.change(1, rows), "fsync")


def test_a_position_beyond_the_end_misses_no_new_message(
    store: Store, memory_vfs: MemoryVfs
) -> None:
    fill(store, 4, partitions=1)
    set_position(memory_vfs, store.root, 28 * 50)
    with store.consumer("g", "t") as consumer:
        assert consumer.poll().removed == [tubestore.Removed("t", 0, 28 * 50, 28 * 4)]
        store["t"].append(b"new")
        assert bodies(consumer.poll()) == [b"new"]


@pytest.mark.parametrize("writes", [False, True])
def test_a_reader_goes_on_at_the_end_if_a_position_is_beyond_and_no_process_writes(
    memory_vfs: MemoryVfs, clock: ManualClock, writes: bool
) -> None:
    how: Any = {"vfs": memory_vfs, "clock": clock, "background": False}
    with tubestore.open("/s", **how) as store:
        fill(store, 4, partitions=1)
    set_position(memory_vfs, "/s", 28 * 5)
    if not writes:
        with tubestore.open("/s", "r", **how) as reader, reader.consumer("g", "t") as consumer:
            assert consumer.poll().removed == [tubestore.Removed("t", 0, 28 * 5, 28 * 4)]
        return
    with (
        tubestore.open("/s", **how) as store,
        tubestore.open("/s", "r", **how) as reader,
        reader.consumer("g", "t") as consumer,
    ):
        # The other process may have the message that was committed, not yet in its file.
        assert consumer.poll().removed == []
        store["t"].append_batch({"body": [b"4", b"5"]}, durability="page_cache")
        assert bodies(consumer.poll(timeout=60)) == [b"5"]


@pytest.mark.parametrize("lost", ["kill", "power"])
def test_no_message_is_passed_that_gets_the_offset_of_a_lost_one(
    memory_vfs: MemoryVfs, clock: ManualClock, lost: str
) -> None:
    how: Any = {"clock": clock, "background": False}
    level: Any = "memory" if lost == "kill" else "page_cache"
    journal = memory_vfs.record()
    store = tubestore.open("/s", vfs=memory_vfs, **how)
    store.create_topic("t", partitions=1).append(b"kept", durability="fsync")
    with store.consumer("g", "t", auto_commit=False, durability="fsync") as consumer:
        store["t"].append_batch({"body": [b"lost"] * 3}, durability=level)
        consumer.poll()
        consumer.commit()
    disk = state_now(journal, lost)
    store.close()
    with tubestore.open("/s", vfs=disk, **how) as again:
        assert again.describe_group("g").partitions[0].position == 28
        assert "goes on at 28 in partition 0 of 't': it was at 112" in str(again.problems)
        again["t"].append_batch({"body": [b"new"] * 5})
        with again.consumer("g", "t", auto_commit=False) as consumer:
            assert bodies(consumer.poll()) == [b"new"] * 5
    with tubestore.open("/s", vfs=disk, **how) as third:
        assert third.problems == []


# -- life ----------------------------------------------------------------------------------------


def test_a_closed_store_closes_its_consumers_first(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False) as store:
        fill(store, 8)
        consumer = store.consumer("g", "t")
        consumer.poll(5)
    with pytest.raises(StoreClosed, match="consumer is closed"):
        consumer.poll()
    consumer.close()
    with (
        tubestore.open("/s", vfs=memory_vfs, clock=clock, background=False) as store,
        store.consumer("g", "t") as again,
    ):
        assert len(again.poll()) == 3


def test_a_member_that_does_not_poll_gives_its_partitions_away() -> None:
    vfs = MemoryVfs()
    with tubestore.open("/s", vfs=vfs) as store:
        fill(store, 8)
        a = store.consumer("g", "t", session_timeout=0.2, max_poll_interval=0.1)
        a.poll(1)
        b = store.consumer("g", "t", session_timeout=60)
        assert drain_until(b, 7)
        with pytest.raises(MemberFenced):
            a.commit()
        a.close()
        b.close()


def drain_until(consumer: Consumer, count: int) -> bool:
    """Poll until so many messages came, for a minute at most."""
    deadline, seen = time.monotonic() + 60, 0
    while seen < count and time.monotonic() < deadline:
        seen += len(consumer.poll(timeout=0.05))
    return seen >= count


def test_heartbeats_keep_a_member_that_works_for_long() -> None:
    with tubestore.open("/s", vfs=MemoryVfs()) as store:
        fill(store, 8)
        with store.consumer("g", "t", session_timeout=0.1) as a:
            a.poll(1)
            with store.consumer("g", "t", session_timeout=60) as b:
                for _ in range(5):
                    b.poll(1, timeout=0.1)
                a.commit()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"topics": []}, InvalidMessage, "at least one"),
        ({"topics": 7}, TypeError, "topics"),
        ({"topics": {"t": [0]}}, InvalidMessage, "without a group"),
        ({"topics": "a/b"}, ValueError, "a/b"),
        ({"strategy": "best"}, InvalidOption, "unknown"),
        ({"start": "middle"}, ValueError, "start: 'middle' is not a valid time"),
        ({"on_removed": "stop"}, ValueError, "on_removed 'stop'"),
        ({"durability": "disk"}, ValueError, "durability 'disk'"),
        ({"session_timeout": 0}, ValueError, "session_timeout"),
        ({"session_timeout": "x"}, ValueError, "session_timeout"),
        ({"max_poll_interval": -1}, ValueError, "max_poll_interval"),
        ({"columns": ["x"]}, ValueError, "columns x"),
        ({"columns": []}, ValueError, "columns: at least one is needed"),
        ({"on_lost": 7}, TypeError, "cannot be called"),
        ({"member": 7}, InvalidMessage, "member 7"),
        ({"group": "a/b"}, ValueError, "a/b"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_before_anything_changes(
    store: Store, memory_vfs: MemoryVfs, arguments: dict[str, Any], error: Any, text: str
) -> None:
    with pytest.raises(error, match=text):
        store.consumer(**{"group": "g", "topics": "t", **arguments})
    assert not [path for path in memory_vfs.tree() if "/groups/" in path]


@pytest.fixture
def reader(memory_vfs: MemoryVfs, store: Store, clock: ManualClock) -> Iterator[Store]:
    """The same store, opened to read."""
    with tubestore.open("/store", "r", vfs=memory_vfs, clock=clock) as opened:
        yield opened


def test_a_reader_follows_without_refresh_and_shares_a_group(store: Store, reader: Store) -> None:
    fill(store, 8)
    store.flush()
    with reader.consumer("g", "t") as a:
        assert drain_until(a, 8)
        timer = threading.Timer(0.02, lambda: store["t"].append(b"x", durability="page_cache"))
        timer.start()
        assert bodies(a.poll(timeout=60)) == [b"x"]
        timer.join()
        with store.consumer("g", "t") as b:
            a.poll(), b.poll(), a.poll(), b.poll()
            assert sorted(ids(a) + ids(b)) == [0, 1, 2, 3]
            assert ids(a)
            assert ids(b)


def test_a_reader_is_woken_by_the_journal(store: Store, reader: Store) -> None:
    logs = store.create_topic("t", partitions=1, stores=16)
    table = {"body": [b"%d" % n for n in range(16)], "partition": logs.partition_ids}
    with reader.consumer(None, "t") as consumer:
        logs.append_batch(table)
        assert drain_until(consumer, 16)
        timer = threading.Timer(0.02, lambda: logs.append_batch(table))
        timer.start()
        assert drain_until(consumer, 16)
        timer.join()
