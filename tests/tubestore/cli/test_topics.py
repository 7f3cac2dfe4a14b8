"""`tubestore topics | create | change | delete | retention`, and what the shell completes."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.command import Command, run_command
from tubestore.cli import main
from tubestore.store.manager import engine_of

SMALL: dict[str, Any] = {"segment_size_bytes": 3000, "index_segment_size_bytes": 560}
DAY = 86_400_000


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return lambda *arguments: run_command(main, arguments, capsys, monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A topic of 100 messages, one an hour, in files of some 20; the last is two days old."""
    with tubestore.open(tmp_path / "s", **SMALL) as store:
        topic = store.create_topic("t", partitions=4)
        now = engine_of(store).context.clock.now_ms()
        for number in range(100):
            age = 2 * DAY + (99 - number) * 3_600_000
            topic.append(b"%0100d" % number, partition=0, received_time=now - age)
    return tmp_path / "s"


def bodies(root: Path) -> list[int]:
    with tubestore.open(root, mode="r") as store:
        return [int(m.body or b"-1") for m in store["t"].read(0)]


# -- topics ----------------------------------------------------------------------------------


def test_topics_lists_settings_and_sizes(cli: Command, root: Path) -> None:
    created = cli(
        "create", root, "other", "--partitions", 3, "--stores", 2,
        "--max-age", "7d", "--max-bytes", "10GiB",
    )  # fmt: skip
    assert (created.code, created.out, created.err) == (0, "", "")
    size = sum(path.stat().st_size for path in (root / "t-0").glob("*.tube"))
    assert cli("topics", root, "-f", "jsonl").rows == [
        {"topic": "other", "partitions": 3, "stores": 2, "shards": 0, "entries": 0,
         "data_bytes": 0, "max_age": 7 * DAY, "max_bytes": 10 << 30},
        {"topic": "t", "partitions": 4, "stores": 1, "shards": 1, "entries": 100,
         "data_bytes": size, "max_age": None, "max_bytes": None},
    ]  # fmt: skip


def test_change_changes_what_is_given(cli: Command, root: Path) -> None:
    assert cli("change", root, "t", "--partitions", 8, "--max-age", "delete,168h").code == 0
    assert cli("change", root, "t", "--max-bytes", "1MB").code == 0
    (row,) = cli("topics", root, "-f", "jsonl").rows
    assert (row["partitions"], row["stores"]) == (8, 1)
    assert (row["max_age"], row["max_bytes"]) == (7 * DAY, 1_000_000)
    assert cli("change", root, "t", "--max-age", "none", "--max-bytes", "none").code == 0
    (row,) = cli("topics", root, "-f", "jsonl").rows
    assert (row["partitions"], row["max_age"], row["max_bytes"]) == (8, None, None)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("change", "t", "--partitions", 3), 2, "only rise"),
        (("change", "t"), 2, "nothing to change"),
        (("change", "t", "--max-age", "7"), 2, "is not a valid age"),
        (("change", "t", "--max-bytes", "much"), 2, "is not a valid size"),
        (("change", "other", "--partitions", 3), 1, "no topic 'other'"),
        (("delete", "other", "--yes"), 1, "no topic 'other'"),
        (("create", "t"), 3, "exists already"),
        (("create", "u", "--max-age", "week"), 2, "is not a valid age"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    cli: Command, root: Path, arguments: tuple[Any, ...], code: int, says: str
) -> None:
    done = cli(arguments[0], root, *arguments[1:])
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_a_writer_elsewhere_refuses_changes_and_a_dry_run_runs(cli: Command, root: Path) -> None:
    with tubestore.open(root):
        for arguments in (
            ("change", root, "t", "--partitions", 9),
            ("delete", root, "t", "--yes"),
            ("retention", root, "--apply"),
        ):
            done = cli(*arguments)
            assert done.code == 3
            assert "locked" in done.err
        assert cli("retention", root, "--max-age", "1h").code == 0


