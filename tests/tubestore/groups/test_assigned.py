"""A consumer's partitions: each has one position, whether it is read or paused."""

from __future__ import annotations

import pytest

from tubestore.groups.assigned import AssignedPartitions, shard_of


@pytest.fixture
def assigned() -> AssignedPartitions:
    found = AssignedPartitions()
    for number, position in ((3, 28), (1, 56), (10_000, 0)):
        found.add(("t", number), position)
    return found


def test_partitions_are_grouped_by_shard_and_sorted(assigned: AssignedPartitions) -> None:
    assert assigned.partitions() == [("t", 1), ("t", 3), ("t", 10_000)]
    first, second = assigned.feed(("t", 0)), assigned.feed(("t", 1))
    assert first is not None
    assert second is not None
    assert (first.partitions(), second.partitions()) == ([1, 3], [10_000])
    assert shard_of(("t", 10_000)) == ("t", 1)


def test_a_paused_partition_leaves_the_feed_and_keeps_its_position(
    assigned: AssignedPartitions,
) -> None:
    before = assigned.positions()
    assigned.pause(("t", 10_000))
    assigned.pause(("t", 10_000))
    assert assigned.feed(("t", 1)) is None
    assert assigned.paused == {("t", 10_000): 0}
    assert assigned.positions() == before
    assert assigned.resume(("t", 10_000)) == ("t", 1)
    assert assigned.resume(("t", 10_000)) is None
    assert assigned.feed(("t", 1)) is not None
    assert assigned.positions() == before


def test_a_partition_goes_on_elsewhere_and_only_one_that_is_read_has_its_shard_looked_up(
    assigned: AssignedPartitions,
) -> None:
    assigned.pause(("t", 1))
    assert assigned.move(("t", 1), 84) is None
    assert assigned.move(("t", 3), 112) == ("t", 0)
    assert [assigned.position(("t", number)) for number in (1, 3, 5)] == [84, 112, None]


@pytest.mark.parametrize("paused", [True, False])
def test_a_partition_that_is_removed_leaves_nothing(
    assigned: AssignedPartitions, paused: bool
) -> None:
    if paused:
        assigned.pause(("t", 10_000))
    assert assigned.remove(("t", 10_000)) == 0
    assert assigned.remove(("t", 10_000)) is None
    assert assigned.feed(("t", 1)) is None
    assert ("t", 10_000) not in assigned.partitions()


def test_in_a_shard_without_messages_nothing_is_unread_paused_or_not(
    assigned: AssignedPartitions,
) -> None:
    assigned.pause(("t", 1))
    assert assigned.unread(lambda topic, store_id: None) == {
        ("t", 1): 0, ("t", 3): 0, ("t", 10_000): 0,
    }  # fmt: skip
