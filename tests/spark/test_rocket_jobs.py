"""Jobs over RocketMQ stores without Spark: what tasks do, and what an interruption leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketcompat.spark import jobs
from tests.spark.rocket_stores import write_rocket_store
from tests.spark.stores import scanned_rows
from tubestore.check import check

pytestmark = pytest.mark.usefixtures("small_waves")
COUNT = 900


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rocket")
    write_rocket_store(root, COUNT)
    return root


def test_a_conversion_that_was_killed_stages_only_what_is_missing(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_waves: list[int]
) -> None:
    out = tmp_path / "tube"
    work = jobs.ConvertJob.work

    def interrupted(self: Any, number: int, split: Any) -> Any:
        if number == 4:
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
    assert result.done.resumed >= 4
    assert len(small_waves) == len(result.done.rows) - result.done.resumed
    assert sorted(int(row["body"].split()[0]) for row in scanned_rows(out)) == list(range(COUNT))
    assert list(check(out)) == []
    assert run().replayed
