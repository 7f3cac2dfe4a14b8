"""A store of three sizes of messages, read split by split."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.stores import write_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_store(tmp_path, {"logs": 1000})
    return tmp_path
