"""The cost model: it finds constants that are known, and gives no answer where it has none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.comparison import table
from bench.report.advice import advise, lines
from bench.report.costs import FORMATS, Question, terms
from bench.report.model import Model, Outside, nonnegative
from tests.bench.report.cells import CONSTANTS, rows, seconds_of


@pytest.fixture(scope="module")
def exact() -> Model:
    return Model(table(rows()).to_pylist())


@pytest.fixture(scope="module")
def noisy() -> Model:
    return Model(table(rows(noise=0.1)).to_pylist())


def test_least_squares_have_no_negative_constant() -> None:
    found = nonnegative(np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), np.array([3.0, 2.0, 1.0]))
    assert found.min() >= 0
    assert found == pytest.approx([2.0, 0.0], abs=1e-6)
    rows_ = np.random.default_rng(1).random((20, 3))
    assert nonnegative(rows_, rows_ @ [1, 2, 3]) == pytest.approx([1, 2, 3], rel=1e-3)


@pytest.mark.parametrize("layout", list(CONSTANTS))
def test_cells_that_were_held_back_are_predicted(exact: Model, layout: str) -> None:
    for work in ("append", "batch", "read", "scan"):
        fit = exact.fits[layout, work]
        assert fit.inner_factor < 1.1, (work, fit.held_back)
    assert exact.fits[layout, "append"].held_back.count(None) == 1  # the one with fsync


@pytest.mark.parametrize("layout", list(CONSTANTS))
@pytest.mark.parametrize("work", ["append", "batch"])
def test_what_was_not_measured_lies_within_the_uncertainty(
    noisy: Model, layout: str, work: str
) -> None:
    for topics in (30, 3000, 30_000):
        asked = Question(topics, 10, 1024)
        answer = noisy.answer(layout, work, asked)
        truth = seconds_of(layout, work, asked)
        allowed = 1.2 * answer.factor
        assert truth / allowed <= answer.seconds <= truth * allowed, (topics, answer)


def test_a_law_that_the_format_does_not_have_shows_as_uncertainty() -> None:
    found = rows()
    for row in found:
        if row["kind"] == "run" and row["layout"] == "lmdb" and row["work"] == "append":
            row["rate"] /= (row["topics"] * row["partitions"]) ** 0.5
    model = Model(table(found).to_pylist())
    assert model.fits["lmdb", "append"].factor > 2
    assert model.fits["tubestore", "append"].inner_factor < 1.1


def test_each_answer_is_marked_by_how_it_is_known(exact: Model) -> None:
    def marked(**asked: object) -> str:
        question = Question(**{"topics": 1, "partitions": 10, "body": 1024, **asked})  # type: ignore[arg-type]
        return exact.answer("tubestore", "append", question).marked

    assert marked() == "measured"
    assert exact.answer("tubestore", "append", Question(1, 10, 1024)).factor == 1
    assert marked(topics=10, partitions=1) == "between measured cells", "another shape"
    assert marked(topics=50) == "between measured cells"
    assert marked(body=4000) == "between measured cells"
    assert marked(topics=50_000) == "extrapolated"
    assert marked(body=60) == "extrapolated"
    assert marked(durability="fsync") == "measured"
    assert marked(durability="fsync", topics=50) == "extrapolated"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (Question(200_000, 10, 1024), "2,000,000 partitions are far above the 100,000 measured"),
        (Question(1, 10, 1 << 20), "bodies of 1,048,576 B are far from"),
        (Question(1, 10, 1024, "memory"), "no append cell has the durability memory"),
    ],
)
def test_far_outside_there_is_no_answer(exact: Model, asked: Question, reason: str) -> None:
    with pytest.raises(Outside, match=reason):
        exact.answer("tubestore", "append", asked)
    with pytest.raises(Outside, match="0 append cells are too few"):
        exact.answer("rocketcompat", "append", asked)


def test_curves_end_at_a_million_partitions(exact: Model) -> None:
    curves = exact.curves("append")
    assert set(curves) == set(CONSTANTS)
    for points in curves.values():
        assert points[0][0] == 1
        assert points[-1][0] == 1_000_000
        assert points[-1][1] < points[0][1]


@pytest.mark.parametrize("layout", list(FORMATS))
def test_a_batch_over_more_topics_needs_no_fewer_terms(layout: str) -> None:
    few, many = (terms(layout, "batch", Question(topics, 10, 1024)) for topics in (1, 1000))
    assert all(many[name] >= few[name] for name in few)
    assert terms(layout, "append", Question(1, 1, 100))["byte"] > 100


def test_advice_orders_layouts_by_what_they_cost(exact: Model) -> None:
    asked = Question(50, 10, 1024)
    found, without = advise(exact, asked, readers=2)
    assert list(without) == ["rocketcompat"]
    assert [one.layout for one in found] == sorted(
        CONSTANTS,
        key=lambda name: seconds_of(name, "append", asked) + 2 * seconds_of(name, "read", asked),
    )
    for one in found:
        truth = 1 / (
            seconds_of(one.layout, "append", asked)
            + 2 * seconds_of(one.layout, "read", Question(50, 10, 1024))
        )
        assert one.low <= one.rate <= one.high
        assert one.rate == pytest.approx(truth, rel=0.2)
        assert one.marked == "between measured cells"
    assert advise(exact, asked, readers=0)[0][0].rate > found[0].rate


def test_advice_for_a_durability_with_one_cell_is_not_called_sure(exact: Model) -> None:
    asked = Question(50, 10, 1024, "fsync")
    found, without = advise(exact, asked, readers=0)
    assert [one.tested for one in found] == [False] * 3
    text = lines(found, without, asked, 0)
    assert text.count("by one cell with fsync: not tested") == 3
    assert "measure both with python -m bench compare" in text
    sure = lines(*advise(exact, Question(50, 10, 1024), readers=2), Question(50, 10, 1024), 2)
    assert "not tested" not in sure


def test_damaged_results_are_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.commands import main

    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps({"kind": "machine"}) + "\n")
    assert main(["advise", "--partitions", "10", "--results", str(path)]) == 2
    assert "these are the results of bars" in capsys.readouterr().err
    assert main(["advise", "--partitions", "0", "--results", str(path)]) == 2
    assert main(["report", str(tmp_path / "nothing.jsonl")]) == 2
