"""How every command ends: mistakes, interrupts, help, an untouched directory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocketcompat.cli.looking import complete_group
from rocketcompat.cli.moving import complete_field
from rocketcompat.cli.options import complete_topic
from tests.support.command import Command
from tests.support.golden import Golden, GoldenFactory
from tests.support.golden import golden_fixture as golden_fixture
from tests.support.rocket.cli import command_fixture as command_fixture
from tests.support.rocket.cli import digest
from tests.support.rocket.files.commands import _program
from tests.support.rocket.files.commands import basic_fixture as basic_fixture
from tubestore.cli.kit import progress


@pytest.mark.parametrize("scenario", ["crash", "stale-units", "torn-half"])
def test_no_command_changes_a_byte(golden: GoldenFactory, command: Command, scenario: str) -> None:
    store = golden("rocketmq", "4.9.8", scenario).store
    before = digest(store)
    command("dump", store)
    command("queues", store)
    command("cq", store, "--trust-queues")
    command("get", store, "--topic", "Topic0", "--queue", 0, "--offset", 0)
    command("query", store, "--topic", "Topic0", "--key", "key0", "--trust-index")
    command("check", store)
    assert digest(store) == before


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["dump", "/nowhere"], 3, "no such directory"),
        (["dump", "."], 3, "no commitlog"),
        (["dump", __file__], 3, "not a directory"),
        (["dump", "STORE/commitlog"], 3, "give the store's root"),
        (["dump"], 2, "ROOT"),
        (["dump", "--nonsense"], 2, "dump --help)"),
        (["dump", "STORE", "--format", "xml"], 2, "xml"),
        (["dump", "STORE", "--option", "x"], 2, "NAME=VALUE"),
        (["dump", "STORE", "--option", "noSuch=1"], 2, "noSuch"),
        (["dump", "STORE", "--conf", "/nowhere"], 3, "/nowhere"),
        (
            ["query", "STORE", "-t", "LogA", "-k", "x", "--start", "yesterday"],
            2,
            "not a valid time",
        ),
        (["query", "STORE", "-t", "LogA", "-k", "x", "--start", "2026-01-01"], 2, "zone"),
        (["get", "STORE", "-t", "nope", "-q", "0", "--offset", "0"], 1, "no topic 'nope'"),
        (["get", "STORE", "-t", "LogA", "-q", "99", "--offset", "0"], 1, "no queue 99 of topic"),
        (["query", "STORE", "-t", "nope", "-k", "x"], 1, "there are: LogA"),
        (["offset-by-time", "STORE", "-t", "nope", "-q", "0", "--time", "0"], 1, "there are: LogA"),
        (["diff", "STORE", "STORE", "--ignore", "nope"], 2, "not a compared field: flag, sys_flag"),
        (["convert", "STORE", "STORE/new"], 3, "lies in the store that it is made of"),
        (["query", "STORE", "-t", "LogA", "-k", "nope"], 1, ""),
        (["cq", "STORE", "-t", "nope"], 1, "no topic 'nope' in this store; there are: LogA"),
        (["cq", "STORE", "-t", "LgA"], 1, "did you mean 'LogA'? there are: LogA"),
        (["cq", "STORE", "-t", "LogA", "-q", "99"], 1, "no queue 99 of topic 'LogA'; there are: 0"),
        (["cq", "STORE", "-q", "99"], 1, "no queue 99 of any topic; there are: LogA/0"),
        (["info", "STORE", "-t", "nope"], 1, "no topic 'nope' in this store; there are: LogA"),
        (["index", "STORE", "--file", "nope"], 1, "no index file 'nope'; there are: 20"),
        (["index", "STORE", "--items", "--file", "nope"], 1, "no index file 'nope'"),
        (["lag", "STORE", "-g", "nope"], 1, "no group 'nope' in config/consumerOffset.json"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_mistakes_and_refusals_are_one_line_and_a_code(
    basic: Golden, command: Command, arguments: list[str], code: int, said: str
) -> None:
    done = command(*(a.replace("STORE", str(basic.store)) for a in arguments))
    assert done.code == code
    assert said in done.err
    assert done.err.count("\n") <= 1
    assert "Traceback" not in done.err


def test_an_internal_error_is_one_line_and_a_saved_traceback(
    basic: Golden, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("rocketcompat.inspect.dump.dump_log", broken)
    done = command("dump", basic.store)
    assert done.code == 4
    assert done.err.count("\n") == 1
    saved = Path(done.err.split("traceback in ")[1].rstrip(")\n"))
    assert "a bug" in saved.read_text()
    saved.unlink()


def test_an_interrupt_is_quiet(
    basic: Golden, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rocketcompat.inspect.dump.dump_log", interrupted)
    done = command("dump", basic.store)
    assert (done.code, done.err) == (130, "")


@pytest.mark.gate
def test_a_closed_pipe_is_quiet(basic: Golden) -> None:
    program = subprocess.Popen(
        _program("dump", basic.store, "-f", "jsonl"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.readline()
    program.stdout.close()
    assert program.stderr.read() == b""
    program.stderr.close()
    assert program.wait() == 0


@pytest.mark.parametrize("program", [[], ["spark"]])
def test_the_list_of_commands_has_a_whole_sentence_for_each(
    command: Command, program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = command(*program, "--help").out
    commands = text.partition("Commands:")[2].splitlines()
    assert len(commands) > 4
    assert not [line for line in commands if line.endswith("...")]


def test_help_needs_neither_numpy_nor_pyarrow() -> None:
    code = (
        "import sys, rocketcompat.cli; sys.argv = ['x', '--help']\n"
        "try: rocketcompat.cli.main()\n"
        "except SystemExit as e: assert e.code == 0\n"
        "assert not {'numpy', 'pyarrow'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "dump" in done.stdout


def test_the_shell_completes_topics_of_the_store_that_is_named(tmp_path: Path) -> None:
    for topic in ("orders", "order-lines", "logs"):
        (tmp_path / "consumequeue" / topic).mkdir(parents=True)
    context = SimpleNamespace(params={"root": str(tmp_path)}, args=[])
    assert complete_topic(context, "ord") == ["order-lines", "orders"]  # type: ignore[arg-type]
    waiting = SimpleNamespace(params={}, args=[str(tmp_path)])
    assert complete_topic(waiting, "") == ["logs", "order-lines", "orders"]  # type: ignore[arg-type]
    nowhere = SimpleNamespace(params={"root": str(tmp_path / "gone")}, args=[])
    assert complete_topic(nowhere, "") == []  # type: ignore[arg-type]


def test_the_shell_completes_groups_and_compared_fields(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "consumerOffset.json"
    file.write_text('{"offsetTable":{"T@orders":{0:1},"U@orders":{0:1},"T@logs":{0:1}}}')
    context: Any = SimpleNamespace(params={"root": str(tmp_path)}, args=[])
    assert complete_group(context, "") == ["logs", "orders"]
    assert complete_group(context, "o") == ["orders"]
    assert complete_group(SimpleNamespace(params={}, args=[]), "") == []  # type: ignore[arg-type]
    file.write_text("{")
    assert complete_group(context, "") == []
    assert complete_field(context, "b") == ["body", "body_crc", "born_host", "born_timestamp"]


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (["queues"], "log (not read with --trust-queues)"),
        (["query", "-t", "Topic0", "-k", "key0"], "log (not read with --trust-index)"),
        (["dump", "-n", "1"], "log"),
    ],
)
def test_the_bar_of_a_scan_names_the_option_that_does_without(
    basic: Golden, command: Command, words: list[str], label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = []

    @contextmanager
    def watching(name: str, *, in_bytes: bool) -> Iterator[Callable[[int, int], None]]:
        labels.append(name)
        yield lambda _done, _total: None

    monkeypatch.setattr("rocketcompat.cli.options.watching", watching)
    command(words[0], basic.store, *words[1:])
    assert {*labels} == {label}


@pytest.mark.parametrize(
    "words",
    [
        ["queues"],
        ["info"],
        ["lag"],
        ["cq"],
        ["get", "-t", "Topic0", "-q", "0", "--offset", "0"],
        ["query", "-t", "Topic0", "-k", "key0"],
    ],
)
def test_a_long_scan_without_a_bar_names_the_option_that_does_without(
    basic: Golden, command: Command, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketcompat.cli.options._LONG_SECONDS", 0.0)
    option = "--trust-index" if words[0] == "query" else "--trust-queues"
    said = f"the whole log was read; {option} does without"
    assert said in command(words[0], basic.store, *words[1:]).err
    assert "the whole log" not in command(words[0], basic.store, *words[1:], option).err
    assert "the whole log is read" in " ".join(command(words[0], "--help").out.split())


def test_what_is_printed_goes_to_a_file_that_is_there_when_it_is_complete(
    basic: Golden, command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "rows"
    for words in (
        ["dump", "-f", "jsonl"],
        ["queues"],
        ["info", "-f", "jsonl"],
        ["cq", "-f", "csv"],
    ):
        shown = command(words[0], basic.store, *words[1:])
        done = command(words[0], basic.store, *words[1:], "--out", file)
        assert (done.code, done.out) == (0, "")
        assert file.read_text() == shown.out != ""
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["rows"]


def test_a_command_that_ends_with_1_has_written_its_file(
    golden: GoldenFactory, command: Command, tmp_path: Path
) -> None:
    store, file = golden("rocketmq", "4.9.8", "torn-half").store, tmp_path / "findings"
    shown = command("check", store, "-f", "jsonl")
    assert shown.code == 1
    done = command("check", store, "-f", "jsonl", "--out", file)
    assert (done.code, done.out, file.read_text()) == (1, "", shown.out)


def test_a_command_that_fails_leaves_the_file_as_it_was(
    basic: Golden, command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "rows"
    file.write_text("before")
    assert command("dump", basic.store, "-t", "nope", "--out", file).code == 1
    assert command("dump", tmp_path / "none", "--out", file).code == 3
    assert (file.read_text(), [p.name for p in tmp_path.iterdir() if p.is_file()]) == (
        "before", ["rows"],
    )  # fmt: skip
    refused = command("dump", basic.store, "--out", tmp_path / "no" / "rows")
    assert (refused.code, "there is no directory" in refused.err) == (2, True)


@pytest.mark.parametrize(("options", "is_drawn"), [([], True), (["--no-progress"], False)])
def test_a_bar_is_not_drawn_if_it_is_not_wanted(
    basic: Golden, command: Command, monkeypatch: pytest.MonkeyPatch, options: list[str],
    is_drawn: bool,
) -> None:  # fmt: skip
    drawn = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress._Bar, "__call__", lambda *call: drawn.append(call))
    monkeypatch.setattr(progress._Bar, "erase", lambda bar: None)
    assert command("queues", basic.store, *options).code == 0
    assert bool(drawn) is is_drawn
