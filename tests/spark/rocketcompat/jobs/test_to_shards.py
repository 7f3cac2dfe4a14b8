"""A log becomes shards, from wherever it lies, and after an interruption."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import rocketcompat.cli
from rocketcompat.spark.jobs import to_shards as jobs
from rocketcompat.spark.jobs.stats import stats
from tests.spark.rocket_jobs import COUNT
from tests.spark.rocket_jobs import store as store
from tests.spark.rocket_stores import dumped, of_dump, planned, read_log
from tests.spark.stores import scanned_rows
from tests.support.command import run_command
from tubestore.offline.check import check

pytestmark = pytest.mark.usefixtures("small_waves")


def test_a_log_that_lies_elsewhere_is_read_and_converted(
    store: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, out, disk = tmp_path / "store", tmp_path / "tube", tmp_path / "disk"
    shutil.copytree(store, root)
    (root / "commitlog").rename(disk)
    paths = {"storePathCommitLog": str(disk)}
    rows = dumped(store)
    assert [of_dump(row) for row in read_log(root, planned(root, **paths), **paths)] == rows
    found = stats(None, str(root), options=paths)  # type: ignore[arg-type]
    assert sum(row["messages"] for row in found.hours) == len(rows)

    def described(*given: object) -> str:
        run = ("spark", "convert", *given, "--dry-run", "-o", f"storePathCommitLog={disk}")
        done = run_command(rocketcompat.cli.main, run, capsys, monkeypatch)
        assert done.code == 0
        return done.out

    assert "bytes of CommitLog" in described(root, out)
    jobs.convert(None, str(root), str(out), **paths)  # type: ignore[arg-type]
    assert len(scanned_rows(out)) == COUNT
    assert "CommitLog" not in described(out, root)  # the log is that of the other store


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
