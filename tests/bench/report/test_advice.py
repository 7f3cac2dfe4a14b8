"""Advice: a ranked table, its reasons, its ranges, and refusals in a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.commands import main
from bench.comparison import table
from bench.report.advice import advise, asked_for, lines, shares
from bench.report.costs import Question
from bench.report.model import Model
from tests.bench.report.cells import CONSTANTS, rows, seconds_of, write

Cells = list[dict[str, object]]


@pytest.fixture(scope="module")
def cells() -> Cells:
    return list(table(rows()).to_pylist())


@pytest.fixture(scope="module")
def exact(cells: Cells) -> Model:
    return Model(cells)


def test_layouts_are_ordered_by_what_they_cost(exact: Model) -> None:
    asked = asked_for(500, 50, 1024, "page_cache", 2)
    found, without = advise(exact, asked)
    assert "rocketcompat" in without
    assert "raw-file" not in without, "a limit is not a store"
    assert [one.layout for one in found] == sorted(
        CONSTANTS,
        key=lambda name: (
            seconds_of(name, "append", asked.question)
            + 2 * seconds_of(name, "read", asked.question)
        ),
    )
    for one in found:
        truth = seconds_of(one.layout, "append", asked.question) + 2 * seconds_of(
            one.layout, "read", asked.question
        )
        assert one.together.least <= one.together.seconds <= one.together.most
        assert one.together.seconds == pytest.approx(truth, rel=0.2)
        assert one.together.marked == "between measured cells"
    fewer, _ = advise(exact, asked_for(500, 50, 1024, "page_cache", 0))
    assert fewer[0].together.seconds < found[0].together.seconds


def test_a_measured_answer_has_the_range_of_the_rounds(exact: Model, cells: Cells) -> None:
    asked = asked_for(10, 1, 1024, "page_cache", 0)
    text = lines(exact, asked, cells)
    rate = 1 / seconds_of("lmdb", "append", Question(1, 10, 1024, messages=200_000))
    found = re.search(r"lmdb +([\d,]+) m \(([\d,]+) to ([\d,]+)\)", text)
    assert found is not None, text
    middle, low, high = (int(value.replace(",", "")) for value in found.groups())
    assert (low, middle, high) == pytest.approx((rate / 1.1, rate, rate * 1.1), rel=0.01)


def test_an_advice_has_rates_openings_files_reasons_changes_and_a_command(
    exact: Model, cells: Cells
) -> None:
    text = lines(exact, asked_for(500, 0, 1024, "page_cache", 2), cells)
    for part in (
        "500 partitions as 50 topics × 10 (--topics), bodies of 1,024 B, page_cache, 2 readers",
        "m measured", "b between measured cells", "x extrapolated", "Seconds until the first",
        "Why, by the model:", "What changes that:", "with fsync:", "20 readers:",
        "bodies of 2,048 B:", "5,000 partitions:", "Without a rank:",
        "rocketcompat        append: 0 append cells of the 4 that a fit needs",
        "--topics 50 --partitions 10 --body 1024 --durability page_cache",
    ):  # fmt: skip
        assert part in text, part
    command = next(line for line in text.splitlines() if "bench compare" in line)
    for work in ("append", "read", "open"):
        assert f"--only {work}" in command
    kafka = next(line for line in text.splitlines() if "1,500" in line)
    assert "kafka-format" in kafka, "three files a partition"
    for line in text.splitlines():
        if found := re.findall(r" (\d+) %", line):
            assert sum(map(int, found)) == 100, line


def test_layouts_in_a_virtual_machine_are_named(cells: Cells) -> None:
    java = [cell | {"layout": "kafka-3.9"} for cell in cells if cell["layout"] == "lmdb"]
    asked = asked_for(10, 1, 1024, "page_cache", 1)
    named = "In a virtual machine of Java, without Python's calls: kafka-3.9."
    assert named in lines(Model([*cells, *java]), asked, cells)
    assert named not in lines(Model(cells), asked, cells)


def test_a_size_that_a_layout_cannot_have_is_its_reason(cells: Cells) -> None:
    java = [cell | {"layout": "kafka-3.9"} for cell in cells if cell["layout"] == "lmdb"]
    _, without = advise(Model([*cells, *java]), asked_for(100_000, 100, 1024, "page_cache", 1))
    assert without["kafka-3.9"] == "100,000 partitions need 200,000 maps of index files"
    assert without["tubemq"] == "its driver has one topic"


def test_shares_add_up_to_a_hundred() -> None:
    assert shares({"a": 1, "b": 1, "c": 1}) == [("a", 34), ("b", 33), ("c", 33)]
    assert shares({"a": 997, "b": 2, "c": 1}) == [("a", 100)]
    assert shares({}) == []
    for seed in range(1, 20):
        found = shares({str(n): (seed * n * n) % 17 + 0.1 for n in range(7)})
        assert sum(share for _, share in found) == 100


@pytest.mark.parametrize(
    ("partitions", "topics", "laid"),
    [(997, 0, (100, 10)), (7, 0, (1, 7)), (20_000, 0, (2000, 10)), (10, 3, (3, 4)), (1, 1, (1, 1))],
)
def test_partitions_are_laid_over_topics_and_the_text_has_how(
    partitions: int, topics: int, laid: tuple[int, int]
) -> None:
    asked = asked_for(partitions, topics, 1024, "page_cache", 1)
    assert (asked.question.topics, asked.question.partitions) == laid
    places = laid[0] * laid[1]
    more = "" if places == partitions else f" = {places:,}"
    topics_ = f"{laid[0]:,} topic{'' if laid[0] == 1 else 's'}"
    assert f"{partitions:,} partitions as {topics_} × {laid[1]:,}{more} " in str(asked)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--partitions", "0"], "--partitions 0: at least 1"),
        (["--partitions", "10000000000"], "--partitions 10000000000: at most 1,000,000,000"),
        (["--partitions", "10", "--body", "0"], "--body 0: at least 1"),
        (["--partitions", "10", "--readers", "-1"], "--readers -1: at least 0"),
        (["--partitions", "10", "--topics", "11"], "--topics 11: more than the 10 partitions"),
        (["--partitions", "10", "--readers", "1000000000"], "--readers 1000000000: at most 10,000"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "run.jsonl")
    assert main(["advise", *arguments, "--results", str(path)]) == 2
    shown = capsys.readouterr().err
    assert f"bench: {sentence}" in shown
    assert shown.count("\n") == 1


def test_a_question_far_outside_has_reasons_instead_of_an_order(exact: Model, cells: Cells) -> None:
    text = lines(exact, asked_for(50_000_000, 0, 1024, "page_cache", 1), cells)
    assert "No layout has an answer." in text
    assert "50,000,000 partitions are far above the 100,000 measured" in text
    assert "bench compare" not in text, "no machine measures that"
    text = lines(exact, asked_for(10, 0, 7, "page_cache", 1), cells)
    assert "bodies of 7 B are far from those of append cells, 100 to 16,384 B" in text
    assert "bench compare tubestore lmdb" in text


def test_a_durability_with_one_cell_is_not_called_sure(exact: Model, cells: Cells) -> None:
    asked = asked_for(500, 50, 1024, "fsync", 0)
    found, _ = advise(exact, asked)
    assert [one.tested for one in found] == [False] * 3
    text = lines(exact, asked, cells)
    assert text.count("by one cell with fsync: not tested") == 3
    assert "may be as fast" in text
    sure = lines(exact, asked_for(500, 50, 1024, "page_cache", 2), cells)
    assert "not tested)" not in sure
