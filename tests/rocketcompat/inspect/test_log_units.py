"""The units that follow from the log, collected in bounded memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.check import whole as check
from rocketcompat.inspect import comparison as queue_comparison
from rocketcompat.inspect import queue_units
from rocketcompat.inspect.comparison import QueueComparison
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import LogUnits, QueueKey
from rocketcompat.options import LAYOUTS


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_comparison, "WINDOW_UNITS", 7)
    monkeypatch.setattr(queue_units, "WINDOW_UNITS", 7)


def test_what_is_held_of_a_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units wait up to a limit, whether they agree with the files or none is there."""
    config = MessageStoreConfig(mapped_file_size_commit_log=64 << 10, layouts=LAYOUTS)
    with rocketcompat.open(tmp_path, "w", config, layouts=["consume_queue"]) as store:
        for _ in range(1000):
            store.put_message(Message("T", b"x" * 100))
    for path in (None, *(tmp_path / "consumequeue").glob("*/*/*")):
        if path is not None:
            path.unlink()
        directory = StoreDirectory(tmp_path)
        comparison, most = QueueComparison(directory, held_max=100), 0

        def take(key: QueueKey, offsets: np.ndarray, units: np.ndarray) -> None:
            nonlocal most
            for at in range(len(units)):
                comparison.take(key, offsets[at : at + 1], units[at : at + 1])  # noqa: B023
                held = comparison._held.get(key, [])  # noqa: B023
                most = max(most, sum(len(some) for some, _ in held))

        units = LogUnits(directory, ordinary=take).scan()
        comparison.finish(units.log_end)
        assert 5 < most <= 100
        state = "ok" if path is None else "missing"
        assert list(comparison.compared(("T", 0)).runs) == [(0, 1000, state)]
    monkeypatch.setattr(check, "QueueComparison", lambda d: QueueComparison(d, held_max=100))
    assert [row["message"].partition(":")[0] for row in check.check(tmp_path)
            if row["reason"] == "unit_missing"] == ["units 0 to 999"]  # fmt: skip
