"""Jobs over RocketMQ stores without Spark: what tasks do, and what an interruption leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketcompat.spark.jobs import to_shards as jobs
from rocketcompat.spark.jobs.stats import stats
from tests.spark.rocket_stores import dumped, write_rocket_store
from tests.spark.stores import scanned_rows
from tubestore.offline.check import check
from tubestore.spark.jobs.stats import HOUR_MS

pytestmark = pytest.mark.usefixtures("small_waves")
COUNT = 900


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rocket")
    write_rocket_store(root, COUNT)
    return root


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


def test_a_conversion_that_was_killed_stages_only_what_is_missing(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_waves: list[int]
) -> None:
    out = tmp_path / "tube"
    work = jobs.ConvertJob.work

    def interrupted(self: Any, number: int, split: Any) -> Any:
        if number == 6:
            raise RuntimeError("interrupted")
        return work(self, number, split)

    def run() -> Any:
        return jobs.convert(None, str(store), str(out), job_id="c", maxSplitBytes="30000")

    monkeypatch.setattr(jobs.ConvertJob, "work", interrupted)
    with pytest.raises(RuntimeError, match="interrupted"):
        run()
    monkeypatch.setattr(jobs.ConvertJob, "work", work)
    small_waves.clear()
    result = run()
    assert result.done.resumed >= 3
    assert len(small_waves) == len(result.done.rows) - result.done.resumed
    assert sorted(int(row["body"].split()[0]) for row in scanned_rows(out)) == list(range(COUNT))
    assert list(check(out)) == []
    assert run().replayed
