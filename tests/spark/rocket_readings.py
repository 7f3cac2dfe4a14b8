"""A log, and how Spark reads it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.rocket_stores import write_rocket_store

COUNT = 900


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that is written once."""
    root = tmp_path_factory.mktemp("rocket") / "store"
    write_rocket_store(root, COUNT)
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "store")
    return tmp_path / "store"


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["body"].split()[0]) for row in rows]
