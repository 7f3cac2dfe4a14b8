"""The report as Markdown: the README quotes its table as it comes out of the recorded run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.commands import main
from bench.report.costs import Question
from bench.report.page import number
from tests.bench.report.cells import CONSTANTS, seconds_of, write


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
