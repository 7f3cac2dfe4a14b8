"""Logs that jobs work on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.rocket_stores import write_rocket_store

COUNT = 900


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rocket")
    write_rocket_store(root, COUNT)
    return root
