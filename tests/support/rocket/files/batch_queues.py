"""Stores with queues of inner batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.inner_batches import batch, opened, put_some

OPTIONS = {"maxHashSlotNum": 5, "maxIndexNum": 50, "mapperFileSizeBatchConsumeQueue": 230}

GIVEN = [text for name, value in OPTIONS.items() for text in ("-o", f"{name}={value}")]

UNIT = 46


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with several files of everything, closed cleanly."""
    with opened(tmp_path / "s") as store:
        for _ in range(3):
            put_some(store)
        store.put_inner_batch(batch(3, queue_id=1))
    return tmp_path / "s"


def queue_file(root: Path, start: int = 0) -> Path:
    return root / "batchconsumequeue" / "B" / "0" / f"{start * UNIT:020d}"


def patch(path: Path, position: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[position : position + len(data)] = data
    path.write_bytes(raw)


def wrong_unit(root: Path) -> None:
    patch(queue_file(root), 2 * UNIT + 8, b"\x7f")
