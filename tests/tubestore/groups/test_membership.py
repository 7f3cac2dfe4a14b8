"""The rules of a group: one holder at a time, and only the holder commits."""

from __future__ import annotations

import numpy as np
import pytest

from tubestore.errors import InvalidMessage, InvalidOption, MemberFenced
from tubestore.groups.assignment import average, sticky
from tubestore.groups.membership import Member, Membership, Owned, TopicShape

SESSION = 10_000


def joined(
    group: Membership, name: str, token: str = "", topics: tuple[str, ...] = ("t",)
) -> Member:
    member = group.join(name, token or f"{name}-1", topics, session_ms=SESSION, strategy="sticky")
    group.see_topics({"t": TopicShape(4)})
    group.settle(sticky)
    return member


def lists(owned: Owned) -> dict[str, list[int]]:
    return {topic: ids.tolist() for topic, ids in owned.items()}


@pytest.fixture
def group() -> Membership:
    return Membership("g")


def test_the_first_member_takes_everything(group: Membership) -> None:
    a = joined(group, "a")
    assert lists(group.take(a)) == {"t": [0, 1, 2, 3]}
    assert lists(group.held(a)) == {"t": [0, 1, 2, 3]}
    assert group.take(a) == {}


def test_a_partition_waits_for_its_holder_before_another_member_takes_it(group: Membership) -> None:
    a = joined(group, "a")
    group.take(a)
    b = joined(group, "b")
    assert group.take(b) == {}
    assert lists(group.leaving(a)) == {"t": [2, 3]}
    group.release(a, group.leaving(a))
    assert lists(group.take(b)) == {"t": [2, 3]}
    assert lists(group.held(a)) == {"t": [0, 1]}
    group.check_invariants()


def test_only_the_holder_passes_the_fence(group: Membership) -> None:
    a = joined(group, "a")
    group.take(a)
    b = joined(group, "b")
    group.check_holder(a, {"t": np.array([0, 3])})
    with pytest.raises(MemberFenced, match="does not have t/3"):
        group.check_holder(b, {"t": np.array([3])})
    with pytest.raises(MemberFenced, match="does not have t/4"):
        group.check_holder(a, {"t": np.array([4])})
    with pytest.raises(MemberFenced, match="does not have u/0"):
        group.check_holder(a, {"u": np.array([0])})


def test_a_member_whose_session_ended_is_fenced_even_if_its_id_is_back(group: Membership) -> None:
    a = joined(group, "a")
    group.take(a)
    b = joined(group, "b")
    assert group.expire({"a": SESSION + 1, "b": SESSION}) == ["a"]
    again = joined(group, "a", "a-2")
    assert again.token != a.token
    with pytest.raises(MemberFenced, match="session ended"):
        group.check_member("a", "a-1")
    assert group.check_member("a", "a-2") == again
    assert lists(group.take(b)) == {"t": [2, 3]} or lists(group.take(b)) == {"t": [0, 1]}


def test_a_member_without_any_heartbeat_is_removed(group: Membership) -> None:
    joined(group, "a")
    assert group.expire({}) == ["a"]


def test_a_session_lasts_exactly_its_time(group: Membership) -> None:
    joined(group, "a")
    assert group.expire({"a": SESSION}) == []


def test_a_member_that_leaves_frees_its_partitions_at_once(group: Membership) -> None:
    a = joined(group, "a")
    group.take(a)
    b = joined(group, "b")
    group.leave("a", "a-1")
    group.settle(sticky)
    assert lists(group.take(b)) == {"t": [0, 1, 2, 3]}


def test_leaving_with_an_old_token_changes_nothing(group: Membership) -> None:
    joined(group, "a")
    group.leave("a", "older")
    assert group.is_member("a", "a-1")


