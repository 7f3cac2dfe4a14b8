"""A member of a group: joins, takes its partitions, gives them up, commits, leaves."""

from __future__ import annotations

from typing import Any

import pytest

from tubestore.clock import ManualClock
from tubestore.errors import InvalidMessage, MemberFenced
from tubestore.groups.assignment import sticky
from tubestore.groups.directory import GroupDirectory
from tubestore.groups.member import GroupMember
from tubestore.groups.membership import TopicShape
from tubestore.testing import MemoryVfs

SESSION_MS = 10_000
ALL = [("t", number) for number in range(4)]


def member_of(vfs: MemoryVfs, clock: ManualClock, name: str, **other: Any) -> GroupMember:
    vfs.make_directories("/s")
    files = GroupDirectory(vfs, "/s", "g", clock, sleep=lambda seconds: None)
    values: dict[str, Any] = {
        "name": name, "topics": ["t"], "strategy": ("sticky", sticky), "session_ms": SESSION_MS,
        "clock": clock, "shapes": lambda: {"t": TopicShape(4)}, "topic_id": lambda topic: 7,
    }  # fmt: skip
    member = GroupMember(files, **{**values, **other})
    member.join()
    return member


def test_the_first_member_gets_all_partitions_and_the_next_turn_has_nothing_new(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    one = member_of(memory_vfs, clock, "a")
    turn = one.turn()
    assert (sorted(turn.coming), turn.leaving, turn.lost) == (ALL, [], False)
    again = one.turn()
    assert (again.coming, again.leaving, again.held) == ([], [], None)


def test_partitions_go_to_a_second_member_when_the_first_has_released_them(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    one = member_of(memory_vfs, clock, "a")
    one.turn()
    two = member_of(memory_vfs, clock, "b")
    assert two.turn().coming == []
    leaving = one.turn().leaving
    assert len(leaving) == 2
    one.release(leaving)
    assert sorted(two.turn().coming) == sorted(leaving)


def test_positions_are_recorded_only_of_partitions_that_the_member_has(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    one = member_of(memory_vfs, clock, "a")
    one.turn()
    one.commit({("t", 0): 28, ("t", 3): 56}, "page_cache")
    with pytest.raises(MemberFenced, match="t/4"):
        one.commit({("t", 0): 84, ("t", 4): 0}, "page_cache")
    one.leave()
    with pytest.raises(MemberFenced, match="left the group"):
        one.commit({("t", 0): 84}, "page_cache")
    two = member_of(memory_vfs, clock, "b")
    two.turn()
    assert two.committed("t") == {0: 28, 3: 56}


def test_a_member_that_leaves_frees_its_partitions_at_once(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    one = member_of(memory_vfs, clock, "a")
    one.turn()
    one.leave()
    assert sorted(member_of(memory_vfs, clock, "b").turn().coming) == ALL


def test_a_member_that_was_silent_too_long_has_lost_everything_and_joins_again(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    one = member_of(memory_vfs, clock, "a")
    one.turn()
    two = member_of(memory_vfs, clock, "b")
    two.turn()
    for _ in range(11):
        clock.advance(1_000)
        two.beat()
    assert sorted(two.turn().coming) == ALL
    turn = one.turn()
    assert (turn.lost, turn.coming) == (True, [])
    assert one.turn().lost is False


def test_heartbeats_keep_a_member_without_turns(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    one = member_of(memory_vfs, clock, "a")
    one.turn()
    two = member_of(memory_vfs, clock, "b")
    for _ in range(40):
        clock.advance(int(one.beat_seconds * 1000))
        one.beat()
        two.beat()
    assert two.turn().coming == []
    assert one.turn().lost is False


def test_a_name_that_is_taken_is_refused(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    member_of(memory_vfs, clock, "a")
    with pytest.raises(InvalidMessage, match="'a'"):
        member_of(memory_vfs, clock, "a")
