"""`rocketcompat export | import | convert | diff`."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import Command
from tests.support.rocket.cli import command_fixture as command_fixture


def test_a_conversion_of_an_empty_directory_is_refused_and_makes_nothing(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    done = command("convert", tmp_path / "empty", tmp_path / "copy")
    assert (done.code, done.out) == (3, "")
    assert "neither a RocketMQ store nor shards" in done.err
    assert not (tmp_path / "copy").exists()
