"""Mutants of a module, made by cosmic-ray, and the tests that concern it.

A mutant differs from the module in one place: an operator, a number, a condition, a loop that
runs never. One that changes nothing but annotations is none. `explained.txt` names those that no
test can fail for, each with its reason.
"""

from __future__ import annotations

import ast
import difflib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tests.proof.mutation.copies import REPOSITORY, Copy, Outcome

#: Operators that make little else than mutants that do the same, or that break at once.
_LEFT_OUT = (
    "no-op",
    "RemoveDecorator",
    "ExceptionReplacer",
    "Variable",
    "BitOr_",
    "_MatMul",
    "Eq_Is",
)
EXPLAINED = Path(__file__).parent / "explained.txt"


@dataclass(frozen=True)
class Mutant:
    """A module's text with one change."""

    operator: str
    text: str
    #: The lines that differ, `- old` and `+ new`.
    change: tuple[str, ...]
    line: int


def mutants_of(text: str, random: Random) -> Iterator[Mutant]:
    """Yield a mutant for each place and kind of change, in any order.

    Of the operators that can stand in a place, one is drawn.
    """
    honest, tree = _meaning(text), get_ast(text)
    places: dict[tuple[str, Any], list[tuple[str, int]]] = {}
    for name in sorted(operator_names()):
        if any(part in name for part in _LEFT_OUT):
            continue
        operator = get_operator(name)()
        found = [place for node in ast_nodes(tree) for place in operator.mutation_positions(node)]
        for occurrence, place in enumerate(found):
            kind = name.rpartition("/")[2].partition("_")[0]
            places.setdefault((kind, place), []).append((name, occurrence))
    for choices in random.sample(list(places.values()), len(places)):
        name, occurrence = random.choice(choices)
        changed = mutate_code(text, get_operator(name)(), occurrence)
        if changed is not None and _meaning(changed) not in (honest, None):
            yield _mutant(name, text, changed)


def _mutant(operator: str, text: str, changed: str) -> Mutant:
    before, after = text.splitlines(), changed.splitlines()
    line = next(n for n, pair in enumerate(zip(before, after, strict=False)) if len({*pair}) > 1)
    change = [
        f"{row[0]} {row[2:].strip()}"
        for row in difflib.ndiff(before[line : line + 20], after[line : line + 20])
        if row[0] in "-+"
    ]
    return Mutant(operator.rpartition("/")[2], changed, tuple(change), line + 1)


class _Bare(ast.NodeTransformer):
    """Takes annotations and docstrings away."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "cast":
            node.args = node.args[1:]
        return self.generic_visit(node)


def _meaning(text: str) -> str | None:
    """Return what a module does, as text; None if it cannot be compiled."""
    try:
        return ast.dump(_Bare().visit(ast.parse(text)))
    except SyntaxError:
        return None


# -- which tests --------------------------------------------------------------------------------


def module_path(name: str) -> Path:
    """Return a module's file by its path, its full name, or the end of it."""
    stem = name.removesuffix(".py").replace("/", ".").split(".")
    found = [
        path.relative_to(REPOSITORY)
        for package in ("tubestore", "rocketcompat")
        for path in (REPOSITORY / package).rglob("*.py")
        if path.relative_to(REPOSITORY).with_suffix("").parts[-len(stem) :] == tuple(stem)
    ]
    if len(found) != 1:
        named = ", ".join(map(str, sorted(found))) or "no module"
        raise ValueError(
            f"{name}: {named}; name one, as in tubestore.journal.redo or tubestore/journal/redo.py"
        )
    return found[0]


def files_about(module: Path) -> list[str]:
    """Return the test files with a module's name, and those that import it."""
    name = ".".join(module.with_suffix("").parts)
    room = REPOSITORY / "tests" / module.parent
    own, importing = [], []
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        stem = path.stem.removeprefix("test_")
        if path.parent == room and f"{stem}_".startswith(f"{module.stem}_"):
            own.append(path)
        elif name in _imported(path):
            importing.append(path)
    return [str(path.relative_to(REPOSITORY)) for path in (*own, *importing)]


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


# -- running them -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tried:
    """A mutant, what the tests said, and why it is no matter that they pass."""

    mutant: Mutant
    outcome: Outcome
    reason: str | None = None

    @property
    def survived(self) -> bool:
        """Whether no test noticed it, and nothing says why."""
        return self.outcome is Outcome.PASSED and self.reason is None


def try_mutants(
    copy: Copy,
    module: Path,
    tests: list[str],
    *,
    count: int | None = None,
    seed: int = 0,
    seconds: float = float("inf"),
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Tried]:
    """Try a sample of a module's mutants, as many as the time allows.

    ValueError if the tests fail without any change.
    """
    begun = clock()
    if copy.run(["-m", "not slow", *tests], timeout=1800) is not Outcome.PASSED:
        raise ValueError(f"the tests of {module} fail without a change:\n{copy.said}")
    limit = 20 + 5 * (clock() - begun)
    mutants, reasons = mutants_of(copy.text(module), Random(seed)), explained()
    for mutant in islice(mutants, count):
        reason = reasons.get((str(module), mutant.change))
        if reason is not None:
            yield Tried(mutant, Outcome.PASSED, reason)
            continue
        if clock() - begun > seconds:
            return
        with copy.changed({module: mutant.text}):
            yield Tried(mutant, copy.run(["-m", "not slow", *tests], timeout=limit))


def explained() -> dict[tuple[str, tuple[str, ...]], str]:
    """Return why mutants survive, by module and change."""
    reasons: dict[tuple[str, tuple[str, ...]], str] = {}
    module = reason = ""
    change: list[str] = []
    for line in [*EXPLAINED.read_text().splitlines(), ""]:
        if line.startswith(("- ", "+ ")):
            change.append(line)
            continue
        if change:
            reasons[module, tuple(change)] = reason
            change = []
        if line.endswith(".py"):
            module = line
        elif line and not line.startswith("#"):
            reason = line
    return reasons
