"""Logs that an audit finds sound or damaged."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rocketcompat.check.whole import check
from rocketcompat.spark.jobs.audit import WORK_DIRECTORY, audit
from tests.spark.rocket_stores import write_rocket_store

COUNT = 1500


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("auditing") / "store"
    write_rocket_store(root, COUNT)
    return root


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "store"))


def audited(root: Path, **given: Any) -> Any:
    given.setdefault("max_split_bytes", 30_000)
    return audit(None, str(root), **given)  # type: ignore[arg-type]


def comparable(findings: list[Any]) -> list[tuple[Any, ...]]:
    """Findings without the sentence about keys, which names another first record."""
    return sorted(
        (f["path"], f["position"], f["reason"], f["severity"],
         f["message"].split(",")[0] if f["reason"] == "item_missing" else f["message"])
        for f in findings
    )  # fmt: skip


def verify(root: Path, options: dict[str, Any] | None = None, **given: Any) -> list[Any]:
    """The audit and the check find the same, the shards beside the log aside; returns it."""
    found_here = [f for f in check(root, options) if not f["path"].startswith(str(root / "tube"))]
    expected = comparable(found_here)
    found = audited(root, options=options, **given)
    assert comparable(found.findings) == expected
    assert not list((root / ".tubestore" / WORK_DIRECTORY).glob("*"))
    return found.findings
