"""What is done once in a worker."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tubestore.spark.kit import worker_process
from tubestore.spark.kit.worker_process import settle


@pytest.fixture(autouse=True)
def _thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_process, "_settled", False)
    assert gc.get_freeze_count() == 0
    yield
    gc.unfreeze()


def test_a_worker_that_is_used_again_does_not_go_through_its_imports_after_every_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    settle()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    kept = [[n] for n in range(10_000)]
    settle()
    assert gc.get_freeze_count() <= frozen, "what a task has made is collected as ever"
    assert len(kept) == 10_000


def test_other_processes_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    settle()
    assert gc.get_freeze_count() == 0
