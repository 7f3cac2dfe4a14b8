"""`tubestore spark JOB`, as far as it needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.stores import write_store
from tests.support.tube_cli import Cli
from tests.support.tube_cli import cli as cli


@pytest.mark.parametrize("job", [("audit",), ("stats",), ("export", "/nowhere/out")])
def test_a_dry_run_reports_what_would_be_read_and_starts_nothing(
    cli: Cli, tmp_path: Path, job: tuple[str, ...]
) -> None:
    write_store(tmp_path / "store", {"logs": 1000, "orders": 100})
    done = cli("spark", job[0], tmp_path / "store", *job[1:], "--dry-run")
    assert done.code == 0
    assert b"planned 1 splits, at most 1,100 messages" in done.out
    assert not Path("/nowhere").exists()
