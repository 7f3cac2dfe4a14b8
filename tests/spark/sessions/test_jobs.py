"""Jobs through Spark itself, and their commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tubestore.cli
from tests.spark.stores import scanned_rows, write_store
from tests.support.command import run_command
from tubestore.errors import TubeStoreError

COUNT = 1000


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_store(tmp_path / "store", {"logs": COUNT, "orders": 100})
    return tmp_path / "store"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *arguments: run_command(tubestore.cli.main, arguments, capsys, monkeypatch)


def flip(root: Path) -> None:
    data = sorted((root / "orders-0").glob("*.tube"))[0]
    raw = bytearray(data.read_bytes())
    raw[-1] ^= 1
    data.write_bytes(raw)


def test_an_audit_is_quiet_about_a_sound_store_and_names_what_is_not(
    spark: Any, root: Path, command: Any, tmp_path: Path
) -> None:
    done = command("spark", "audit", root, "--rows", tmp_path / "rows", "--format", "jsonl")
    assert (done.code, done.out) == (0, "")
    assert "1,100 messages" in done.err
    (row,) = (tmp_path / "rows").read_text().splitlines()
    assert json.loads(row)["rows"] == COUNT + 100
    flip(root)
    done = command("spark", "audit", root, "--format", "jsonl")
    assert done.code == 1
    (finding,) = done.rows
    assert (finding["topic"], finding["reason"]) == ("orders", "bad_checksum")


def test_statistics_are_printed_by_topic_and_by_hour(spark: Any, root: Path, command: Any) -> None:
    rows = command("spark", "stats", root, "--format", "jsonl").rows
    assert [(r["topic"], r["messages"]) for r in rows] == [("logs", COUNT), ("orders", 100)]
    hours = command("spark", "stats", root, "--hours", "--format", "jsonl").rows
    assert sum(r["messages"] for r in hours) == COUNT + 100


def test_a_store_goes_to_parquet_and_back_and_is_copied(
    spark: Any, root: Path, command: Any, tmp_path: Path
) -> None:
    out, back, copy = tmp_path / "out", tmp_path / "back", tmp_path / "copy"
    assert command("spark", "export", root, out, "-o", "maxSplitBytes=30000").code == 0
    done = command("spark", "import", out, back, "--job-id", "back", "--format", "jsonl")
    assert done.rows == [{"job_id": "back", "rows": COUNT + 100, "replayed": False}]
    assert scanned_rows(back) == scanned_rows(root)
    assert spark.read.parquet(str(out)).groupBy("topic").count().count() == 2
    assert command("spark", "compact", root, copy, "-o", "subscribe=orders").code == 0
    assert scanned_rows(copy) == [r for r in scanned_rows(root) if r["topic"] == "orders"]


def test_damage_ends_a_job_with_a_sentence(spark: Any, root: Path, tmp_path: Path) -> None:
    from tubestore.spark.jobs.compact import compact

    flip(root)
    with pytest.raises(TubeStoreError, match=r"CorruptRecord: .*failOnCorrupt=false") as caught:
        compact(spark, str(root), str(tmp_path / "copy"))
    assert "Traceback" not in str(caught.value)
