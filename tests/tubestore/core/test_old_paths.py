"""Modules under the paths that they had before the rooms."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from rocketcompat.old_paths import LAYER
from tubestore.core.old_paths import ENGINE, FormerName, renamed_keyword

MOVED = [
    (f"{package}.{line.split()[0]}", f"{package}.{line.split()[1]}")
    for package, table in (("tubestore", ENGINE), ("rocketcompat", LAYER))
    for line in table.split("\n")
    if line
]


@pytest.mark.parametrize(("old", "new"), MOVED)
def test_a_new_path_in_the_tables_is_a_module(old: str, new: str) -> None:
    found = find_spec(new)
    assert found is not None
    assert found.origin, new


#: In a process of its own: an import of `tubestore.check` replaces the function of that name.
LOOK = """
import importlib, sys, warnings
for line in sys.stdin.read().splitlines():
    old, new = line.split()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        module = importlib.import_module(old)
    assert f"{old} is now {new}" in str(found[0].message), old
    assert module is importlib.import_module(new), old
    assert module.__name__ == module.__spec__.name == new, old
print("all")
"""


@pytest.mark.gate
def test_an_old_path_is_the_module_itself_with_a_warning() -> None:
    pairs = "\n".join(f"{old} {new}" for old, new in MOVED if ".spark" not in old)
    done = subprocess.run(
        [sys.executable, "-c", LOOK], input=pairs, capture_output=True, text=True, check=False
    )
    assert done.stdout == "all\n", done.stderr


def test_a_renamed_keyword_is_taken_by_its_former_name_with_a_warning() -> None:
    @renamed_keyword("told", "watch")
    def run(root: str, *, watch: str = "none") -> tuple[str, str]:
        return root, watch

    with pytest.warns(DeprecationWarning, match="run.told=.* is named watch"):
        assert run("s", told="bar") == ("s", "bar")  # type: ignore[call-arg]
    assert run("s", watch="bar") == ("s", "bar")
    assert run("s") == ("s", "none")


def test_a_renamed_attribute_is_read_by_its_former_name_with_a_warning() -> None:
    @dataclass(frozen=True, slots=True)
    class Row:
        due_ms: int
        due = FormerName("due_ms")

    row = Row(due_ms=5)
    with pytest.warns(DeprecationWarning, match="Row.due is named due_ms") as found:
        assert row.due == 5
    assert found[0].filename == __file__
    assert asdict(row) == {"due_ms": 5}


#: What an import may load: these modules of Python with what they load, and our own. Python's
#: start loads `os`, but for the -S of this test.
LOADED = {
    "tubestore": (
        "__future__ copy errno functools importlib.machinery os typing warnings",
        "tubestore tubestore.core tubestore.core.doors tubestore.core.old_paths tubestore.errors",
    ),
    "rocketcompat": (
        "__future__ copy errno functools importlib.machinery os typing warnings",
        "rocketcompat rocketcompat.old_paths tubestore tubestore.core tubestore.core.doors"
        " tubestore.core.old_paths tubestore.errors",
    ),
}


@pytest.mark.parametrize("package", LOADED)
def test_importing_a_package_loads_few_modules_of_python_and_its_own(package: str) -> None:
    """An import stays near the start of Python itself: no numpy, pyarrow, pandas or pyspark."""
    standard, own = LOADED[package]
    program = (
        f"import sys, {', '.join(standard.split())}; before = set(sys.modules); import {package};"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (sorted(own.split()), "")
