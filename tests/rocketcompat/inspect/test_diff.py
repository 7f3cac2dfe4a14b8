"""Two stores compared, message by message."""

from __future__ import annotations

import json
from pathlib import Path

import rocketcompat
from rocketcompat import Message
from tests.rocketcompat.repair.test_rebuild import SMALL
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture as command_fixture
from tubestore.clock import ManualClock


def test_diff_shows_what_differs_and_where(tmp_path: Path, command: Command) -> None:
    sent = {
        "a": [Message("T", b"%d" % n, tags="t", born_timestamp=5) for n in range(5)],
        "b": [Message("T", b"%d" % n if n != 2 else b"two", tags="t" if n != 3 else "u",
                      born_timestamp=5) for n in range(6)],
    }  # fmt: skip
    for name, every in sent.items():
        clock = ManualClock()
        with rocketcompat.open(
            tmp_path / name, "w", SMALL, layouts={"consume_queue"}, clock=clock, background=False
        ) as store:
            for message in every:
                store.put_message(message)
    done = command("diff", tmp_path / "a", tmp_path / "b", "-f", "jsonl")
    assert done.code == 1
    shown = [(row["queue_offset"], row["state"], row["fields"]) for row in done.rows]
    assert shown == [
        (2, "different", "body_crc body"), (3, "different", "properties"), (5, "right", None)
    ]  # fmt: skip
    done = command("diff", tmp_path / "b", tmp_path / "a", "-f", "jsonl", "--ignore", "properties",
                   "-n", 1)  # fmt: skip
    assert (done.code, len(done.rows), json.loads(done.err)["truncated"]) == (1, 1, True)
    assert command("diff", tmp_path / "a", tmp_path / "a").code == 0
