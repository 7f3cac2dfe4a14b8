"""The cost model: it finds constants that are known, and gives no answer where it has none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.comparison import table
from bench.report.costs import Question
from bench.report.model import FEWEST_CELLS, WIDEST, Model, Outside, Uncertain, nonnegative
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
    with pytest.raises(Outside, match="0 append cells of the 4 that a fit needs"):
        exact.answer("rocketcompat", "append", asked)


def test_a_measured_answer_has_the_range_of_its_rounds(exact: Model) -> None:
    asked = Question(1, 10, 1024)
    answer = exact.answer("lmdb", "append", asked)
    truth = seconds_of("lmdb", "append", Question(1, 10, 1024, messages=200_000))
    assert answer.seconds == pytest.approx(truth)
    assert (answer.least, answer.most) == pytest.approx((truth / 1.1, truth * 1.1))


def _cells(work: str, layout: str, *costs: tuple[Question, float]) -> list[dict[str, object]]:
    """Return cells as a report has them: a question and its seconds."""
    return [
        {
            "work": work, "layout": layout, "topics": asked.topics, "partitions": asked.partitions,
            "body": str(asked.body), "durability": asked.durability, "batch": asked.batch,
            "skew": "even", "threads": 1, "file_system": "tmpfs", "messages": asked.messages,
            "stored": asked.messages, "rate_median": 1 / cost, "rate_min": 1 / cost,
            "rate_max": 1 / cost,
        }
        for asked, cost in costs
    ]  # fmt: skip


def test_openings_are_fitted_to_partitions_and_bytes() -> None:
    def cost(topics: int, work: str) -> float:
        read = 9e-10 * 1034 * 400_000 if work == "recover" else 0
        return 0.02 + 40e-6 * 10 * topics + read

    asks = [Question(topics, 10, 1024, messages=400_000) for topics in (1, 10, 100, 1000)]
    for work in ("open", "recover"):
        costs = [(asked, cost(asked.topics, work)) for asked in asks]
        model = Model(_cells(work, "kafka-format", *costs))
        answer = model.answer("kafka-format", work, Question(500, 10, 1024, messages=400_000))
        assert answer.marked == "between measured cells"
        assert answer.seconds == pytest.approx(cost(500, work), rel=0.05)
        points = model.curves(work)["kafka-format"]
        assert points[-1] == (1_000_000, pytest.approx(1e3 * cost(100_000, work), rel=0.05))
        fewer = model.answer("kafka-format", work, Question(1000, 10, 1024, messages=200_000))
        assert fewer.marked == "between measured cells", "another number of messages"


def test_few_cells_bound_an_answer_without_a_fit() -> None:
    asked = Question(1000, 10, 1024, messages=400_000)
    model = Model(_cells("open", "kafka-format", (asked, 1.0)))
    assert not model.fits
    assert model.answer("kafka-format", "open", asked).marked == "measured"
    for topics in (200, 5000):
        other = Question(topics, 10, 1024, messages=400_000)
        answer = model.answer("kafka-format", "open", other)
        assert answer.marked == "extrapolated"
        assert answer.note == "bounds from 1 open cell"
        times = topics / 1000
        assert answer.least == pytest.approx(min(1, times))
        assert answer.most == pytest.approx(max(1, times))
        assert answer.least < answer.seconds < answer.most
    with pytest.raises(
        Outside, match="1 open cell bound it to a range of 1000 times: too uncertain"
    ):
        model.answer("kafka-format", "open", Question(1, 10, 1024, messages=400_000))
    with pytest.raises(Outside, match="100,010 partitions are far above the 10,000 measured"):
        model.answer("kafka-format", "open", Question(10_001, 10, 1024, messages=400_000))


def test_what_all_cells_have_alike_widens_the_range_of_other_bodies(exact: Model) -> None:
    one, other = (exact.answer("lmdb", "read", Question(50, 10, body)) for body in (1024, 512))
    assert "byte" not in exact.fits["lmdb", "read"].constants, "one size of bodies"
    assert other.factor > one.factor * 1.2
    for body in (1024, 512):
        answer = exact.answer("lmdb", "read", Question(50, 10, body))
        truth = seconds_of("lmdb", "read", Question(50, 10, body))
        assert answer.least <= truth <= answer.most


def test_a_range_that_is_too_wide_is_no_answer() -> None:
    asks = [Question(topics, 1, 1024, messages=1_000_000) for topics in (1, 10, 100, 1000)]
    costs = [(asked, (1e-6, 19e-6, 1e-6, 19e-6)[at]) for at, asked in enumerate(asks)]
    model = Model(_cells("append", "lmdb", *costs))
    assert model.fits["lmdb", "append"].inner_factor ** 2 > WIDEST
    with pytest.raises(Outside, match="too uncertain"):
        model.answer("lmdb", "append", Question(50, 1, 1024))


def test_cells_bound_what_their_fit_leaves_uncertain() -> None:
    asks = [Question(topics, 1, 1024, messages=1_000_000) for topics in (1, 1, 1000, 1000)]
    asks[1], asks[3] = (replace(asked, body=2048) for asked in asks[::2])
    costs = [(asked, (1e-6, 1e-6, 1e-6, 30e-6)[at]) for at, asked in enumerate(asks)]
    model = Model(_cells("append", "rocketcompat", *costs))
    asked = Question(2, 1, 1024)
    with pytest.raises(Uncertain):
        model.fits["rocketcompat", "append"].answer(asked)
    answer = model.answer("rocketcompat", "append", asked)
    assert answer.note == "bounds from 4 append cells"
    assert answer.least <= 1e-6 <= answer.most


def test_cells_that_contradict_each_other_narrow_nothing() -> None:
    one, two = (Question(topics, 10, 1024, messages=400_000) for topics in (1000, 2000))
    model = Model(_cells("open", "kafka-format", (one, 1.0), (two, 5.0)))
    answer = model.answer("kafka-format", "open", Question(1500, 10, 1024, messages=400_000))
    assert (answer.least, answer.most) == pytest.approx((1.0, 5.0))


def test_cells_that_no_term_describes_are_not_fitted() -> None:
    asks = [Question(topics, 1, 1024) for topics in range(1, FEWEST_CELLS + 1)]
    cells = _cells("append", "lmdb", *[(asked, 1e-6) for asked in asks])
    assert ("lmdb", "append") in Model(cells).fits
    for name, value in (
        ("threads", 4), ("skew", "zipf"), ("durability", "memory"), ("body", "mix"),
        ("file_system", "ext4"), ("disk", True),
    ):  # fmt: skip
        changed = [*cells[:-1], cells[-1] | {name: value}]
        assert Model(changed).few == {("lmdb", "append"): FEWEST_CELLS - 1}, name


def test_beyond_a_cell_that_was_left_out_there_is_its_reason() -> None:
    asks = [Question(topics, 10, 1024) for topics in (1, 10, 100, 10_000)]
    cells = _cells("append", "kafka-format", *[(asked, 1e-5) for asked in asks])
    gone = cells[0] | {"topics": 1000, "rate_median": None, "reason": "too many files"}
    model = Model([*cells, gone])
    for topics in (1, 100, 500, 10_000):
        model.answer("kafka-format", "append", Question(topics, 10, 1024))
    model.answer("kafka-format", "append", Question(10, 1000, 1024))
    for topics in (1000, 2000):
        with pytest.raises(Outside, match=r"1,000 × 10 had no measure: too many files"):
            model.answer("kafka-format", "append", Question(topics, 10, 1024))


def test_curves_end_at_a_million_partitions(exact: Model) -> None:
    curves = exact.curves("append")
    assert set(curves) == set(CONSTANTS)
    for points in curves.values():
        assert points[0][0] == 1
        assert points[-1][0] == 1_000_000
        assert points[-1][1] < points[0][1]


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
