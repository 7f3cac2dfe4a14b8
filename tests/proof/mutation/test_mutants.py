"""The tool that changes modules at random, and a sample of what it finds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.proof.mutation.__main__ import main
from tests.proof.mutation.copies import REPOSITORY, Copy, Outcome
from tests.proof.mutation.mutants import (
    explained,
    files_about,
    module_path,
    mutants_of,
    try_mutants,
)

pytestmark = pytest.mark.gate

SMALL = '''
def larger(one: int | None, other: int) -> int:
    """Return the larger of two numbers."""
    if one is None or one < other:
        return other
    return one
'''
HALF_TESTED = """
from tubestore.small import larger

def test_the_second_is_larger():
    assert larger(1, 2) == 2
"""
#: What a store rests on: of each a few mutants are tried.
MODULES = (
    "rocketcompat.record.codec",
    "rocketcompat.commitlog.commit_log",
    "rocketcompat.queues.consume_queue",
    "rocketcompat.queues.units",
    "rocketcompat.dispatch.dispatcher",
    "rocketcompat.store.flush",
    "rocketcompat.store.cleaning",
    "rocketcompat.index.index_file",
    "rocketcompat.commitlog.ending",
    "rocketcompat.store.recovery",
    "tubestore.core.group_commit",
    "tubestore.journal.journalled",
    "tubestore.segments.reconcile",
    "tubestore.segments.recovery",
    "tubestore.journal.redo",
    "tubestore.segments.file_store",
    "tubestore.journal.root_journal",
    "tubestore.segments.segment_list",
)
EACH = 3
#: Mutants that do the same as the module are among them, and a change of it draws others.
SURVIVING_AT_MOST = 0.15


def test_a_mutant_differs_in_one_place_and_in_what_it_does() -> None:
    mutants = list(mutants_of(SMALL, Random(1)))
    assert len(mutants) >= 3
    assert len({mutant.text for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        assert mutant.line in (4, 5, 6)  # neither the annotation nor the docstring
        old, new = mutant.change
        assert old[2:] in SMALL
        assert new[2:] in mutant.text


def test_the_same_seed_gives_the_same_mutants() -> None:
    first, again, other = (list(mutants_of(SMALL, Random(seed))) for seed in (1, 1, 2))
    assert first == again != other


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one module, half of which is tested."""
    root = tmp_path / "project"
    for name in ("proof/mutation", "support"):
        shutil.copytree(REPOSITORY / "tests" / name, root / "tests" / name)
    (root / "tests" / "__init__.py").touch()
    (root / "tests" / "test_small.py").write_text(HALF_TESTED)
    (root / "tubestore").mkdir()
    (root / "tubestore" / "__init__.py").touch()
    (root / "tubestore" / "small.py").write_text(SMALL)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    return root


def test_what_no_test_notices_is_found_and_the_rest_is_not(project: Path, tmp_path: Path) -> None:
    module = Path("tubestore/small.py")
    with Copy(tmp_path, project) as copy:
        tried = list(try_mutants(copy, module, ["tests/test_small.py"]))
        assert (copy.root / module).read_text() == SMALL
    survivors = {each.mutant.change for each in tried if each.survived}
    assert survivors
    assert all("one is None" in old for old, _ in survivors)
    assert any(each.outcome is Outcome.FAILED for each in tried)


def test_tests_that_fail_without_a_change_are_no_measure(project: Path, tmp_path: Path) -> None:
    with Copy(tmp_path, project) as copy, pytest.raises(ValueError, match="without a change"):
        next(try_mutants(copy, Path("tubestore/small.py"), ["tests/test_large.py"]))


def test_the_time_box_ends_a_run(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Copy, "run", lambda *args, **named: Outcome.PASSED)
    now = iter(range(0, 1000, 10))
    with Copy(tmp_path, project) as copy:
        module = Path("tubestore/small.py")
        tried = list(try_mutants(copy, module, [], seconds=35, clock=lambda: next(now)))
    assert len(tried) == 2


def test_a_module_is_named_in_several_ways_and_its_tests_are_those_that_import_it() -> None:
    flush = Path("rocketcompat/store/flush.py")
    assert (
        module_path("rocketcompat.store.flush")
        == module_path("rocketcompat/store/flush.py")
        == flush
    )
    assert files_about(flush)[0] == "tests/rocketcompat/store/test_flush.py"
    with pytest.raises(ValueError, match="no module"):
        module_path("no_such_module")


def test_every_explanation_is_of_a_module_that_is_there() -> None:
    for (module, change), reason in explained().items():
        text = (REPOSITORY / module).read_text()
        assert reason
        for line in change:
            assert line.startswith("+ ") or line[2:] in text, f"{module}: {line}"


def test_a_module_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no_such_module"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    with Copy(tmp_path_factory.mktemp("mutants")) as copy:
        yield copy


@pytest.mark.slow
def test_few_changes_of_what_a_store_rests_on_go_unnoticed(copy: Copy) -> None:
    survivors, tried = [], 0
    for name in MODULES:
        module = module_path(name)
        for each in try_mutants(copy, module, files_about(module), count=EACH, seed=1):
            tried += 1
            if each.survived:
                survivors.append(f"{module}:{each.mutant.line}: {' '.join(each.mutant.change)}")
    print(*survivors, sep="\n")
    assert tried == EACH * len(MODULES)
    assert len(survivors) <= SURVIVING_AT_MOST * tried, "\n".join(survivors)
