"""Stores that jobs work on, cut into small splits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.spark.stores import write_store

COUNT = 1200


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("jobs")
    write_store(root, {"logs": COUNT, "orders": 300})
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "store")
    return tmp_path / "store"


def in_small_splits(monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
    """Let jobs plan splits of 20 KB."""
    for module in modules:
        plan = module.plan
        monkeypatch.setattr(
            module, "plan", lambda options, plan=plan: plan(_with_small_splits(options))
        )


def _with_small_splits(options: Any) -> Any:
    return replace(options, max_split_bytes=20_000)


@contextmanager
def breaking_off(kind: Any, monkeypatch: pytest.MonkeyPatch, *, at: int) -> Iterator[None]:
    """Let a job be interrupted at a split."""
    work = kind.work

    def interrupted(self: Any, number: int, split: Any) -> Any:
        if number == at:
            raise RuntimeError("interrupted")
        return work(self, number, split)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "work", interrupted)
        yield
