"""The queue offset of a point in time."""

from __future__ import annotations

from typing import Any

import pytest

from rocketcompat.reading.times import offset_by_time
from tests.support.command import Command
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture


@pytest.mark.gate
@pytest.mark.parametrize("version", ROCKET_VERSIONS)
@pytest.mark.parametrize("scenario", ["basic", "keys-tags", "crash", "ipv6", "rolled"])
def test_an_offset_by_time_is_what_the_real_classes_answer(
    golden: GoldenFactory, command: Command, version: str, scenario: str
) -> None:
    real = golden("rocketmq", version, scenario)
    times = {
        (row["queue"], row["index"]): row["storeTimestamp"] for row in real.expected(type="message")
    }
    compared = 0
    for row in real.queries(type="byTime"):
        if "offset" not in row:
            continue
        done = command("offset-by-time", real.store, "-t", row["topic"], "-q", row["queueId"],
                       "--time", row["time"], "-o", f"compat={version}", "-f", "jsonl")  # fmt: skip
        queue = f"{row['topic']}/{row['queueId']}"
        found, theirs = done.rows[0]["queue_offset"], row["offset"]
        mine, other = (times.get((queue, offset)) for offset in (found, theirs))
        if scenario in ("rolled", "keys-tags") and version == "4.9.8" and found != theirs:
            # It looks into one of several files, by its time, which is not the right one.
            assert abs(mine - row["time"]) <= abs(other - row["time"])
        elif version == "4.9.8":
            assert mine == other, row  # of messages of one ms any
        else:
            assert found == theirs, row
        compared += 1
    assert compared


@pytest.mark.parametrize(
    ("boundary", "answers"),
    [("lower", [0, 0, 1, 4, 5]), ("upper", [0, 0, 0, 3, 4]), ("nearest", [0, 0, 0, 4, 4])],
)
def test_what_a_boundary_means(boundary: Any, answers: list[int]) -> None:
    times = [10, 20, 20, 20, 40]
    asked = [5, 10, 15, 35, 99]
    found = [offset_by_time(0, 5, time, boundary, times.__getitem__) for time in asked]
    assert found == answers
    assert offset_by_time(7, 7, 15, boundary, times.__getitem__) == 7


def test_the_nearest_of_messages_some_of_which_cannot_be_read() -> None:
    for holes in range(1 << 5):
        times = [None if holes >> i & 1 else 10 * i for i in range(5)]
        known = [time for time in times if time is not None]
        for time in range(-4, 50, 3):
            found = offset_by_time(0, 5, time, "nearest", times.__getitem__)
            counted = next((t for t in times[found:] if t is not None), None)
            if known:
                assert counted is not None
                assert abs(counted - time) == min(abs(t - time) for t in known)
