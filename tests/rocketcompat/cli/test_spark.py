"""`rocketcompat spark JOB`, as far as it needs no Spark."""

from __future__ import annotations

from pathlib import Path

from tests.spark.rocket_stores import write_rocket_store
from tests.spark.stores import write_store
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture as command_fixture


def test_the_command_names_which_way_it_goes_and_what_it_would_read(
    tmp_path: Path, command: Command
) -> None:
    write_store(tmp_path / "tube", {"logs": 30})
    write_rocket_store(tmp_path / "log", 50)
    there = command("spark", "convert", tmp_path / "log", tmp_path / "new", "--dry-run")
    back = command("spark", "convert", tmp_path / "tube", tmp_path / "new", "--dry-run")
    assert (there.code, back.code) == (0, 0)
    assert "bytes of CommitLog" in there.out
    assert "30 messages" in back.out
    assert not (tmp_path / "new").exists()
