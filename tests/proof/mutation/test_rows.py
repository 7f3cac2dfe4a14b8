"""Every statement of the seeds is held by a test that fails without its rule, or says why not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.proof.mutation.copies import REPOSITORY, Copy, Outcome
from tests.proof.mutation.rows import COUNTS, Block, read_blocks

BLOCKS = read_blocks((Path(__file__).parent / "rows.txt").read_text())
HELD = [block for block in BLOCKS if not block.state]
#: Of the quick tests: one of each package.
SAMPLE = [next(b for b in HELD if row in b.rows) for row in ("CQ-06", "TUB-09")]


def name_of(block: Block) -> str:
    return f"{block.rows[0]}-{block.said.partition('.')[2][:40]}"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    with Copy(tmp_path_factory.mktemp("mutation")) as copy:
        yield copy


@cache
def functions_in(path: str) -> set[str]:
    tree = ast.parse((REPOSITORY / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_statement_is_there() -> None:
    wanted = {f"{g}-{n:02d}" for g, count in COUNTS.items() for n in range(1, count + 1)}
    named = [row for block in BLOCKS for row in block.rows]
    assert set(named) == wanted
    unfinished = [row for block in BLOCKS if block.state == "open" for row in block.rows]
    held = {row for block in BLOCKS if block.state != "open" for row in block.rows}
    assert held.isdisjoint(unfinished)


@pytest.mark.gate
def test_every_statement_that_is_held_names_a_test_and_a_rule(copy: Copy) -> None:
    for block in HELD:
        path, name = block.test
        assert name in functions_in(path), f"{block.rows}: there is no {path}::{name}"
        assert block.changes, block.rows
        assert block.changed(copy)  # the rule stands in the code, once
    assert not any(block.changes for block in BLOCKS if block.state)


def run_without_the_rule(copy: Copy, block: Block) -> Outcome:
    path, name = block.test
    with copy.changed(block.changed(copy)):
        return copy.run([f"{path}::{name}"], timeout=300)


@pytest.mark.gate
@pytest.mark.parametrize("block", SAMPLE, ids=name_of)
def test_a_test_fails_without_its_rule(copy: Copy, block: Block) -> None:
    assert run_without_the_rule(copy, block) is Outcome.FAILED, copy.said


@pytest.mark.slow
@pytest.mark.parametrize("block", HELD, ids=name_of)
def test_each_test_fails_without_its_rule(copy: Copy, block: Block) -> None:
    assert run_without_the_rule(copy, block) is Outcome.FAILED, copy.said


@pytest.mark.gate
def test_a_test_passes_with_its_rule(copy: Copy) -> None:
    path, name = SAMPLE[0].test
    assert copy.run([f"{path}::{name}"], timeout=300) is Outcome.PASSED, copy.said


@pytest.mark.gate
def test_a_change_that_breaks_the_code_is_no_proof(copy: Copy) -> None:
    path, name = SAMPLE[0].test
    with copy.changed({Path("rocketcompat/formats.py"): "no code"}):
        assert copy.run([f"{path}::{name}"], timeout=300) is Outcome.BROKEN