def test_an_id_is_given_once_and_all_members_use_one_strategy(group: Membership) -> None:
    joined(group, "a")
    with pytest.raises(InvalidMessage, match="has a member 'a' already"):
        joined(group, "a")
    with pytest.raises(InvalidMessage, match="by 'sticky', not 'average'"):
        group.join("b", "b-1", ["t"], session_ms=SESSION, strategy="average")
    group.leave("a", "a-1")
    group.join("b", "b-1", ["t"], session_ms=SESSION, strategy="average")
    assert group.strategy == "average"


def test_topics_that_appear_and_grow_begin_a_generation_and_keep_their_holders(
    group: Membership,
) -> None:
    a = joined(group, "a", topics=("t", "u"))
    group.take(a)
    before = group.generation
    group.see_topics({"t": TopicShape(4), "other": TopicShape(1)})
    assert group.generation == before
    group.see_topics({"t": TopicShape(5, 2), "u": TopicShape(1)})
    assert group.generation == before + 1
    assert not group.is_settled
    assert lists(group.held(a)) == {"t": [0, 1, 2, 3]}
    group.settle(sticky)
    assert lists(group.take(a)) == {"t": [4, *range(10_000, 10_005)], "u": [0]}
    group.check_invariants()


def test_a_topic_that_is_gone_is_held_by_no_member(group: Membership) -> None:
    a = joined(group, "a")
    group.take(a)
    group.see_topics({})
    assert group.held(a) == {}
    group.release(a, {"t": np.array([0])})


def test_a_released_partition_of_another_member_stays_with_it(group: Membership) -> None:
    a = joined(group, "a")
    group.take(a)
    b = joined(group, "b")
    group.release(b, {"t": np.array([0, 1, 2, 3, 77])})
    assert lists(group.held(a)) == {"t": [0, 1, 2, 3]}


def test_a_strategy_that_fails_leaves_the_targets(group: Membership) -> None:
    a = joined(group, "a")
    joined(group, "b")
    wanted = lists(group.targets(a))
    group.generation += 1
    with pytest.raises(InvalidOption, match="not a member"):
        group.settle(lambda members, partitions, held: {"x": []})
    assert lists(group.targets(a)) == wanted
    assert not group.is_settled


def test_partitions_that_the_strategy_gives_to_no_member_are_shown(group: Membership) -> None:
    joined(group, "a")
    group.settle(lambda members, partitions, held: {"a": [("t", 1)]})
    assert lists(group.unassigned()) == {"t": [0, 2, 3]}


def test_a_slot_is_used_again_and_brings_no_partition_with_it(group: Membership) -> None:
    a = joined(group, "a")
    group.take(a)
    group.leave("a", "a-1")
    b = joined(group, "b")
    assert b.slot == a.slot
    assert group.held(b) == {}


def test_everything_is_the_same_after_a_way_through_json(group: Membership) -> None:
    a = joined(group, "a", topics=("t", "u"))
    group.take(a)
    joined(group, "b")
    again = Membership.of_json(group.as_json())
    assert again.as_json() == group.as_json()
    assert lists(again.held(again.check_member("a", "a-1"))) == lists(group.held(a))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("generation", -1),
        ("strategy", None),
        ("members", {"a": {"token": "x"}}),
        ("topics", {"t": {"partitions": 2, "stores": 1, "targets": "", "holders": ""}}),
        ("topics", {"t": {"partitions": 0, "stores": 1, "targets": "?", "holders": ""}}),
    ],
)
def test_other_content_is_refused(group: Membership, place: str, value: object) -> None:
    joined(group, "a")
    with pytest.raises((ValueError, KeyError, TypeError)):
        Membership.of_json({**group.as_json(), place: value})


def test_a_hundred_members_settle_ten_thousand_partitions_with_average() -> None:
    group = Membership("g")
    for n in range(100):
        group.join(f"m{n:03}", "1", ["t"], session_ms=SESSION, strategy="average")
    group.see_topics({"t": TopicShape(10_000)})
    group.settle(average)
    sizes = {sum(map(len, group.take(m).values())) for m in group.members.values()}
    assert sizes == {100}
    group.check_invariants()
