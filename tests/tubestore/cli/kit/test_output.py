"""Rows in the format that was asked for: exact numbers, CSV, Arrow, Parquet, a whole file."""

from __future__ import annotations

import base64
import csv
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tubestore
from tests.support.tube_cli import Cli, Result
from tests.support.tube_cli import cli as cli
from tests.support.tube_cli import root as root


def test_big_integers_are_exact_or_strings(cli: Cli, root: Path) -> None:
    row = cli.json("read", root, "t", "-n", 1)[0]
    assert isinstance(row["msg_id"], int)
    assert row["msg_id"] > 1 << 53
    text = cli.json("read", root, "t", "-n", 1, "--int64", "string")[0]
    assert text["msg_id"] == str(row["msg_id"])
    assert text["received_time"] == str(row["received_time"])
    assert text["partition"] == row["partition"]


def test_bodies_are_text_with_an_option_and_come_back_so(cli: Cli, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    bodies = ["grün\n".encode(), b"\xff", b'"'.ljust(3)]
    lines = [json.dumps({"body": base64.b64encode(body).decode()}) for body in bodies]
    append = ("append", "--partitions", 1, "-i", "jsonl")
    cli(*append, first, "t", stdin="\n".join(lines).encode())
    shown = cli("read", first, "t", "-f", "jsonl", "--text")
    assert [row.get("text") for row in shown.rows] == ["grün\n", None, '"  ']
    assert [row.get("body") for row in shown.rows] == [None, "/w==", None]
    cli(*append, second, "t", stdin=shown.out)
    with tubestore.open(second, mode="r") as store:
        assert [message.body for message in store["t"].messages(0)] == bodies


def test_csv_has_a_header_and_base64bodies_in(cli: Cli, root: Path) -> None:
    result = cli("read", root, "t", "-p", 0, "--format", "csv")
    rows = list(csv.DictReader(result.out.decode().splitlines()))
    assert len(rows) == 250
    assert base64.b64decode(rows[0]["body"]).startswith(b"line ")


@pytest.mark.parametrize(("command", "time"), [("read", "timestamp"), ("dump", "int64")])
def test_arrow_and_parquet_go_into_the_file_of_o(
    cli: Cli, root: Path, tmp_path: Path, command: str, time: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = (command, root, "t") if command == "read" else (command, root)
    for format in ("arrow", "parquet"):
        file = tmp_path / f"{command}.{format}"
        assert cli(*start, "--format", format, "-o", file) == Result(0, b"", "")
        table = pq.read_table(file) if format == "parquet" else pa.ipc.open_stream(file).read_all()
        assert table.num_rows == 1000
        assert str(table.schema.field("received_time").type).startswith(time)
        result = cli(*start, "--format", format, "-o", file, "-n", 7)
        assert json.loads(result.err)["truncated"]
        piped = cli(*start, "--format", format)
        assert (piped.code, piped.out) == (0, cli(*start, "-f", format, "-o", "-").out)
        with monkeypatch.context() as shown:
            shown.setattr(sys.stdout, "isatty", lambda: True)
            refused = cli(*start, "--format", format)
        assert (refused.code, refused.out) == (2, b"")
        assert "-o" in refused.err
        assert piped.out[:4] == (b"PAR1" if format == "parquet" else b"\xff" * 4)


def test_a_file_of_o_appears_whole_or_not_at_all(cli: Cli, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "out"
    assert cli("read", root, "absent", "-o", file).code == 1
    assert not list(tmp_path.glob("out*"))
    assert cli("stat", root, "-o", file).code == 0
    assert file.read_text().startswith("topic")
