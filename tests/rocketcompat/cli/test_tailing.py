"""`rocketcompat tail`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcompat import Message
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.selected import put


def test_the_command_prints_a_line_a_message(tmp_path: Path, command: Command) -> None:
    put(tmp_path, [Message("T", f"line {n}\n".encode(), tags="t", queue_id=2) for n in range(20)])
    lines = command("tail", tmp_path, "-n", 2).out.splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "T/2@18 [t] line 18\\n", "T/2@19 [t] line 19\\n"
    ]  # fmt: skip
    rows = command("tail", tmp_path, "-n", 3, "--format", "jsonl").rows
    assert [row["queue_offset"] for row in rows] == [17, 18, 19]
    done = command("tail", tmp_path, "-f", "--idle-timeout", 0, "-n", 1)
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    done = command("tail", tmp_path, "-f", "--format", "parquet")
    assert (done.code, done.err.count("\n")) == (2, 1)


def test_nothing_of_a_store_acts_on_the_terminal(tmp_path: Path, command: Command) -> None:
    escape = "\x1b]0;title\x07\u202e"
    message = Message("T", escape.encode(), tags=escape, keys="key", properties={escape: escape})
    put(tmp_path, [message])
    one = ("-t", "T", "-q", 0, "--offset", 0)
    for words in (
        ["tail"],
        ["dump"],
        ["query", "-t", "T", "-k", "key"],
        ["get", *one],
        ["decode", *one],
        ["cq", "-t", escape],
        ["lag", "-g", escape],
        ["dump", "--start", escape],
        ["info", "-o", f"maxIndexNum={escape}"],
    ):
        done = command(words[0], tmp_path, *words[1:])
        text = done.out + done.err
        assert "\\x1b]0;title\\x07\\u202e" in text
        assert all(character.isprintable() for character in text.replace("\n", ""))


def test_an_interrupt_ends_following_quietly(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, [Message("T", b"x")])

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    done = command("tail", tmp_path, "-f")
    assert (done.code, done.err, len(done.out.splitlines())) == (130, "", 1)
