"""Jobs that stage files and end in one publish, interrupted and taken up again; their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketcompat.spark import history as log_history
from rocketcompat.spark.loads import RocketLoad
from rocketcompat.spark.write_options import RocketWriteOptions
from tests.spark.job_stores import breaking_off, in_small_splits
from tests.spark.job_stores import root as root
from tests.spark.job_stores import template as template
from tests.spark.stores import T0, scanned_rows
from tests.support.tube_cli import Cli
from tests.support.tube_cli import cli as cli
from tubestore.errors import NotAStore
from tubestore.offline.check import check
from tubestore.spark import history
from tubestore.spark.jobs import compact as compact_module
from tubestore.spark.jobs import parquet as parquet_module
from tubestore.spark.kit.loads import Load
from tubestore.spark.kit.publishing import Written
from tubestore.spark.kit.write_options import WriteOptions

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


# -- results and history ---------------------------------------------------------------------------

ROWS = pa.table({"topic": ["a", "b", "a"], "body": [b"1", b"2", b"3"]}).to_batches()[0]


def shards(path: Path) -> Load:
    return Load.prepare(WriteOptions.parse({"path": str(path)}), ROWS.schema)


def log(path: Path) -> RocketLoad:
    options = {"path": str(path), "mappedFileSizeCommitLog": "64k"}
    return RocketLoad.prepare(RocketWriteOptions.parse(options), ROWS.schema)


def publish(load: Any, job_id: str, query: str | None = None) -> None:
    load.publish(job_id, load.stage(job_id, "0", [ROWS], content=True), query)


def test_the_result_of_a_job_has_its_rows_and_their_places(tmp_path: Path) -> None:
    publish(shards(tmp_path), "one")
    publish(shards(tmp_path), "two")
    found = shards(tmp_path).written("two", replayed=False)
    assert (found.job_id, found.replayed, found.rows) == ("two", False, 3)
    assert found.offsets == {"a-0": (56, 112), "b-0": (28, 56)}
    assert len(found.files) == 2
    assert all(Path(file).stat().st_size for file in found.files)
    assert shards(tmp_path).written("none", replayed=True) == Written("none", True)


def test_the_result_of_a_job_of_a_log_has_its_part_of_the_log(tmp_path: Path) -> None:
    publish(log(tmp_path), "one")
    found = log(tmp_path).written("one", replayed=True)
    assert (found.rows, found.replayed) == (3, True)
    assert found.offsets["log"][0] == 0 < found.offsets["log"][1]
    assert [Path(file).exists() for file in found.files] == [True]


@pytest.mark.parametrize(("load", "listed"), [(shards, history), (log, log_history)])
def test_the_history_has_the_jobs_in_their_order(tmp_path: Path, load: Any, listed: Any) -> None:
    with pytest.raises(NotAStore):
        listed(str(tmp_path / "none"))
    publish(load(tmp_path), "one")
    publish(load(tmp_path), "q:7", "q")
    rows = listed(str(tmp_path)).to_pylist()
    assert [(row["number"], row["job_id"], row["rows"], row["query"]) for row in rows] == [
        (1, "one", 3, None),
        (2, "q:7", 3, "q"),
    ]
    assert all(row["bytes"] > 0 for row in rows)


def test_the_command_lists_the_history(cli: Cli, tmp_path: Path) -> None:
    publish(shards(tmp_path), "one")
    rows = cli("spark", "history", tmp_path, "--format", "jsonl").rows
    assert [(row["job_id"], row["rows"]) for row in rows] == [("one", 3)]
