"""The report as Markdown: the README quotes its table as it comes out of the recorded run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.commands import main
from bench.report.costs import Question
from bench.report.markdown import summary
from bench.report.results import load, number
from bench.run import RESULTS
from tests.bench.report.cells import CONSTANTS, seconds_of, write
from tests.support import REPOSITORY

OURS = RESULTS / "layouts.jsonl"


def test_the_short_table_has_a_row_a_job_and_a_column_a_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "run.jsonl")
    assert main(["report", str(path), "--summary"]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head == "| 1,000 messages/s | tubestore | kafka-format | lmdb | tubemq |"
    assert not list(tmp_path.glob("*.html"))
    asked = Question(1, 10, 1024, messages=200_000)
    wanted = [1e-3 / seconds_of(name, "append", asked) for name in CONSTANTS]
    found = [value.strip() for value in rows[0].split("|")][1:-1]
    assert found == ["append one by one, 10 partitions", *map(number, wanted), ""]
    many = next(row for row in rows if row.startswith("| … 10,000 topics |"))
    assert many.endswith("| – |"), "a cell that was tried and left out"


def test_the_readme_has_the_table_of_the_recorded_run() -> None:
    assert summary(load(OURS)) in (REPOSITORY / "README.md").read_text()


def test_without_results_of_the_user_the_recorded_run_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.run.RESULTS", tmp_path)
    assert main(["advise", "--partitions", "1000"]) == 0
    assert "By layouts.jsonl:" in capsys.readouterr().out
