"""Statistics of splits are those of the rows."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.spark.job_stores import COUNT, in_small_splits
from tests.spark.job_stores import root as root
from tests.spark.job_stores import template as template
from tests.spark.stores import scanned_rows
from tubestore.spark.jobs import stats as stats_module

pytestmark = pytest.mark.usefixtures("small_waves")


@pytest.mark.parametrize("span", [1, 7, 1 << 16, (1 << 16) + 1, 1 << 40])
def test_rows_are_grouped_the_same_way_however_far_apart_the_keys_are(span: int) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    keys = np.random.default_rng(seed).integers(0, span, 5000, np.int64) - 3
    keys[:2] = -3, span - 4
    found, order, counts = stats_module._grouped(keys)
    expected, many = np.unique(keys, return_counts=True)
    assert found.tolist() == expected.tolist()
    assert counts.tolist() == many.tolist()
    assert order.tolist() == np.argsort(keys, kind="stable").tolist()


def test_statistics_are_those_of_the_rows(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_splits(monkeypatch, stats_module)
    result = stats_module.stats(None, str(root))
    rows = scanned_rows(root)
    for found in result.hours:
        own = [
            r["received_time_ms"]
            for r in rows
            if (r["topic"], r["partition"]) == (found["topic"], found["partition"])
            and r["received_time_ms"] // 3_600_000 * 3_600_000 == found["hour"]
        ]
        assert (found["messages"], found["first"], found["last"]) == (
            len(own), min(own), max(own),
        )  # fmt: skip
    assert sum(found["messages"] for found in result.hours) == len(rows)
    size = sum(path.stat().st_size for path in root.rglob("*.tube"))
    assert sum(found["bytes"] for found in result.topics) == size
    assert [(t["topic"], t["messages"], t["partitions"]) for t in result.topics] == [
        ("logs", COUNT, 7),
        ("orders", 300, 7),
    ]
