"""The plan of a repair: what is done to each file, and the rows that are printed."""

from __future__ import annotations

from rocketcompat.repair.actions import Action, RepairPlan
from rocketcompat.repair.overlay import FileChange


def action(position: int) -> Action:
    return Action("/s/a", "write", position, 1, "why")


def test_changes_of_one_file_are_made_over_each_other() -> None:
    plan = RepairPlan()
    assert plan.is_empty
    plan.change(action(0), FileChange("/s/a", 10, ((0, b"x"),), zero_from=8))
    plan.change(action(5), FileChange("/s/a", 10, ((5, b"y"),), zero_from=6))
    assert plan.changes == {"/s/a": FileChange("/s/a", 10, ((0, b"x"), (5, b"y")), zero_from=6)}
    assert [one.position for one in plan.actions] == [0, 5]
    assert not plan.is_empty


def test_a_change_of_a_file_that_is_made_anew_keeps_it_new() -> None:
    plan = RepairPlan()
    plan.change(action(0), FileChange("/s/a", 10, ((0, b"x"),), fresh=True))
    plan.change(action(1), FileChange("/s/a", 10, ((1, b"y"),)))
    assert plan.changes["/s/a"].fresh
    plan.change(action(2), FileChange("/s/a", 4, fresh=True))
    assert plan.changes["/s/a"] == FileChange("/s/a", 4, fresh=True), "nothing of before is left"


def test_a_removal_is_printed_with_what_goes() -> None:
    plan = RepairPlan()
    plan.remove("/s/a", 7, "why")
    assert plan.actions == [Action("/s/a", "remove", 0, 7, "why")]
    assert plan.removed == ["/s/a"]
    assert not plan.is_empty
