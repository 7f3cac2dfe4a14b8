"""`tubestore topics | create | change | delete | retention`, and what the shell completes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.tube_cli import Cli, bodies_in
from tests.support.tube_cli import cli as cli
from tests.tubestore.cli.conftest import DAY
from tubestore.values import size_text


# -- topics ----------------------------------------------------------------------------------
def test_topics_lists_settings_and_sizes(cli: Cli, aged: Path) -> None:
    created = cli(
        "create", aged, "other", "--partitions", 3, "--stores", 2,
        "--max-age", "7d", "--max-bytes", "10GiB",
    )  # fmt: skip
    assert (created.code, created.out, created.err) == (0, b"", "")
    size = sum(path.stat().st_size for path in (aged / "t-0").glob("*.tube"))
    assert cli("topics", aged, "-f", "jsonl").rows == [
        {"topic": "other", "partitions": 3, "stores": 2, "shards": 0, "entries": 0,
         "data_bytes": 0, "max_age": 7 * DAY, "max_bytes": 10 << 30},
        {"topic": "t", "partitions": 4, "stores": 1, "shards": 1, "entries": 100,
         "data_bytes": size, "max_age": None, "max_bytes": None},
    ]  # fmt: skip
    head, *lines = [line.split("  ") for line in cli("topics", aged).out.decode().splitlines()]
    shown = [[cell.strip() for cell in line if cell] for line in lines]
    assert shown[0] == ["other", "3", "2", "0", "0", "0 B", "7d", "10 GiB"]
    assert shown[1][-3:] == [size_text(size), "-", "-"]
    assert "max_age" in "".join(head)


def test_change_changes_what_is_given(cli: Cli, aged: Path) -> None:
    assert cli("change", aged, "t", "--partitions", 8, "--max-age", "delete,168h").code == 0
    assert cli("change", aged, "t", "--max-bytes", "1MB").code == 0
    (row,) = cli("topics", aged, "-f", "jsonl").rows
    assert (row["partitions"], row["stores"]) == (8, 1)
    assert (row["max_age"], row["max_bytes"]) == (7 * DAY, 1_000_000)
    assert cli("change", aged, "t", "--max-age", "none", "--max-bytes", "none").code == 0
    (row,) = cli("topics", aged, "-f", "jsonl").rows
    assert (row["partitions"], row["max_age"], row["max_bytes"]) == (8, None, None)


def test_delete_asks_before_it_deletes(
    cli: Cli, aged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = cli("delete", aged, "t")
    assert done.code == 2
    assert "100 messages" in done.err
    assert "--yes" in done.err
    asked: list[str] = []

    def answer(reply: bool) -> None:
        def confirm(question: str, **_: Any) -> bool:
            asked.append(question)
            return reply

        monkeypatch.setattr("typer.confirm", confirm)

    answer(False)
    done = cli("delete", aged, "t", terminal=True)
    assert (done.code, done.err) == (1, "nothing was deleted\n")
    assert len(bodies_in(aged)) == 100
    answer(True)
    assert cli("delete", aged, "t", terminal=True).code == 0
    assert asked[0].startswith("delete 't', 100 messages, ")
    assert cli("topics", aged, "-f", "jsonl").rows == []


def test_delete_with_yes_does_not_ask(cli: Cli, aged: Path) -> None:
    done = cli("delete", aged, "t", "--yes")
    assert (done.code, done.out, done.err) == (0, b"", "")
    assert cli("topics", aged, "-f", "jsonl").rows == []


def test_no_store_is_made_by_looking_for_one(cli: Cli, tmp_path: Path) -> None:
    for arguments in (("topics",), ("retention",), ("change", "t", "--stores", 2), ("delete", "t")):
        done = cli(arguments[0], tmp_path / "none", *arguments[1:])
        assert done.code == 3
        assert "no such directory" in done.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["topics"], "no topics in this store"),
        (["stat"], "no shards: nothing was appended here yet"),
        (["dump"], "no messages"),
        (["groups", "list"], "no groups in this store"),
    ],
)
def test_text_of_an_empty_directory_is_one_line(
    cli: Cli, tmp_path: Path, args: list[str], words: str
) -> None:
    done = cli(*args, tmp_path)
    assert (done.code, done.out, done.err) == (0, b"", f"{words}\n")
    assert cli(*args, tmp_path, "-f", "csv").out.count(b"\n") == 1


def test_a_window_without_messages_is_a_line(cli: Cli, aged: Path) -> None:
    done = cli("read", aged, "t", "--start", "2200-01-01T00:00:00Z")
    none = "no such messages: none of 100 was received in this time\n"
    assert (done.code, done.out, done.err) == (0, b"", none)
