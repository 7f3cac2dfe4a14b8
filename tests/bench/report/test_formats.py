"""What is derived from formats: it agrees with what was counted in the recorded run."""

from __future__ import annotations

from functools import cache

import pytest

from bench.layouts.registry import CONTENDERS
from bench.report.costs import MESSAGES, OPENINGS, Question
from bench.report.formats import FORMATS, terms
from bench.report.results import Cell, load
from bench.run import RESULTS


@cache
def _recorded() -> list[Cell]:
    return list(load(RESULTS / "layouts.jsonl").cells)


def _appends(layout: str, *works: str) -> list[tuple[Cell, Question]]:
    found = []
    for cell in _recorded():
        usual = cell["body"] != "mix" and cell["skew"] == "even" and cell["threads"] == 1
        if cell["layout"] == layout and cell["work"] in works and usual and cell["rate_median"]:
            asked = Question(
                cell["topics"], cell["partitions"], int(cell["body"]), cell["durability"],
                messages=cell["messages"],
            )  # fmt: skip
            found.append((cell, asked))
    return found


def test_every_contender_has_a_format() -> None:
    assert set(FORMATS) == set(CONTENDERS)
    for layout, form in FORMATS.items():
        assert form.why.count(". ") >= 1, layout


@pytest.mark.parametrize("layout", list(FORMATS))
def test_a_batch_over_more_topics_needs_no_fewer_terms(layout: str) -> None:
    few, many = (terms(layout, "batch", Question(topics, 10, 1024)) for topics in (1, 1000))
    assert all(many[name] >= few[name] for name in few)
    assert terms(layout, "append", Question(1, 1, 100))["byte"] >= 100


@pytest.mark.parametrize("layout", list(FORMATS))
def test_needs_do_not_shrink_with_bodies_and_partitions(layout: str) -> None:
    form = FORMATS[layout]
    for work in (*MESSAGES, *OPENINGS):
        small, large, many = (
            form.need(work, asked)
            for asked in (Question(1, 10, 100), Question(1, 10, 10_000), Question(1000, 10, 100))
        )
        if small is None or large is None or many is None:
            continue
        assert 0 <= small.bytes <= large.bytes, work
        assert small.calls <= max(large.calls, many.calls), work
        if work in OPENINGS:
            assert small.calls <= many.calls
            recover = form.need("recover", Question(1, 10, 100))
            assert recover is not None
            assert recover.bytes >= small.bytes, "a kill leaves no less to be read"


def test_a_synced_message_needs_a_call_for_each_sync_and_a_batch_shares_it() -> None:
    for layout, syncs in (("tubestore", 1), ("lmdb", 2)):
        for work, rows in (("append", 1), ("batch", 1000)):
            cached, synced = (
                FORMATS[layout].need(work, Question(1, 10, 1024, durability))
                for durability in ("page_cache", "fsync")
            )
            assert cached is not None
            assert synced is not None
            assert synced.calls - cached.calls == pytest.approx(syncs / rows)
            assert terms(layout, work, Question(1, 10, 1024, "fsync"))["sync"] == syncs / rows
            assert "sync" not in terms(layout, work, Question(1, 10, 1024))


@pytest.mark.parametrize(
    "layout", [name for name in FORMATS if not name.startswith(("rocketmq", "tubemq"))]
)
def test_the_files_of_the_recorded_run_are_those_of_the_format(layout: str) -> None:
    cells = [
        (cell, asked)
        for cell, asked in _appends(layout, "append", "batch", "idle")
        if cell["files"] is not None
    ]
    assert cells
    for cell, asked in cells:
        reached = min(asked.places, asked.messages)
        derived = FORMATS[layout].files(asked)
        # At most: few messages do not reach every partition, and nothing has rolled yet.
        assert cell["files"] <= derived * 1.02 + 1, cell
        if reached == asked.places and cell["work"] == "append":
            assert cell["files"] >= derived * 0.6 - 20, cell


@pytest.mark.parametrize(
    "layout", ["tubestore", "rocketcompat", "kafka-format", "lmdb", "raw-file", "kafka-3.9"]
)
def test_the_bytes_of_a_message_in_the_recorded_run_are_those_of_the_format(layout: str) -> None:
    work = "append" if layout.startswith("kafka") else "batch"
    cells = [(c, q) for c, q in _appends(layout, work) if c["durability"] == "page_cache"]
    cells = [(cell, asked) for cell, asked in cells if asked.places <= 10]
    assert cells
    for cell, asked in cells:
        counted = cell["disk_bytes"] / cell["messages"]
        assert counted == pytest.approx(FORMATS[layout].kept(asked.body), rel=0.03), cell


@pytest.mark.parametrize(
    "layout",
    ["tubestore", "rocketcompat", "kafka-format", "lmdb", "raw-file", "raw-map", "random-writes",
     "kafka-3.9", "rocketmq-4.9.8", "rocketmq-5.3.3"],
)  # fmt: skip
def test_the_system_calls_of_the_recorded_run_are_those_of_the_format(layout: str) -> None:
    counted = [
        (cell["calls_each"], FORMATS[layout].need(cell["work"], asked))
        for cell, asked in _appends(layout, "append")
        if cell["calls_each"] is not None
    ]
    assert counted
    for calls, needed in counted:
        assert needed is not None
        # Waking threads, which no format needs, is up to one call a message.
        assert needed.calls * 0.9 - 0.01 <= calls <= needed.calls * 1.1 + 1
