"""Queues that a correct recovery would show, beside those on disk."""

from __future__ import annotations

import pytest

from tests.support.command import Command
from tests.support.golden import GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.commands import VERSIONS, records_in_queues


@pytest.mark.parametrize("version", VERSIONS)
def test_phantom_units_are_shown_as_surplus(
    golden: GoldenFactory, command: Command, version: str
) -> None:
    """The real classes serve them as messages (R7)."""
    real = golden("rocketmq", version, "stale-units")
    units = command("cq", real.store, "--format", "jsonl").rows
    surplus = {
        (f"{row['topic']}/{row['queue_id']}", row["queue_offset"])
        for row in units
        if row["state"] == "surplus"
    }
    good = {(row["queue"], row["index"]) for row in records_in_queues(real)}
    phantoms = {(row["queue"], row["index"]) for row in real.expected(type="message")} - good
    assert phantoms
    assert phantoms <= surplus
    for row in command("queues", real.store, "--format", "jsonl").rows:
        name = f"{row['topic']}/{row['queue_id']}"
        assert row["max_offset"] == sum(queue == name for queue, _ in good)


def test_expired_queues_begin_at_their_end(golden: GoldenFactory, command: Command) -> None:
    """As 5.3.3; 4.9.8 keeps min 0 and answers OFFSET_FOUND_NULL."""
    real = golden("rocketmq", "5.3.3", "expired-most")
    rows = command("queues", real.store, "--format", "jsonl").rows
    assert rows == [
        {
            "topic": row["topic"],
            "queue_id": row["queueId"],
            "min_offset": row["minOffset"],
            "max_offset": row["maxOffset"],
        }
        for row in real.expected(type="queue")
    ]
