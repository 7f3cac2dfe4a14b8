"""`rocketcompat decode`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocketcompat.cli.decoding import MESSAGE_COLUMNS
from rocketcompat.inspect.decode import (
    MESSAGE_FIELDS,
)
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.decoded import demo_fixture as demo_fixture


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["/nowhere", "--commitlog-offset", 0], 3, "no such file"),
        (["STORE"], 2, "--commitlog-offset, or"),
        (["STORE", "--topic", "t", "--queue", 1], 2, "--commitlog-offset, or"),
        (["STORE", "--topic", "t", "--commitlog-offset", 1], 2, "--commitlog-offset, or"),
        (["STORE", "-t", "nope", "-q", 1, "--offset", 0], 3, "no such queue"),
    ],
)
def test_mistakes_are_one_line(
    demo: Path, command: Command, arguments: list[Any], code: int, said: str
) -> None:
    done = command("decode", *(demo if a == "STORE" else a for a in arguments))
    assert done.code == code
    assert said in done.err
    assert done.err.count("\n") == 1


def test_the_command_shows_every_field() -> None:
    assert [c.name for c in MESSAGE_COLUMNS[: len(MESSAGE_FIELDS)]] == list(MESSAGE_FIELDS)