def test_delete_asks_before_it_deletes(
    cli: Command, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = cli("delete", root, "t")
    assert done.code == 2
    assert "100 messages" in done.err
    assert "--yes" in done.err
    asked: list[str] = []

    def answer(reply: bool) -> None:
        def confirm(question: str, **_: Any) -> bool:
            asked.append(question)
            return reply

        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr("typer.confirm", confirm)

    answer(False)
    done = cli("delete", root, "t")
    assert (done.code, done.err) == (1, "nothing was deleted\n")
    assert len(bodies(root)) == 100
    answer(True)
    assert cli("delete", root, "t").code == 0
    assert asked[0].startswith("delete 't', 100 messages, ")
    assert cli("topics", root, "-f", "jsonl").rows == []


def test_delete_with_yes_does_not_ask(cli: Command, root: Path) -> None:
    done = cli("delete", root, "t", "--yes")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert cli("topics", root, "-f", "jsonl").rows == []


def test_no_store_is_made_by_looking_for_one(cli: Command, tmp_path: Path) -> None:
    for arguments in (("topics",), ("retention",), ("change", "t", "--stores", 2), ("delete", "t")):
        done = cli(arguments[0], tmp_path / "none", *arguments[1:])
        assert done.code == 3
        assert "no such directory" in done.err
    assert not (tmp_path / "none").exists()


# -- retention -------------------------------------------------------------------------------


def test_retention_shows_what_would_go_and_apply_removes_it(cli: Command, root: Path) -> None:
    shown = cli("retention", root, "--max-age", "4d", "-f", "jsonl")
    assert shown.code == 0
    assert "would go; --apply removes them" in shown.err
    assert {row["verdict"] for row in shown.rows} == {"goes"}
    assert {row["stream"] for row in shown.rows} == {"data", "index"}
    assert len(bodies(root)) == 100
    applied = cli("retention", root, "--max-age", "4d", "--apply", "-f", "jsonl")
    assert applied.rows == shown.rows
    assert f"{len(shown.rows)} files" in applied.err
    assert not any(Path(row["path"]).exists() for row in shown.rows)
    left = bodies(root)
    assert 50 <= len(left) < 80
    assert left == list(range(100))[-len(left) :]


def test_retention_explains_every_file(cli: Command, root: Path) -> None:
    cli("change", root, "t", "--max-age", "4d")
    rows = cli("retention", root, "--explain", "-f", "jsonl").rows
    files = sorted(str(path) for path in [*root.glob("t-0/*.tube"), *root.glob("t-0/index/*")])
    assert sorted(row["path"] for row in rows) == files
    assert {row["reason"] for row in rows} >= {
        "its newest message is older than 4d",
        "its newest message is not older than 4d",
        "it is written to",
    }
    for row in rows:
        if row["last_time"] is not None:
            assert row["first_time"] <= row["last_time"] == row["due"] - 4 * DAY
    text = cli("retention", root, "--explain").out
    assert text.splitlines()[0].split() == [
        "topic", "store_id", "stream", "start", "bytes", "last_time", "verdict", "due", "reason",
    ]  # fmt: skip
    assert "written to" in text
    csv = cli("retention", root, "--explain", "-f", "csv").out
    assert csv.startswith("topic,store_id,stream,start,bytes,")
    assert len(csv.splitlines()) == len(rows) + 1


def test_retention_by_size_counts_the_store_or_the_topic(cli: Command, root: Path) -> None:
    with tubestore.open(root) as store:
        store.create_topic("young").append(b"x" * 5000)
    rows = cli("retention", root, "--max-bytes", "12KB", "-f", "jsonl").rows
    assert {row["topic"] for row in rows} == {"t"}
    one = cli("retention", root, "--topic", "t", "--max-bytes", "12KB", "-f", "jsonl").rows
    assert 0 < len(one) < len(rows)
    assert cli("retention", root, "--topic", "no", "--max-bytes", "1").code == 1


def test_nothing_to_remove_is_reported_and_is_no_failure(cli: Command, root: Path) -> None:
    done = cli("retention", root)
    assert (done.code, done.out, done.err) == (0, "", "0 files with 0 B would go\n")
    done = cli("retention", root, "--apply", "-f", "jsonl")
    assert (done.code, done.out, done.err) == (0, "", "0 files with 0 B removed\n")


def test_grace_empties_the_trash(cli: Command, root: Path) -> None:
    done = cli("retention", root, "--max-age", "1h", "--apply")
    assert "deletes them in 2m" in done.err
    trash = root / "t-0" / ".tubestore" / "trash"
    assert len(list(trash.iterdir())) > 5
    done = cli("retention", root, "--apply", "--grace", "0s")
    assert "of the trash deleted" in done.err
    assert list(trash.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [("--explain", "--apply"), ("--grace", "1h"), ("--max-age", "1")]
)
def test_options_that_do_not_go_together_are_usage(
    cli: Command, root: Path, arguments: tuple[str, ...]
) -> None:
    done = cli("retention", root, *arguments)
    assert (done.code, done.out) == (2, "")


# -- the shell -------------------------------------------------------------------------------


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tubestore ret", ["retention"]),
        ("tubestore read {root} o", ["orders", "other"]),
        ("tubestore stat {root} --topic t", ["t"]),
        ("tubestore read {root}/nothing o", []),
    ],
)
def test_the_shell_completes_commands_and_topics(
    root: Path, line: str, expected: list[str]
) -> None:
    with tubestore.open(root) as store:
        store.create_topic("other")
        store.create_topic("orders")
    words = line.format(root=root)
    environment = {
        "_TUBESTORE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "PYTHONPATH": str(Path(tubestore.__file__).parent.parent),
    }
    code = "from tubestore.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert done.stdout.decode().split() == expected
    assert done.stderr == b""
