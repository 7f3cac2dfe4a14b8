"""Stores that are checked, and the findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.golden import GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture


@pytest.fixture(name="store")
def store_fixture(golden: GoldenFactory) -> Path:
    return golden("rocketmq", "4.9.8", "basic").store


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)
