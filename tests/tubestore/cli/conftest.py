"""A damaged store, and one with old messages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.golden import GoldenFactory
from tubestore.store.manager import engine_of


@pytest.fixture
def damaged(golden: GoldenFactory, tmp_path: Path) -> Path:
    store = golden("tubemq", "1.2.0", "torn").store
    root = tmp_path / "damaged"
    for name in ("datacut7-0", "payloadbit-0", "innercut-0"):
        shutil.copytree(store / name, root / name)
    return root


SMALL: dict[str, Any] = {"segment_size_bytes": 3000, "index_segment_size_bytes": 560}

DAY = 86_400_000


@pytest.fixture
def aged(tmp_path: Path) -> Path:
    """A topic of 100 messages, one an hour, in files of some 20; the last is two days old."""
    with tubestore.open(tmp_path / "s", **SMALL) as store:
        topic = store.create_topic("t", partitions=4)
        now = engine_of(store).context.clock.now_ms()
        for number in range(100):
            age = 2 * DAY + (99 - number) * 3_600_000
            topic.append(b"%0100d" % number, partition=0, received_time=now - age)
            topic.flush()
    return tmp_path / "s"
