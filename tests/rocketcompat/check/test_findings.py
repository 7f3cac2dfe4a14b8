"""Findings are rows, and each reason that the code gives is explained."""

from __future__ import annotations

import ast
from pathlib import Path

import rocketcompat.check
from rocketcompat.check.findings import REASONS, finding


def test_a_finding_has_the_columns_that_the_command_prints() -> None:
    row = finding("/s/commitlog/0", 40, "damaged", "why", "error")
    assert list(row.items()) == [
        ("path", "/s/commitlog/0"), ("position", 40), ("reason", "damaged"),
        ("message", "why"), ("severity", "error"),
    ]  # fmt: skip


def test_each_reason_that_a_check_names_is_explained() -> None:
    calls = [
        node
        for path in Path(rocketcompat.check.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "finding"
    ]
    named = {one.args[2].value for one in calls if isinstance(one.args[2], ast.Constant)}
    assert len(named) > 8
    assert named <= set(REASONS)
    assert all(text.endswith(".") for text in REASONS.values())
