"""Which member gets which partitions."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from random import Random
from typing import Any

import pytest

from tests.proof.explorer.explore import seed_of_run
from tubestore.errors import InvalidOption
from tubestore.groups.assignment import (
    STRATEGIES,
    Partition,
    average,
    checked_assignment,
    circle,
    consistent_hash,
    fixed,
    named_strategy,
    sticky,
)

Answer = dict[str, list[Partition]]


def numbers(answer: Answer) -> dict[str, list[int]]:
    return {member: [number for _, number in some] for member, some in answer.items()}


def owners(answer: Answer) -> dict[Partition, str]:
    return {partition: member for member, some in answer.items() for partition in some}


@pytest.mark.parametrize(
    ("count", "members", "sizes"),
    [(8, 3, [3, 3, 2]), (8, 2, [4, 4]), (2, 3, [1, 1, 0]), (4, 4, [1] * 4), (10, 4, [3, 3, 2, 2])],
)
def test_average_gives_runs_of_which_the_first_are_one_longer(
    count: int, members: int, sizes: list[int]
) -> None:
    names = {f"m{n}": ["t"] for n in range(members)}
    answer = numbers(average(names, {"t": range(count)}, {}))
    assert [len(some) for some in answer.values()] == sizes
    assert list(chain.from_iterable(answer.values())) == list(range(count))


def test_circle_deals_in_turn() -> None:
    answer = numbers(circle({"a": ["t"], "b": ["t"]}, {"t": range(5)}, {}))
    assert answer == {"a": [0, 2, 4], "b": [1, 3]}


def test_members_are_sorted_as_javas_strings_are() -> None:
    # U+FF5E sorts behind U+1F600 by units of UTF-16, and before it by code points.
    members = {"\uff5e": ["t"], "\U0001f600": ["t"]}
    answer = numbers(average(members, {"t": range(2)}, {}))
    assert answer == {"\U0001f600": [0], "\uff5e": [1]}


def test_consistent_hash_moves_only_the_partitions_of_a_member_that_left() -> None:
    members = {f"m{n}": ["t"] for n in range(5)}
    before = owners(consistent_hash(members, {"t": range(200)}, {}))
    del members["m3"]
    after = owners(consistent_hash(members, {"t": range(200)}, {}))
    assert {p for p in before if before[p] != after[p]} == {p for p in before if before[p] == "m3"}


def test_fixed_gives_what_is_listed_and_leaves_the_rest() -> None:
    strategy = fixed({"a": {"t": [0, 2]}, "b": {"t": [2, 3], "u": [0]}, "gone": {"t": [1]}})
    answer = strategy({"a": ["t"], "b": ["t", "u"]}, {"t": range(5), "u": range(1)}, {})
    assert dict(answer) == {"a": [("t", 0), ("t", 2)], "b": [("t", 3), ("u", 0)]}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_order_of_the_input_does_not_matter(name: str) -> None:
    random = Random(3)
    members = {f"m{n}": ["t", "u"] for n in range(7)}
    wanted = STRATEGIES[name](members, {"t": range(30), "u": range(11)}, {})
    for _ in range(5):
        shuffled = dict(random.sample(list(members.items()), 7))
        ids = {"u": random.sample(range(11), 11), "t": random.sample(range(30), 30)}
        assert STRATEGIES[name](shuffled, ids, {}) == wanted


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_partition_of_a_subscribed_topic_has_one_member(name: str) -> None:
    members = {"a": ["t"], "b": ["t", "u"], "c": ["u"]}
    answer = STRATEGIES[name](members, {"t": range(10), "u": range(7), "free": range(3)}, {})
    found = checked_assignment(answer, members, {"t": range(10), "u": range(7), "free": range(3)})
    assert set(found) == {("t", n) for n in range(10)} | {("u", n) for n in range(7)}


def fewest_moves(held: dict[Partition, str], members: list[str], total: int) -> int:
    """How many held partitions have to move: of equal members those above their share."""
    size, rest = divmod(total, len(members))
    counts = Counter(member for member in held.values() if member in members)
    kept = 0
    for place, count in enumerate(sorted((counts[m] for m in members), reverse=True)):
        kept += min(count, size + (place < rest))
    return len(held) - kept


@pytest.mark.parametrize("run", range(20))
def test_sticky_balances_with_the_fewest_moves(run: int) -> None:
    random = Random(seed_of_run(run))
    ids = {"t": range(random.randrange(1, 40)), "u": range(random.randrange(1, 40))}
    total = len(ids["t"]) + len(ids["u"])
    members = {f"m{n}": ["t", "u"] for n in range(random.randrange(1, 9))}
    held: dict[Partition, str] = {}
    for _ in range(8):
        answer = sticky(members, ids, held)
        after = owners(answer)
        sizes = [len(some) for some in answer.values()]
        assert len(after) == total
        assert max(sizes) - min(sizes) <= 1
        moved = sum(after[p] != member for p, member in held.items())
        assert moved == fewest_moves(held, list(members), total)
        held = after
        if len(members) > 1 and random.random() < 0.5:
            del members[random.choice(list(members))]
        else:
            members[f"n{random.randrange(1000)}"] = ["t", "u"]


def best_spread(members: dict[str, list[str]], ids: dict[str, range]) -> list[int]:
    """The loads of the best balance, found by giving each partition along shortest chains."""
    order = sorted(members)
    has: dict[str, dict[str, int]] = {m: dict.fromkeys(members[m], 0) for m in order}
    for topic, some in ids.items():
        takers = [m for m in order if topic in members[m]]
        for _ in some if takers else ():
            # The member with the least that a chain of hand-overs reaches.
            came: dict[str, tuple[str, str] | None] = dict.fromkeys(takers)
            waiting = list(takers)
            for giver in waiting:
                for passed, count in has[giver].items():
                    for taker in order if count else ():
                        if taker not in came and passed in members[taker]:
                            came[taker] = (giver, passed)
                            waiting.append(taker)
            last = min(waiting, key=lambda m: (sum(has[m].values()), waiting.index(m)))
            while (step := came[last]) is not None:
                giver, passed = step
                has[giver][passed] -= 1
                has[last][passed] += 1
                last = giver
            has[last][topic] += 1
    return sorted(sum(counts.values()) for counts in has.values())


@pytest.mark.parametrize("run", range(30))
def test_sticky_finds_the_best_balance_of_members_with_different_topics(run: int) -> None:
    random = Random(seed_of_run(run))
    ids = {topic: range(random.randrange(1, 12)) for topic in "tuvw"}
    members = {
        f"m{n}": random.sample("tuvw", random.randrange(1, 5))
        for n in range(random.randrange(1, 7))
    }
    held = {(t, n): random.choice(list(members)) for t, some in ids.items() for n in some}
    answer = sticky(members, ids, held)
    found = checked_assignment(answer, members, ids)
    assert set(found) == {(t, n) for t, some in ids.items() for n in some
                          if any(t in topics for topics in members.values())}  # fmt: skip
    assert sorted(map(len, answer.values())) == best_spread(members, ids)


def test_sticky_moves_nothing_when_nothing_changes() -> None:
    members = {"a": ["t"], "b": ["t", "u"], "c": ["u"]}
    ids = {"t": range(9), "u": range(4)}
    first = sticky(members, ids, {})
    assert sticky(members, ids, owners(first)) == first


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"x": [("t", 0)]}, "not a member"),
        ({"a": [("t", 9)]}, "not there"),
        ({"a": [("u", 0)]}, "not subscribed"),
        ({"a": [("t", 0)], "b": [("t", 0)]}, "two members"),
    ],
)
def test_an_answer_that_is_no_assignment_is_refused(answer: Answer, reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        checked_assignment(answer, {"a": ["t"], "b": ["t"]}, {"t": range(3), "u": range(1)})


@pytest.mark.parametrize(
    "answer", [None, 5, {"a": None}, {"a": 5}, {"a": [("t",)]}, {"a": [5]}, {"a": [("t", "0")]}],
    ids=str,
)  # fmt: skip
def test_an_answer_of_another_form_is_named_with_the_form_that_is_needed(answer: Any) -> None:
    with pytest.raises(InvalidOption, match=r"returned .*; \{member: \[\(topic, partition\)"):
        checked_assignment(answer, {"a": ["t"]}, {"t": [0]})


@pytest.mark.parametrize("given", [{"a": 5}, {"a": {"t": 5}}, {"a": {"t": ["x"]}}], ids=str)
def test_a_mapping_of_another_form_is_refused(given: Any) -> None:
    with pytest.raises(InvalidOption, match=r"a mapping is \{member"):
        named_strategy(given)


def test_a_function_of_other_arguments_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"cannot be called with \(members"):
        named_strategy(lambda members: {})  # type: ignore[arg-type, misc]


def test_a_strategy_is_a_name_a_mapping_or_a_callable() -> None:
    assert named_strategy("sticky") == ("sticky", sticky)
    assert named_strategy({"a": {"t": [0]}})[0] == "fixed"
    assert named_strategy(circle) == ("tubestore.groups.assignment.circle", circle)
    with pytest.raises(InvalidOption, match="'best' is unknown; known are average"):
        named_strategy("best")
    with pytest.raises(InvalidOption, match="a name, a mapping"):
        named_strategy(7)  # type: ignore[arg-type]
