"""Planning is measured over stores of its own; the bars are those of the most topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.spark import many


def test_planning_is_measured_for_each_number_of_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "TOPICS", (2, 4))
    few, most = many.planning(tmp_path, rounds=2)
    assert (few["topics"], most["topics"], most["partitions"]) == (2, 4, 40)
    assert most.keys() >= {"plan", "restart", "trigger", "trigger_grown", "plan_grown"}
    assert most["offsets"] > few["offsets"] > 50
    assert list(tmp_path.iterdir()) == []
    assert "bar" not in many.planning_line(few)
    found = {**most, "plan": 0.5, "trigger": 0.3}
    line = many.planning_line(found)
    assert line.startswith("spark-planning: 4 topics of 10 partitions, processor time: plan 0.5 s")
    assert "plan 0.5 s (bar 0.5 s: reached), first trigger after a restart " in line
    assert "a trigger 0.3 s (bar 0.2 s: MISSED)" in line
