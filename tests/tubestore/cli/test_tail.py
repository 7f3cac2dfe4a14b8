"""`tubestore tail`: the last messages, and those that come."""

from __future__ import annotations

import base64
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.tube_cli import COMMAND, ENVIRONMENT, Cli, Result
from tests.support.tube_cli import cli as cli


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of two shards with 30 numbered messages, every third with a filter item."""
    with tubestore.open(tmp_path / "s") as store:
        topic = store.create_topic("t", partitions=2, stores=2)
        for number in range(30):
            topic.append(
                b"line %d" % number,
                partition=[0, 1, 10_000, 10_001][number % 4],
                received_time=1_700_000_000_000 + number,
                filter_item="third" if number % 3 == 0 else None,
            )
    return tmp_path / "s"


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [int(base64.b64decode(row["body"]).split()[1]) for row in rows]


def test_the_last_messages_of_a_topic_are_those_received_last(cli: Cli, root: Path) -> None:
    assert numbers(cli.json("tail", root, "t")) == list(range(20, 30))
    assert numbers(cli.json("tail", root, "t", "-n", 3)) == [27, 28, 29]
    assert numbers(cli.json("tail", root, "t", "-n", 1000)) == list(range(30))
    assert cli.json("tail", root, "t", "-n", 0) == []


def test_the_last_messages_of_a_partition_or_a_filter(cli: Cli, root: Path) -> None:
    assert numbers(cli.json("tail", root, "t", "-p", 10_000, "-n", 2)) == [22, 26]
    assert numbers(cli.json("tail", root, "t", "--filter-item", "third", "-n", 2)) == [24, 27]
    both = ("-p", 1, "--filter-item", "third", "-n", 5)
    assert numbers(cli.json("tail", root, "t", *both)) == [9, 21]


def test_nothing_of_a_store_acts_on_the_terminal(cli: Cli, tmp_path: Path) -> None:
    escape = "\x1b]0;title\x07\u202e"
    with tubestore.open(tmp_path) as store:
        store.create_topic("t").append(
            escape.encode(), key="k", filter_item=escape, attributes={"a": escape}
        )
    for words in (
        ["tail", tmp_path, "t"],
        ["read", tmp_path, "t"],
        ["dump", tmp_path],
        ["tail", tmp_path, escape],
        ["read", tmp_path, "t", "--format", escape],
    ):
        done = cli(*words)
        text = done.out.decode() + done.err
        assert "\\x1b]0;title\\x07\\u202e" in text
        assert all(character.isprintable() for character in text.replace("\n", ""))


def test_text_is_a_line_a_message(cli: Cli, root: Path) -> None:
    result = cli("tail", root, "t", "-n", 2)
    assert result.code == 0
    first, last = result.out.decode().splitlines()
    assert first.endswith(" 0@392 line 28")
    assert " 1@" in last
    assert "[third]" in cli("tail", root, "t", "-n", 3).out.decode()


def test_mistakes_are_reported_without_a_traceback(cli: Cli, root: Path) -> None:
    assert cli("tail", root, "t", "-p", 7).code == 2
    assert cli("tail", root, "nothing").code != 0
    refused = cli("tail", root, "t", "-f", "--format", "arrow", "-o", root / "x")
    assert (refused.code, "text, jsonl or csv" in refused.err) == (2, True)


@pytest.mark.gate
def test_following_shows_what_another_process_appends(root: Path) -> None:
    arguments = ["tail", root, "t", "-n", 1, "-f", "--format", "jsonl"]
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        with ThreadPoolExecutor(1) as threads:
            line = threads.submit(process.stdout.readline).result(30)
            assert numbers([json.loads(line)]) == [29]
            with tubestore.open(root) as store:
                for partition in (0, 10_001):
                    store["t"].append(b"line 99", partition=partition)
            for _ in range(2):
                line = threads.submit(process.stdout.readline).result(30)
                assert numbers([json.loads(line)]) == [99]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "soon"])
def test_a_time_span_that_is_none_is_refused_before_anything_is_printed(
    cli: Cli, root: Path, seconds: str
) -> None:
    refused = cli("tail", root, "t", "-f", "--idle-timeout", seconds)
    assert (refused.code, refused.out) == (2, b"")
    assert "--idle-timeout" in refused.err


def test_a_time_span_is_a_number_of_seconds_or_has_a_unit(cli: Cli, root: Path) -> None:
    for given in ("0.001", "1ms"):
        assert len(cli.json("tail", root, "t", "-n", 2, "-f", "--idle-timeout", given)) == 2
    refused = cli("tail", root, "t", "-f", "--idle-timeout", "soon")
    assert "'soon': seconds, or a text such as 500ms or 2m" in refused.err


def test_following_ends_when_nothing_came_for_a_while(cli: Cli, root: Path) -> None:
    rows = cli.json("tail", root, "t", "-n", 2, "-f", "--idle-timeout", 0)
    assert numbers(rows) == [28, 29]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--filter-item", "nope"], ": none of 30 has filter item 'nope'"),
        (["-p", 1, "--filter-item", "nope"], ": none of 8 has filter item 'nope'"),
        (["-f", "--idle-timeout", 0, "--filter-item", "nope"],
         ": none of 30 has filter item 'nope'"),
        (["-f", "--idle-timeout", 0, "-n", 0], ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("format", ["text", "jsonl"])
def test_a_tail_that_has_shown_nothing_says_so_to_people(
    cli: Cli, root: Path, words: list[object], reason: str, format: str
) -> None:
    shown = f"no such messages{reason}\n" if format == "text" else ""
    assert cli("tail", root, "t", *words, "--format", format) == Result(0, b"", shown)


def test_no_lines_are_no_reason_to_say_that_there_are_none(cli: Cli, root: Path) -> None:
    assert cli("tail", root, "t", "-n", 0) == Result(0, b"", "")
