"""What a command prints for people: no colours and no control characters."""

from __future__ import annotations

from pathlib import Path

from tests.support.tube_cli import Cli
from tests.support.tube_cli import cli as cli


def test_text_has_no_colours_and_no_control_characters(cli: Cli, tmp_path: Path) -> None:
    cli("append", tmp_path / "s", "t", "--partitions", 1, stdin=b"\x1b[31mred\x07\n")
    result = cli("read", tmp_path / "s", "t")
    assert b"\x1b" not in result.out
    assert b"red" in result.out
