"""`tubestore spark JOB`, as far as it needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

import tubestore.spark
from tests.spark.stores import write_store
from tests.support.tube_cli import Cli
from tests.support.tube_cli import cli as cli
from tubestore.errors import StoreFailed
from tubestore.spark.kit import running


@pytest.mark.parametrize("job", [("audit",), ("stats",), ("export", "/nowhere/out")])
def test_a_dry_run_reports_what_would_be_read_and_starts_nothing(
    cli: Cli, tmp_path: Path, job: tuple[str, ...]
) -> None:
    write_store(tmp_path / "store", {"logs": 1000, "orders": 100})
    done = cli("spark", job[0], tmp_path / "store", *job[1:], "--dry-run")
    assert done.code == 0
    assert b"planned 1 splits, at most 1,100 messages" in done.out
    assert not Path("/nowhere").exists()


def test_a_job_over_few_bytes_starts_no_session(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed: make test-spark installs it")

    def session(*args: object, **settings: object) -> object:
        raise StoreFailed("/s", "a session was started")

    monkeypatch.setattr(tubestore.spark, "session", session)
    write_store(tmp_path / "store", {"logs": 1000})
    assert cli("spark", "audit", tmp_path / "store").code == 0
    assert (
        cli("spark", "stats", tmp_path / "store", "--format", "jsonl").rows[0]["messages"] == 1000
    )
    for asked in (("--master", "spark://host:7077"), ("--conf", "spark.x=y")):
        assert "a session was started" in cli("spark", "audit", tmp_path / "store", *asked).err
    monkeypatch.setattr(running, "_SMALL_BYTES", 0)
    assert "a session was started" in cli("spark", "audit", tmp_path / "store").err
