"""The report as Markdown: the README quotes its table as it comes out of the recorded run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.commands import main
from bench.report.costs import Question
from bench.report.markdown import markdown, summary
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


def test_advice_and_the_readmes_table_are_of_the_recorded_run_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a quick run there was no answer any more to what the page asks."""
    monkeypatch.setattr("bench.run.RESULTS", tmp_path)
    assert main(["advise", "--partitions", "1000"]) == 0
    found = capsys.readouterr()
    assert "By layouts.jsonl:" in found.out
    assert found.err == ""
    mine = write(tmp_path / "laboratory-20300101T000000.jsonl")
    for command in (["advise", "--partitions", "1000"], ["report", "--summary"]):
        assert main(command) == 0
        found_too = capsys.readouterr()
        assert f"this is by the recorded run; your last one is {mine}" in found_too.err
    assert found_too.out == summary(load(OURS))


def test_the_page_is_drawn_of_the_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.setattr("bench.run.RESULTS", tmp_path)
    mine = write(tmp_path / "laboratory-20300101T000000.jsonl")
    assert main(["report"]) == 0
    assert mine.with_suffix(".html").exists()


def test_of_openings_the_time_is_shown_and_not_how_many_there_were_in_a_second(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = markdown(load(OURS))
    openings = text.split("(`open`)")[1].split("###")[0].splitlines()
    assert openings[2].split("|")[3].strip() == "ms"
    (cell,) = [one for one in load(OURS).cells if (one["work"], one["layout"]) == (
        "open", "tubestore")]  # fmt: skip
    assert openings[4].split("|")[3].strip() == number(1e3 / cell["rate_median"])
    compared = main(["compare", "tubestore", "--only", "open", "--tiny", "--rounds", "1",
                     "--dir", str(tmp_path)])  # fmt: skip
    assert compared == 0
    assert re.search(r"\d ms, [\d.]+ MB\n$", capsys.readouterr().out)
