"""What a command prints for people: no colours and no control characters."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.support.tube_cli import Cli
from tests.support.tube_cli import cli as cli
from tubestore.cli.kit.output import Format, Int64, Output, emit_rows
from tubestore.cli.kit.text import Column, write_text


def test_text_has_no_colours_and_no_control_characters(cli: Cli, tmp_path: Path) -> None:
    cli("append", tmp_path / "s", "t", "--partitions", 1, stdin=b"\x1b[31mred\x07\n")
    result = cli("read", tmp_path / "s", "t")
    assert b"\x1b" not in result.out
    assert b"red" in result.out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (20, ["name        place", "first  0123456789"]),
        (15, ["-- 1", "name   first", "place  0123456789"]),
    ],
)
def test_a_row_that_does_not_fit_the_terminal_is_a_block_of_lines(
    width: int, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", shown)
    columns = (Column("name"), Column("place", "int64"))
    write_text([{"name": "first", "place": "0123456789"}], columns)
    assert shown.getvalue().splitlines() == lines


def test_times_ages_and_sizes_are_printed_as_people_read_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = (Column("at", "ms"), Column("age", "age"), Column("size", "size"))
    rows = [{"at": 1_700_000_000_123, "age": 604_800_000, "size": 10 << 30}, {}]
    write_text(rows, columns)
    assert capsys.readouterr().out.splitlines() == [
        "                      at  age    size",
        "2023-11-14T22:13:20.123Z   7d  10 GiB",
        "                       -    -       -",
    ]


@pytest.mark.parametrize(("format", "out"), [
    (Format.JSONL, '{"at":1,"age":2,"size":3}\n'),
    (Format.CSV, "at,age,size\n1,2,3\n"),
])  # fmt: skip
def test_times_ages_and_sizes_are_numbers_for_programs(
    format: Format, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = (Column("at", "ms"), Column("age", "age"), Column("size", "size"))
    row = {"at": 1, "age": 2, "size": 3}
    emit_rows([row], columns, Output(format))
    emit_rows([row], columns, Output(Format.JSONL, Int64.STRING))
    assert capsys.readouterr().out == out + '{"at":"1","age":"2","size":"3"}\n'


def test_a_list_is_printed_as_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    write_text([{"by": ["a", "b"], "at": [1, None]}], (Column("by"), Column("at", "int64s")))
    assert capsys.readouterr().out.splitlines() == ["by    at", "a, b  1, -"]
