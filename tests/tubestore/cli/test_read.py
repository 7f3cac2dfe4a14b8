"""`tubestore read`: pages, bounds, and where the next listing goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tubestore
from tests.support.tube_cli import Cli, Result
from tests.support.tube_cli import cli as cli
from tests.support.tube_cli import root as root


def test_a_cut_listing_reports_it_and_the_next_one_goes_on_there(
    cli: Cli, root: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    result = cli("read", root, "t", "-p", 1, "-n", 100, "-f", "jsonl", "--summary", note)
    said = json.loads(result.err)
    assert (len(result.rows), result.code) == (100, 0)
    assert (said["truncated"], said["scanned"]) == (True, 100)
    assert json.loads(note.read_text()) == said
    rest = cli("read", root, "t", "-p", 1, "--offset", said["next"], "-f", "jsonl")
    assert (len(rest.rows), rest.err) == (150, "")
    assert result.rows + rest.rows == cli.json("read", root, "t", "-p", 1)


@pytest.mark.parametrize("command", ["read", "dump"])
def test_a_cut_listing_of_a_shard_goes_on_too(cli: Cli, root: Path, command: str) -> None:
    start = (command, root, "t") if command == "read" else (command, root)
    whole = cli.json(*start)
    result = cli(*start, "-n", 999, "-f", "jsonl")
    said = json.loads(result.err)["next"]
    rest = cli.json(*start, "--store-id", said["store_id"], "--offset", said["offset"])
    assert result.rows + rest == whole


def test_an_empty_read_and_an_empty_dump_are_done(cli: Cli, root: Path, tmp_path: Path) -> None:
    for result in (
        cli("read", root, "t", "-p", 0, "--offset", "latest", "-f", "jsonl"),
        cli("read", root, "t", "--start", "2100-01-01T00:00:00Z", "-f", "jsonl"),
    ):
        assert result == Result(0, b"", "")
    assert cli("create", tmp_path / "new", "t").code == 0
    assert cli("read", tmp_path / "new", "t", "-f", "jsonl") == Result(0, b"", "")
    (tmp_path / "empty").mkdir()
    assert cli("dump", tmp_path / "empty", "-f", "jsonl") == Result(0, b"", "")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--filter-item", "nope"], ": none of 1000 has filter item 'nope'"),
        (["--filter-item", "a", "--filter-item", "b"], ": none of 1000 has filter item 'a' or 'b'"),
        (["-p", 1, "--filter-item", "nope"], ": none of 250 has filter item 'nope'"),
        (["-p", 1, "--offset", 28 * 500, "--end", "-2h"],
         ": none of 125 was received in this time"),
        (["--store-id", 0, "--offset", 28 * 900, "--filter-item", "a", "--start", "-2h"],
         ": none of 100 has filter item 'a' and was received in this time"),
        (["-p", 1, "--offset", "latest"], ""),
    ],
)  # fmt: skip
def test_what_has_no_such_message_is_described_with_how_many_there_are(
    cli: Cli, root: Path, words: list[object], reason: str
) -> None:
    assert cli("read", root, "t", *words) == Result(0, b"", f"no such messages{reason}\n")


@pytest.mark.parametrize("command", ["read", "dump"])
def test_the_time_of_a_message_is_shown_to_people_and_a_number_for_programs(
    cli: Cli, tmp_path: Path, command: str
) -> None:
    with tubestore.open(tmp_path / "s") as store:
        store.create_topic("t").append(b"x", received_time=1_700_000_000_123)
    words = [command, tmp_path / "s", *(["t"] if command == "read" else [])]
    assert "  2023-11-14T22:13:20.123Z  " in cli(*words).out.decode()
    (row,) = cli.json(*words)
    assert row["received_time"] == 1_700_000_000_123
    assert b",1700000000123," in cli(*words, "-f", "csv").out


def test_times_bound_a_read(cli: Cli, tmp_path: Path) -> None:
    lines = "\n".join(
        json.dumps({"text": str(n), "received_time": 1_767_225_600_000 + n}) for n in range(10)
    )
    root = tmp_path / "s"
    cli("append", root, "t", "-i", "jsonl", "--partitions", 1, stdin=lines.encode())
    for start, end, count in [
        ("1767225600003", "1767225600005", 2),
        ("2026-01-01T01:00:00.003+01:00", "2026-01-01T00:00:00.005Z", 2),
        ("2026-01-01T00:00:00Z", "-2h", 10),
    ]:
        assert len(cli.json("read", root, "t", "--start", start, "--end", end)) == count
    for wrong in ("2026-01-01", "yesterday"):
        result = cli("read", root, "t", "--start", wrong)
        assert (result.code, result.out) == (2, b"")


@pytest.mark.parametrize(
    "words", [["read", "x"], ["tail", "x"], ["consume", "x"], ["dump", "-t", "x"]]
)
def test_in_an_empty_directory_there_is_no_store_and_that_is_named(
    cli: Cli, tmp_path: Path, words: list[str]
) -> None:
    result = cli(words[0], tmp_path, *words[1:])
    text = f"tubestore: no topic 'x': {tmp_path} is empty, there is no store\n"
    assert result == Result(1, b"", text)
    with tubestore.open(tmp_path):
        pass
    assert cli("read", tmp_path, "x").err == "tubestore: no topic 'x' in this store\n"
