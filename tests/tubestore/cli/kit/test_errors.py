"""How a command of `tubestore` ends: exit codes, mistakes, pipes, interrupts (decisions.md D16)."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.tube_cli import COMMAND, ENVIRONMENT, Cli, bodies_in
from tests.support.tube_cli import cli as cli
from tests.support.tube_cli import root as root


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nonsense",), 2, "nonsense"),
        (("read", "{root}"), 2, "TOPIC"),
        (("read", "{root}", "t", "--offset", "x"), 2, "--offset"),
        (("read", "{root}", "t", "--offset", "28"), 2, "--partition"),
        (("read", "{root}", "t", "-p", "4"), 2, "partition 4: topic 't' has partitions 0 to 3"),
        (("read", "{root}", "t", "-p", "0", "--offset", "28000028"), 3, "outside"),
        (("read", "{root}", "absent"), 1, "no topic 'absent' in this store; there are: t"),
        (("tail", "{root}", "absent"), 1, "there are: t"),
        (("append", "{root}", "absent", "/dev/null"), 2, "--partitions"),
        (("append", "{root}", "t", "/nowhere"), 3, "/nowhere: No such file"),
        (("append", "{root}/absent", "t"), 3, "no such directory"),
        (("append", "{root}", "t", "--partitions", "5"), 3, "4 partitions"),
        (("create", "{root}", "t"), 3, "exists"),
        (("create", "{root}", "a/b"), 2, "a/b"),
        (("create", "{root}", "x", "--partitions", "0"), 2, "--partitions"),
        (("dump", "{root}/t-0"), 3, "directory above"),
        (("stat", "{root}/absent"), 3, "no such directory"),
        (("check", "{root}/absent"), 3, "no such directory"),
        *(
            ((command, "{root}", "-t", "absent"), 1, "no topic 'absent'")
            for command in ("stat", "check", "repair", "dump")
        ),
        *(
            ((command, "{root}", "--store-id", "9"), 1, "no shard 9; there are: t-0")
            for command in ("stat", "check", "repair", "dump")
        ),
        *(
            ((command, __file__), 3, "this is a file; a store is a directory")
            for command in ("stat", "check", "dump", "topics", "recover")
        ),
        (("change", "{root}", "absent", "--partitions", "9"), 1, "there are: t"),
        (("delete", "{root}", "absent", "--yes"), 1, "there are: t"),
        (("retention", "{root}", "-t", "absent"), 1, "there are: t"),
        (("read", "{root}", "t", "--store-id", "7"), 2, "topic 't' has store 0 only"),
        (("append", "{root}", "t", "-i", "jsonl", __file__), 2, "line 1: not JSON: "),
        (("read", "{root}", "t", "-f", "xml"), 2, "'--format' / '-f': 'xml' is not one of"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_its_exit_code(
    cli: Cli, root: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = cli(*(a.format(root=root) for a in arguments))
    assert (result.code, result.out) == (code, b"")
    assert words in result.err
    assert result.err.startswith("tubestore: ")
    assert result.err.count("\n") == 1


def test_an_internal_error_is_one_line_and_a_saved_traceback(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("tubestore.cli.inspect.stat", fail)
    result = cli("stat", root)
    assert (result.code, result.out) == (4, b"")
    path = Path(result.err.split("traceback in ")[1].strip().rstrip(")"))
    assert "RuntimeError: a bug" in path.read_text()
    path.unlink()


@pytest.mark.gate
@pytest.mark.parametrize("format", ["text", "jsonl", "csv"])
def test_a_reader_that_closes_the_pipe_ends_it_quietly(root: Path, format: str) -> None:
    command = [*COMMAND, "dump", str(root), "--format", format]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=-1, stderr=-1) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(20) == 0


def _hear_interrupts() -> None:
    """What a shell starts in the background ignores them, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.gate
def test_an_interrupt_ends_with_130_and_keeps_what_was_appended(tmp_path: Path) -> None:
    command = [*COMMAND, "append", str(tmp_path / "s"), "t", "--partitions", "1"]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdin=-1, stdout=-1, stderr=-1, preexec_fn=_hear_interrupts
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdin.write(b"kept\n")
        child.stdin.flush()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not bodies_in(tmp_path / "s"):
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130
        assert child.stdout.read() == b""
        assert child.stderr.read().strip() == b""
    assert bodies_in(tmp_path / "s") == [b"kept"]


@pytest.mark.gate
@pytest.mark.parametrize(("closed", "command", "code"), [
    (">&-", "stat", 3), (">&-", "check", 0), (">&-", "dump -f jsonl", 3), ("2>&-", "stat", 0),
    ("<&-", "stat", 0), ("<&- >&- 2>&-", "check", 0),
])  # fmt: skip
def test_a_stream_that_is_closed_from_the_start_is_no_traceback(
    root: Path, closed: str, command: str, code: int
) -> None:
    name, *options = command.split()
    line = f'exec "$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", line, "sh", *COMMAND, name, str(root), *options],
        env=ENVIRONMENT, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
    assert done.stderr.count(b"\n") <= 1


def test_a_warning_is_one_line_without_its_place_in_the_code(cli: Cli, root: Path) -> None:
    result = cli("read", root, "t", "--start", "1700000000", "-n", "0")
    (line, _) = result.err.splitlines()
    assert line.startswith("tubestore: start = 1700000000 is 1970-01-20T16:13:20Z, as numbers")


def test_a_file_to_write_into_a_directory_that_is_not_there(cli: Cli, root: Path) -> None:
    result = cli("read", root, "t", "-o", root / "none" / "x.csv", "-f", "csv")
    assert (result.code, result.out) == (2, b"")
    assert result.err == f"tubestore: {root}/none/x.csv: there is no directory {root}/none\n"


def test_a_file_without_rights_names_the_user_and_the_owner(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(root))

    monkeypatch.setattr("tubestore.cli.inspect.stat", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    owner = root.owner()
    line = f"tubestore: {root}: Permission denied to user 4000000000; it belongs to {owner}\n"
    assert cli("stat", root).err == line
