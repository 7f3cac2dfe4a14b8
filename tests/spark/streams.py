"""Streams over a small store, run without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.stores import write_store
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.micro_batches import MicroBatches
from tubestore.testing import MemoryVfs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_store(tmp_path, {"logs": 1000, "orders": 100})
    return tmp_path


def stream(root: Any, vfs: MemoryVfs | None = None, **given: str) -> MicroBatches:
    options = ReadOptions.parse({"path": str(root), **given}, stream=True)
    return MicroBatches(options, vfs)
