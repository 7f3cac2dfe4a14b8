"""Batches of a stream are measured for both kinds of sinks, and judged by what became slower."""

from __future__ import annotations

from pathlib import Path

from bench.spark.aged import aging, aging_line


def test_batches_are_measured_for_both_sinks(tmp_path: Path) -> None:
    shards, log = aging(tmp_path, batches=3)
    assert [shards["sink"], log["sink"]] == ["shards", "log"]
    assert shards["files"] > 6
    assert log["files"] > 6
    assert list(tmp_path.iterdir()) == []


def test_a_batch_may_take_a_fifth_of_sparks_own_time_longer() -> None:
    found = {"sink": "log", "batches": 2000, "first_ms": 7, "last_ms": 9, "files": 20}
    assert "47 ms at most (bar 40 ms more than at first: reached)" in aging_line(
        {**found, "longest_ms": 47}
    )
    assert "MISSED" in aging_line({**found, "longest_ms": 48})
