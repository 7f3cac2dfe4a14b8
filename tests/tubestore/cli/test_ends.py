"""How a command of `tubestore` ends: exit codes, mistakes, pipes, interrupts (decisions.md D16)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import tubestore
from tests.support.golden import GoldenFactory
from tests.support.tube_cli import COMMAND, ENVIRONMENT, Cli, Result, bodies_in, finish
from tests.support.tube_cli import cli as cli
from tests.support.tube_cli import root as root
from tests.tubestore.journal.test_journalled import TOPICS, mixed


def test_check_ends_with_0_when_clean_and_1_with_findings(
    cli: Cli, root: Path, golden: GoldenFactory
) -> None:
    assert cli("check", root, "-f", "jsonl") == Result(0, b"", "")
    damaged = golden("tubemq", "1.2.0", "torn").store
    result = cli("check", damaged, "--topic", "payloadbit", "-f", "jsonl")
    assert result.code == 1
    (row,) = result.rows
    path = str(damaged / "payloadbit-0" / "00000000000000000000.tube")
    assert list(row) == ["path", "position", "reason", "message", "severity"]
    assert (row["path"], row["reason"], row["severity"]) == (path, "bad_checksum", "error")
    text = cli("check", damaged, "--topic", "payloadbit")
    assert text.code == 1
    assert path in text.out.decode()  # whole, however long
    note = cli("check", damaged, "-n", 3, "-f", "jsonl")
    assert json.loads(note.err)["truncated"]


@pytest.mark.gate
def test_known_damage_is_accepted_and_new_damage_is_not(cli: Cli, golden: GoldenFactory) -> None:
    damaged = golden("tubemq", "1.2.0", "torn").store
    before = cli("check", damaged, "-f", "jsonl")
    part = cli("check", damaged, "--topic", "payloadbit", "--accept", "-f", "jsonl")
    assert (part.code, [row["severity"] for row in part.rows]) == (0, ["accepted"])
    assert cli("check", damaged, "--topic", "payloadbit").code == 0
    rest = cli("check", damaged, "-f", "jsonl")
    assert (rest.code, len(rest.rows)) == (1, len(before.rows) - 1)
    assert cli("check", damaged, "--accept").code == 0
    assert (damaged / ".tubestore" / "accepted.json").exists()
    done = cli("check", damaged, "-f", "jsonl")
    assert (done.code, done.rows) == (0, [])
    assert f"{len(before.rows)} accepted findings are not shown" in done.err
    shown = cli("check", damaged, "--all", "-f", "jsonl")
    assert (shown.code, len(shown.rows)) == (0, len(before.rows))
    (damaged / "payloadbit-0" / "stray.tube").touch()
    new = cli("check", damaged, "-f", "jsonl")
    assert (new.code, [row["reason"] for row in new.rows]) == (1, ["foreign_name"])


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


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("delete", "{root}", "t", "--yes"), 1, "no topic 't'"),
        (("change", "{root}", "t", "--partitions", "9"), 1, "no topic 't'"),
        (("append", "{root}", "t", "/dev/null"), 2, "--partitions"),
        (("append", "{root}", "t", "/nowhere", "--partitions", "3"), 3, "/nowhere: No such file"),
        (("append", "{root}", "t", "/", "--partitions", "3"), 3, "Is a directory"),
        (("append", "{root}", "a/b", "/dev/null", "--partitions", "3"), 2, "a/b"),
        (("create", "{root}", "a/b"), 2, "a/b"),
        (("create", "{root}/new", "a/b"), 2, "a/b"),
        (("create", "{root}", "t", "--max-age", "soon"), 2, "soon"),
        (("publish", "{root}", "j", "/nowhere.parquet", "--create"), 3, "/nowhere.parquet"),
        (("publish", "{root}", "j", "/dev/null", "--create"), 2, ".parquet"),
        (("publish", "{root}", "j", __file__ + ".arrow"), 3, ".arrow: No such file"),
        (("publish", "{root}", "j", "--staged", "/dev/null", "-t", "t"), 1, "no topic 't'"),
        (("publish", "{root}", "j", "--staged", "/nowhere", "--create"), 3, "/nowhere"),
        (("recover", "{root}"), 0, ""),
        (("retention", "{root}", "--apply"), 0, "0 files"),
    ],
)
@pytest.mark.parametrize("shards", [False, True])
def test_a_mistake_leaves_a_directory_that_is_not_a_store_as_it_was(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str, shards: bool
) -> None:
    if shards and code:  # as a broker left it; commands that are no mistake have something to do
        (tmp_path / "other-0" / "index").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    result = cli(*(a.format(root=tmp_path) for a in arguments))
    assert result.code == code
    assert words in result.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_locked_store_refuses_a_writer_and_serves_readers(cli: Cli, root: Path) -> None:
    with tubestore.open(root):
        result = cli("append", root, "t", stdin=b"x\n")
        assert (result.code, result.out) == (3, b"")
        assert "locked" in result.err
        assert len(cli.json("read", root, "t")) == 1000
        assert cli("check", root).code == 0
        assert len(cli.json("dump", root)) == 1000


def test_what_shows_the_files_reports_how_much_more_the_journal_has(
    cli: Cli, tmp_path: Path
) -> None:
    with tubestore.open(tmp_path / "s", background=False) as store:
        for name in TOPICS:
            store.create_topic(name, partitions=2)
        store.append_batch(mixed(0))
        store[TOPICS[0]].flush()
        for command in ("stat", "dump", "topics"):
            assert "22 messages of 11 shards are in the journal" in cli(command, tmp_path / "s").err
        assert "2 messages of 1 shards" in cli("stat", tmp_path / "s", "--topic", TOPICS[1]).err
        assert cli("stat", tmp_path / "s", "--topic", TOPICS[0]).err == ""
    assert cli("stat", tmp_path / "s").err == ""


def test_a_store_that_will_not_open_is_refused_by_read_and_shown_by_dump_stat_and_check(
    cli: Cli, golden: GoldenFactory
) -> None:
    root = golden("tubemq", "1.2.0", "torn").store
    assert cli("read", root, "innerindexgone", "-p", 0).code == 3
    assert len(cli.json("dump", root, "--topic", "innerindexgone")) == 56
    assert cli.json("stat", root, "--topic", "innerindexgone")[0]["entries"] == 36
    assert cli("check", root, "--topic", "innerindexgone").code == 1


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


@pytest.mark.parametrize("program", [[], ["spark"]])
def test_the_list_of_commands_has_a_whole_sentence_for_each(
    cli: Cli, program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = cli(*program, "--help").out.decode()
    commands = text.partition("Commands:")[2].splitlines()
    assert len(commands) > 4
    assert not [line for line in commands if line.endswith("...")]


def test_help_loads_neither_numpy_nor_arrow_nor_the_engine() -> None:
    code = (
        "import sys; sys.argv = ['tubestore', 'dump', '--help']\n"
        "from tubestore.cli import main\n"
        "heavy = {'numpy', 'pyarrow', 'tubestore.store.manager', 'rich'}\n"
        "try: main()\n"
        "finally: print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, check=True
    )
    assert b"--trust-index" in result.stdout
    assert result.stderr.strip() == b"[]"


@pytest.mark.gate
def test_the_module_runs_as_the_command() -> None:
    assert finish("--version").stdout.startswith(b"tubestore ")
    rocket = [sys.executable, "-m", "rocketcompat", "--version"]
    said = subprocess.run(rocket, capture_output=True, env=ENVIRONMENT, check=True).stdout
    assert said.startswith(b"rocketcompat ")
    result = finish()
    assert (result.returncode, result.stdout) == (2, b"")
    assert b"append" in result.stderr


@pytest.mark.gate
def test_memory_stays_flat_over_a_store_larger_than_the_bound(tmp_path: Path) -> None:
    with tubestore.open(tmp_path / "s") as store:
        topic = store.create_topic("t", partitions=2)
        bodies = pa.array([b"x" * 4000] * 5000, pa.large_binary())
        for _ in range(6):
            topic.append_batch(pa.table({"body": bodies}))
    limited = (
        "import resource, sys; sys.argv = ['tubestore', *sys.argv[1:]]\n"
        "from tubestore.cli import main\n"
        "try: main()\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    peaks = []
    for limit in ("100", "30000"):
        command = [sys.executable, "-c", limited, "dump", str(tmp_path / "s"), "-n", limit]
        command += ["--format", "csv", "-o", "/dev/null"]
        result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=True)
        peaks.append(int(result.stderr.split()[-1]))
    unit = 1 if sys.platform == "darwin" else 1024
    assert (peaks[1] - peaks[0]) * unit < 60 << 20  # of 120 MB in the store


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
