"""Jobs that stage files and end in one publish, interrupted and taken up again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.job_stores import breaking_off, in_small_splits
from tests.spark.job_stores import root as root
from tests.spark.job_stores import template as template
from tests.spark.stores import T0, scanned_rows
from tubestore.offline.check import check
from tubestore.spark.jobs import compact as compact_module
from tubestore.spark.jobs import parquet as parquet_module

pytestmark = pytest.mark.usefixtures("small_waves")


@pytest.mark.parametrize("job", ["compact", "import"])
def test_a_load_that_was_killed_stages_only_what_is_missing(
    job: str,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_waves: list[int],
) -> None:
    in_small_splits(monkeypatch, compact_module, parquet_module)
    source, out = tmp_path / "source", tmp_path / "copy"
    parquet_module.export(None, str(root), str(source))

    def run() -> Any:
        if job == "compact":
            return compact_module.compact(None, str(root), str(out), job_id="load")
        return parquet_module.import_parquet(None, str(source), str(out), job_id="load")

    kind = compact_module.CompactJob if job == "compact" else parquet_module.ImportJob
    with breaking_off(kind, monkeypatch, at=6), pytest.raises(RuntimeError, match="interrupted"):
        run()
    assert not out.exists() or scanned_rows(out) == []
    small_waves.clear()
    result = run()
    assert result.done.resumed >= 3
    assert len(small_waves) == len(result.done.rows) - result.done.resumed
    assert scanned_rows(out) == scanned_rows(root)
    assert list(check(out)) == []
    small_waves.clear()
    assert run().replayed
    assert small_waves == []


def test_what_is_gone_of_an_interrupted_load_is_staged_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_waves: list[int]
) -> None:
    in_small_splits(monkeypatch, compact_module)
    out = tmp_path / "copy"
    with breaking_off(compact_module.CompactJob, monkeypatch, at=6), pytest.raises(RuntimeError):
        compact_module.compact(None, str(root), str(out), job_id="load")
    staged = sorted((out / ".tubestore" / "staging").glob("*/*.tube"))
    staged[0].unlink()
    staged[1].write_bytes(staged[1].read_bytes()[:-1])
    small_waves.clear()
    done = compact_module.compact(None, str(root), str(out), job_id="load").done
    assert len(small_waves) == len(done.rows) - done.resumed
    assert scanned_rows(out) == scanned_rows(root)


def test_an_interrupted_load_with_other_options_begins_anew(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_splits(monkeypatch, compact_module)
    out = tmp_path / "copy"
    with breaking_off(compact_module.CompactJob, monkeypatch, at=6), pytest.raises(RuntimeError):
        compact_module.compact(None, str(root), str(out), job_id="load")
    since = str(T0 + 100)
    result = compact_module.compact(
        None, str(root), str(out), job_id="load", startingTimestamp=since
    )
    assert result.done.resumed == 0
    kept = [r for r in scanned_rows(root) if r["received_time_ms"] >= T0 + 100]
    assert len(scanned_rows(out)) == len(kept) == result.rows
