"""Records that a command chose, in every format."""

from __future__ import annotations

import base64
import csv
import io
import json
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command import Command
from tests.support.golden import Golden
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.files.commands import _program
from tests.support.rocket.files.commands import basic_fixture as basic_fixture


def test_64_bit_integers_can_be_strings(basic: Golden, command: Command) -> None:
    (row, *_) = command("dump", basic.store, "-f", "jsonl", "--int64", "string").rows
    assert (row["physical_offset"], row["queue_id"]) == ("0", 0)
    (answer,) = command(
        "get", basic.store, "-t", "LogA", "-q", 0, "--offset", 1, "-f", "jsonl", "--int64", "string"
    ).rows
    assert answer["queue_offsets"][0] == "1"
    assert answer["messages"][0]["store_timestamp"].isdigit()


def test_csv_and_text_have_a_header_and_the_same_rows(basic: Golden, command: Command) -> None:
    rows = command("dump", basic.store, "-f", "jsonl").rows
    table = list(csv.DictReader(io.StringIO(command("dump", basic.store, "-f", "csv").out)))
    assert [row["body"] for row in table] == [row["body"] for row in rows]
    assert json.loads(table[0]["properties"]) == rows[0]["properties"]
    lines = command("queues", basic.store).out.splitlines()
    assert lines[0].split() == ["topic", "queue_id", "min_offset", "max_offset"]
    assert lines[1].split() == ["LogA", "0", "0", "25"]


@pytest.mark.gate
@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_arrow_and_parquet_hold_the_same_rows(
    basic: Golden, command: Command, tmp_path: Path, format: str
) -> None:
    rows = command("dump", basic.store, "-f", "jsonl").rows
    path = tmp_path / "out"
    with path.open("wb") as file:
        subprocess.run(_program("dump", basic.store, "-f", format), stdout=file, check=True)
    if format == "arrow":
        with pa.OSFile(str(path)) as source:
            table = pa.ipc.open_stream(source).read_all()
    else:
        table = pq.read_table(path)
    assert table["physical_offset"].to_pylist() == [row["physical_offset"] for row in rows]
    assert table["body"].to_pylist() == [base64.b64decode(row["body"]) for row in rows]
    assert dict(table["properties"][0].as_py()) == rows[0]["properties"]


@pytest.mark.parametrize("args", [["dump"], ["dump", "-f", "csv"], ["tail"], ["export"]])
def test_a_search_of_the_log_for_a_topic_that_is_not_there_lists_those_that_are(
    basic: Golden, command: Command, tmp_path: Path, args: list[str]
) -> None:
    out = ["--out", tmp_path / "x.jsonl"] if args == ["export"] else []
    done = command(args[0], basic.store, "--topic", "LogX", *args[1:], *out)
    assert done.code == 1
    assert "no topic 'LogX' in this store; did you mean 'Log" in done.err
    assert "there are: Log" in done.err
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize("name", ["dump", "tail", "export"])
def test_a_search_of_the_log_without_a_find_prints_that(
    basic: Golden, command: Command, tmp_path: Path, name: str
) -> None:
    out = ["--out", tmp_path / "x.jsonl"] if name == "export" else []
    done = command(name, basic.store, "--topic", "LogA", "--grep", "no such words", *out)
    assert (done.code, done.out) == (0, "")
    assert done.err == "no such records in the log\n"


def test_a_log_without_queues_names_no_topics(
    basic: Golden, command: Command, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(basic.store, root)
    shutil.rmtree(root / "consumequeue")
    done = command("dump", root, "--topic", "LogX")
    assert (done.code, done.err) == (0, "no such records in the log\n")


@pytest.mark.parametrize(
    "args",
    [
        ("dump", "--start"),
        ("query", "-t", "LogA", "-k", "k", "--end"),
        ("offset-by-time", "-t", "LogA", "-q", 0, "--time"),
    ],
)
def test_a_time_that_looks_like_seconds_is_named(
    basic: Golden, command: Command, args: tuple[object, ...]
) -> None:
    done = command(args[0], basic.store, *args[1:], 1_700_000_000)
    assert f"rocketcompat: {str(args[-1])[2:]} = 1700000000 is 1970-01-20T16:13:20Z" in done.err
