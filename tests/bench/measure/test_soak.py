"""Single appends for minutes: what is counted, and how the command shows it."""

from __future__ import annotations

import json
import time
from array import array
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from bench.commands import main
from bench.measure import soak
from bench.measure.soak import SLOW_NS, Soak


def busy(nanoseconds: int) -> None:
    end = time.perf_counter_ns() + nanoseconds
    while time.perf_counter_ns() < end:
        pass


def test_messages_behind_a_slow_call_count_with_their_delay() -> None:
    slow, taken = 40 * SLOW_NS, []

    def append(body: bytes, *, partition: int) -> None:
        if not taken:
            busy(slow)
        taken.append((body, partition))

    found = Soak(1, 1, 1000.0, 0.05, array("q"), [])
    soak._by_schedule(found, cycle([(append, 3)]), cycle([b"x"]))
    assert taken == [(b"x", 3)] * 50
    assert min(found.waits[n] + n * SLOW_NS for n in range(40)) >= slow
    took, on_processor = found.slow[0]
    assert took >= slow
    assert 0 < on_processor < took + SLOW_NS  # its clock is read before and after the other one


def test_at_full_speed_each_call_counts_by_itself() -> None:
    taken = []

    def append(body: bytes, *, partition: int) -> None:
        taken.append(body)
        busy(2 * SLOW_NS)

    found = Soak(1, 1, 0.0, 0.02, array("q"), [])
    soak._at_full_speed(found, cycle([(append, 0)]), cycle([b"x"]))
    assert len(found.waits) == len(taken) == len(found.slow)
    assert sum(found.waits) <= found.seconds * 1e9
    row = found.row()
    assert row["slow_calls"] == len(taken)
    assert row["slow_on_processor"] > 0


def test_the_command_measures_each_shape_twice(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out.jsonl"
    given = ["soak", "--dir", str(tmp_path), "--seconds", "0.05", "--output", str(out)]
    assert main([*given, "--shape", "2x3"]) == 0
    _, *rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [bool(row["asked"]) for row in rows] == [False, True]
    assert all(row["rate"] and row["p50_us"] and row["histogram"] for row in rows)
    assert "2 × 3, by schedule" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [out], "the runs left their files"


@pytest.mark.parametrize(
    "given", [["--share", "0"], ["--share", "2"], ["--seconds", "x"], ["--shape", "3"]]
)
def test_a_wrong_argument_is_refused(given: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["soak", *given])
    assert "Traceback" not in capsys.readouterr().err


def test_a_directory_that_is_not_there_is_named(tmp_path: Path, capsys: Any) -> None:
    assert main(["soak", "--dir", str(tmp_path / "none")]) == 2
    assert "none: no such directory" in capsys.readouterr().err
