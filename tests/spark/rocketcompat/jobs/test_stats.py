"""Statistics of a log in splits are those of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcompat.spark.jobs.stats import stats
from tests.spark.rocket_jobs import COUNT
from tests.spark.rocket_jobs import store as store
from tests.spark.rocket_stores import dumped
from tubestore.spark.jobs.stats import HOUR_MS

pytestmark = pytest.mark.usefixtures("small_waves")


def test_statistics_are_those_of_the_rows(store: Path) -> None:
    found = stats(None, str(store))  # type: ignore[arg-type]
    rows = dumped(store)
    assert sum(row["messages"] for row in found.hours) == len(rows) == COUNT
    for hour in found.hours:
        own = [
            row
            for row in rows
            if (row["topic"], row["queue_id"]) == (hour["topic"], hour["queue_id"])
            and row["store_timestamp"] // HOUR_MS * HOUR_MS == hour["hour"]
        ]
        sizes = [row["store_size"] for row in own]
        times = [row["store_timestamp"] for row in own]
        wanted = [len(own), sum(sizes), min(sizes), max(sizes), min(times), max(times)]
        names = ("messages", "bytes", "least", "most", "first", "last")
        assert [hour[name] for name in names] == wanted
    assert {(row["topic"], row["queues"]) for row in found.topics} == {
        (f"topic{number}", 4) for number in range(3)
    }
