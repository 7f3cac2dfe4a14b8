"""A store goes to Parquet and comes back."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.job_stores import COUNT, in_small_splits
from tests.spark.job_stores import root as root
from tests.spark.job_stores import template as template
from tests.spark.stores import scanned_rows
from tubestore.errors import InvalidMessage, InvalidOption
from tubestore.spark.jobs import parquet as parquet_module
from tubestore.spark.kit import running

pytestmark = pytest.mark.usefixtures("small_waves")


def test_an_export_holds_the_rows_and_is_taken_back(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_splits(monkeypatch, parquet_module)
    out = tmp_path / "out"
    result = parquet_module.export(None, str(root), str(out))
    assert result.rows == COUNT + 300
    assert (out / "_SUCCESS").exists()
    orders = pq.read_table(out / "topic=orders").sort_by("offset").to_pylist()
    expected = [r for r in scanned_rows(root) if r["topic"] == "orders"]
    for found, row in zip(orders, expected, strict=True):
        assert found | {"topic": "orders"} == row

    copy = tmp_path / "copy"
    for replayed in (False, True):
        done = parquet_module.import_parquet(None, str(out), str(copy), job_id="back")
        assert done.replayed is replayed
    assert scanned_rows(copy) == scanned_rows(root)


def test_an_export_that_is_run_again_writes_the_same_files(root: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    first = parquet_module.export(None, str(root), out, job_id="e")
    running.journal_path("e").unlink()
    assert parquet_module.export(None, str(root), out, job_id="e").files == first.files
    assert len(list(Path(out).glob("**/*.parquet"))) == len(first.files)
    with pytest.raises(InvalidOption, match="there are Parquet files already"):
        parquet_module.export(None, str(root), out)


def test_columns_and_options_of_an_export_are_chosen(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    parquet_module.export(None, str(root), str(out), columns=["offset"], subscribe="orders")
    (file,) = out.glob("**/*.parquet")
    assert pq.ParquetFile(file).schema_arrow.names == ["offset"]
    with pytest.raises(InvalidOption, match="no colour; there are topic"):
        parquet_module.export(None, str(root), str(tmp_path / "x"), columns=["colour"])


def test_what_cannot_be_imported_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="no Parquet file"):
        parquet_module.import_parquet(None, str(tmp_path / "none"), str(root), job_id="i")
    out = tmp_path / "out"
    parquet_module.export(None, str(root), str(out), columns=["offset"], subscribe="orders")
    with pytest.raises(InvalidMessage, match="a column body"):
        parquet_module.import_parquet(None, str(out), str(root), job_id="i")
