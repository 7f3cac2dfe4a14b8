"""What `tubestore append` reads: lines of a pipe and of files, and JSON Lines."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.tube_cli import COMMAND, ENVIRONMENT, Cli, bodies_in
from tests.support.tube_cli import cli as cli
from tests.support.tube_cli import root as root


def test_json_lines_carry_every_field_and_what_read_and_dump_print_goes_in_again(
    cli: Cli, tmp_path: Path
) -> None:
    given = [
        {"text": "ü", "partition": 3, "filter_item": "f", "attributes": {"k": "v"}},
        {"body": "AP8=", "partition_id": 1, "received_time": 1_700_000_000_123},
        {"text": "x", "partition": 0, "received_time": "2026-01-01T00:00:00Z"},
    ]
    text = "\n".join(map(json.dumps, given)).encode()
    first, second = tmp_path / "1", tmp_path / "2"
    assert cli("append", first, "t", "-i", "jsonl", "--partitions", 4, stdin=text).code == 0
    for command in (("read", first, "t"), ("dump", first)):
        again = cli(*command, "-f", "jsonl").out
        assert cli("append", second, "t", "-i", "jsonl", "--partitions", 4, stdin=again).code == 0
    names = ("partition", "received_time", "body", "key_code", "flag")
    once = [[r[n] for n in names] for r in cli.json("read", first, "t")]
    assert [[r[n] for n in names] for r in cli.json("read", second, "t")] == once * 2
    assert [row[2] for row in once] == ["w7w=", "AP8=", "eA=="]
    assert once[2][1] == 1_767_225_600_000


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 2"),
        (b'{"body": "%"}', "not base64"),
        (b'{"text": "a", "colour": 1}', "unknown field 'colour'"),
        (b'{"partition": 1}', "body (base64) and text"),
        (b'{"text": "a", "partition": "x"}', "line 2"),
        (b'{"text": "a", "partition": 9}', "partition 9"),
        (b'{"text": ""}', "at least one byte"),
        (b'{"text": "a", "attributes": {"a,b": "c"}}', "attribute"),
        (b"[1]", "not a JSON object"),
    ],
)
def test_a_wrong_json_line_is_a_usage_mistake_that_names_the_place(
    cli: Cli, root: Path, line: bytes, words: str
) -> None:
    good = b'{"text": "good", "partition": 0}\n'
    result = cli("append", root, "t", "-i", "jsonl", stdin=good + line)
    assert (result.code, result.out) == (2, b"")
    assert words in result.err
    assert result.err.count("\n") == 1


@pytest.mark.gate
def test_lines_from_a_slow_pipe_are_readable_before_the_pipe_ends(tmp_path: Path) -> None:
    command = [*COMMAND, "append", str(tmp_path / "s"), "t", "--partitions", "1"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=-3) as child:
        assert child.stdin is not None
        child.stdin.write(b"first\n")
        child.stdin.flush()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not bodies_in(tmp_path / "s"):
            time.sleep(0.02)
        assert bodies_in(tmp_path / "s") == [b"first"]
        child.stdin.close()
        assert child.wait(20) == 0
