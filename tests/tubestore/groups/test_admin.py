"""Groups from outside: described, set anew, deleted."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

import tubestore
from tubestore import metrics
from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage, TubeStoreError, UnknownTopic
from tubestore.testing import FaultyVfs, MemoryVfs

Store = tubestore.MessageStoreManager


@pytest.fixture(autouse=True)
def messages(store: Store) -> None:
    topic = store.create_topic("t", partitions=2)
    for number in range(8):
        topic.append(b"%d" % number, partition=number % 2, received_time=1000 + number)


def consume(store: Store, count: int = 1000) -> int:
    with store.consumer("g", "t") as consumer:
        return len(consumer.poll(count))


def test_a_description_has_members_positions_and_lag(store: Store, clock: ManualClock) -> None:
    with store.consumer("g", "t", member="a", auto_commit=False) as consumer:
        consumer.poll(3)
        consumer.commit()
        clock.advance(10)
        found = store.describe_group("g")
    assert (found.name, found.strategy, found.problems) == ("g", "sticky", [])
    assert found.committed_ms == clock.now_ms() - 10
    (member,) = found.members
    assert (member.id, member.topics, member.partitions, member.silent_ms) == ("a", ("t",), 2, 10)
    rows = [(r.partition, r.member, r.position, r.end, r.lag) for r in found.partitions]
    assert rows == [(0, "a", 84, 224, 2), (1, "a", 56, 224, 3)]


def test_metrics_have_lag_and_age_of_each_group(store: Store, clock: ManualClock) -> None:
    consume(store, 5)
    now = clock.now_ms()
    with store.consumer("g", "t", auto_commit=False) as consumer:
        consumer.poll(1)
        registry = CollectorRegistry()
        registry.register(metrics.Collector(store, clock))
        labels = {"group": "g", "topic": "t"}
        found = {
            name: registry.get_sample_value(f"tubestore_group_{name}", labels)
            for name in ("lag", "age_seconds", "partitions", "partitions_held")
        }
    assert found == {
        "lag": 3,
        "age_seconds": (now - 1005) / 1000,
        "partitions": 2,
        "partitions_held": 2,
    }


def test_a_partition_without_a_position_has_no_lag(store: Store) -> None:
    consume(store)
    store.change_topic("t", partitions=3)
    last = store.describe_group("g").partitions[-1]
    assert (last.partition, last.position, last.lag) == (2, None, None)


def test_groups_are_listed_and_a_group_that_is_not_there_is_a_mistake(store: Store) -> None:
    assert store.groups() == []
    for call in (store.describe_group, store.delete_group):
        with pytest.raises(InvalidMessage, match="no group 'g' in this store; there are: none"):
            call("g")
    assert store.groups() == []
    consume(store)
    assert store.groups() == ["g"]
    with pytest.raises(InvalidMessage, match="no group 'h' in this store; there are: g"):
        store.describe_group("h")


def test_positions_are_set_to_a_place_or_a_time(store: Store) -> None:
    consume(store)
    assert len(store.reset_group("g", "first", dry_run=True)) == 2
    assert consume(store) == 0
    assert [row.after for row in store.reset_group("g", "first")] == [0, 0]
    assert consume(store) == 8
    store.reset_group("g", time=1005)
    assert consume(store) == 3
    store.reset_group("g", 1 << 40)
    assert store.reset_group("g", "last") == []
    with pytest.raises(InvalidMessage, match="a place or to a time"):
        store.reset_group("g")
    with pytest.raises(TypeError, match="to = 'middle'"):
        store.reset_group("g", "middle")  # type: ignore[arg-type]
    with pytest.raises(UnknownTopic):
        store.reset_group("g", "first", topics=["u"])


def test_a_new_group_can_be_set_before_its_first_member(store: Store) -> None:
    assert len(store.reset_group("g", 28 * 4, topics=["t"])) == 2
    assert consume(store) == 4


def test_a_living_member_keeps_its_group_from_being_set_or_deleted(
    store: Store, clock: ManualClock
) -> None:
    with store.consumer("g", "t", member="a") as consumer:
        consumer.poll(1)
        before = store.describe_group("g").partitions
        with pytest.raises(InvalidMessage, match="living members: a"):
            store.reset_group("g", "last")
        with pytest.raises(InvalidMessage, match="living members: a"):
            store.delete_group("g")
        assert store.describe_group("g").partitions == before
    store.delete_group("g")
    assert store.groups() == []


def test_a_deleted_group_begins_anew_in_every_process(
    store: Store, memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with tubestore.open("/store", "r", vfs=memory_vfs, clock=clock, background=False) as other:
        assert consume(other) == 8
        assert consume(store) == 0
        store.delete_group("g")
        assert consume(other) == 8
        with other.consumer("g", "t", member="b") as consumer:
            consumer.poll(1)
            assert [member.id for member in store.describe_group("g").members] == ["b"]


def test_what_a_crash_leaves_of_a_deletion_is_no_group(
    memory_vfs: MemoryVfs, clock: ManualClock, store: Store
) -> None:
    faulty = FaultyVfs(memory_vfs)
    with tubestore.open("/store", "r", vfs=faulty, clock=clock, background=False) as other:
        consume(other)
        faulty.fail("remove", path=".deleted")
        with pytest.raises(OSError, match="Input/output"):
            other.delete_group("g")
        assert other.groups() == []
        assert consume(other) == 8
        other.delete_group("g")
    assert not [path for path in memory_vfs.tree() if "/groups/" in path]


# -- committed by hand ---------------------------------------------------------------------------


def test_a_group_without_members_is_committed_by_hand(store: Store) -> None:
    moved = store.commit_group("g", {("t", 0): 56, ("t", 1): 224})
    assert [(row.partition, row.before, row.after) for row in moved] == [
        (0, None, 56),
        (1, None, 224),
    ]
    assert store.commit_group("g", {("t", 0): 56}) == []
    assert consume(store) == 3


def test_a_commit_by_hand_is_refused_as_a_whole(store: Store) -> None:
    for wrong, error in (
        ({("t", 2): 0}, "no partition 2"),
        ({("u", 0): 0}, "no topic 'u'"),
        ({"t": 0}, r"no \\(topic, partition\\)"),
        ({("t", 1): 225}, "outside"),
    ):
        with pytest.raises(TubeStoreError, match=error.replace("\\\\", "\\")):
            store.commit_group("g", {("t", 0): 28, **wrong})  # type: ignore[dict-item]
    assert store.groups() == []
    with store.consumer("g", "t", member="a") as consumer:
        consumer.poll(1)
        with pytest.raises(InvalidMessage, match="living members: a"):
            store.commit_group("g", {("t", 0): 28})


def test_the_time_of_the_first_unread_message_has_its_unit_in_its_name(store: Store) -> None:
    consume(store, 5)
    waiting = [row.waiting_since_ms for row in store.describe_group("g").partitions]
    assert waiting == [1006, 1005]
    with pytest.warns(DeprecationWarning, match="waiting_since is named waiting_since_ms"):
        assert [r.waiting_since for r in store.describe_group("g").partitions] == waiting
