"""Jobs are run in waves of tasks, and taken up again where they were interrupted."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.job_stores import breaking_off, in_small_splits
from tests.spark.job_stores import root as root
from tests.spark.job_stores import template as template
from tests.spark.stores import planned, write_store
from tubestore.errors import InvalidOption
from tubestore.spark.jobs import audit as audit_module
from tubestore.spark.jobs import stats as stats_module
from tubestore.spark.kit import running

pytestmark = pytest.mark.usefixtures("small_waves")


def test_a_job_that_is_taken_up_again_works_on_what_is_left(
    root: Path, monkeypatch: pytest.MonkeyPatch, small_waves: list[int]
) -> None:
    in_small_splits(monkeypatch, audit_module)
    whole = audit_module.audit(None, str(root))
    total = len(whole.done.rows)
    assert total > 8
    with (
        breaking_off(audit_module.AuditJob, monkeypatch, at=6),
        pytest.raises(RuntimeError, match="interrupted"),
    ):
        audit_module.audit(None, str(root), job_id="nightly")
    small_waves.clear()
    seen: list[tuple[int, int]] = []
    again = audit_module.audit(
        None, str(root), job_id="nightly", watch=lambda done, of: seen.append((done, of))
    )
    assert again.done.resumed >= 3
    assert again.done.resumed + len(small_waves) == total
    assert again.done.rows == whole.done.rows
    assert seen[0] == (again.done.resumed, total)
    assert seen[-1] == (total, total)


def test_a_torn_line_of_a_journal_counts_as_not_done(
    root: Path, monkeypatch: pytest.MonkeyPatch, small_waves: list[int]
) -> None:
    in_small_splits(monkeypatch, audit_module)
    audit_module.audit(None, str(root), job_id="j")
    journal = running.journal_path("j")
    journal.write_text(journal.read_text()[:-20])
    small_waves.clear()
    assert audit_module.audit(None, str(root), job_id="j").bad == 0
    assert len(small_waves) == 1


def test_the_id_of_another_job_is_refused(root: Path) -> None:
    audit_module.audit(None, str(root), job_id="j")
    with pytest.raises(InvalidOption, match="belongs to job audit"):
        stats_module.stats(None, str(root), job_id="j")
    with pytest.raises(InvalidOption, match="letters, digits"):
        audit_module.audit(None, str(root), job_id="../j")


@pytest.mark.parametrize("cores", [1, 2, 7])
@pytest.mark.parametrize("count", [1, 2, 5, 16, 36, 500])
def test_the_shares_of_a_wave_are_all_splits_and_get_smaller(count: int, cores: int) -> None:
    chosen = [(number, None) for number in range(count)]
    shares = running._shares(chosen, cores)
    assert [split for share in shares for split in share] == chosen
    sizes = [len(share) for share in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1
    assert max(sizes) <= max(1, count // cores)


def test_an_error_of_a_task_has_its_type_again() -> None:
    text = "An exception was thrown from the Python worker:\ntubestore.errors.DataLoss: t: gone\n"
    assert str(running.plain(RuntimeError(text))) == "DataLoss: t: gone"
    other = RuntimeError("out of memory")
    assert running.plain(other) is other


def test_sealed_splits_of_a_store_that_grew_are_the_same(root: Path) -> None:
    def keys() -> list[str]:
        splits = planned(root, maxSplitBytes="20000").splits
        sealed = [s for s in splits if all(p.shard.topic == "logs" for p in s.portions)]
        return [running.split_key(split) for split in sealed]

    before = keys()
    write_store(root, {"orders": 5})
    assert keys() == before
    assert len(before) > 8


@pytest.fixture
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(running, "_settled", False)
    assert gc.get_freeze_count() == 0
    yield
    gc.unfreeze()


def test_a_worker_that_is_used_again_does_not_go_through_its_imports_after_every_task(
    thawed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    running.settle()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    kept = [[n] for n in range(10_000)]
    running.settle()
    assert gc.get_freeze_count() <= frozen, "what a task has made is collected as ever"
    assert len(kept) == 10_000


def test_other_processes_are_left_as_they_are(
    thawed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    running.settle()
    assert gc.get_freeze_count() == 0
