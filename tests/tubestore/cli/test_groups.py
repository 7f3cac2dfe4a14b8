"""`tubestore consume` and `tubestore groups`."""

from __future__ import annotations

import base64
from pathlib import Path
from types import SimpleNamespace

import pytest

import tubestore
from tests.support.tube_cli import Cli, Result
from tests.support.tube_cli import cli as cli
from tubestore.cli.groups import complete_group
from tubestore.cli.kit.text import time_text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of 20 numbered messages over four partitions."""
    with tubestore.open(tmp_path / "s") as store:
        topic = store.create_topic("t", partitions=4)
        for number in range(20):
            topic.append(
                b"%d" % number,
                partition=number % 4,
                received_time=1_700_000_000_000 + number,
                filter_item="ab"[number % 2],
            )
    return tmp_path / "s"


def consumed(cli: Cli, *arguments: object) -> list[int]:
    rows = cli.json("consume", *arguments, "--idle-timeout", 0)
    return [int(base64.b64decode(row["body"])) for row in rows]


def test_a_group_prints_each_message_once(cli: Cli, root: Path) -> None:
    assert consumed(cli, root, "t", "--group", "g", "-n", 8) == list(range(8))
    assert consumed(cli, root, "t", "--group", "g") == list(range(8, 20))
    assert consumed(cli, root, "t", "--group", "g") == []


def test_without_a_group_or_a_commit_nothing_is_kept(cli: Cli, root: Path) -> None:
    for _ in range(2):
        assert consumed(cli, root, "t", "--filter-item", "b") == list(range(1, 20, 2))
        assert consumed(cli, root, "t", "--group", "g", "--no-commit") == list(range(20))


def test_consume_begins_where_it_is_asked_to(cli: Cli, root: Path) -> None:
    assert consumed(cli, root, "t", "--start", "latest") == []
    assert consumed(cli, root, "t", "--start", 1_700_000_000_017) == [17, 18, 19]
    assert cli("consume", root, "t", "--start", "sometime").code == 2


def test_a_consumer_that_got_nothing_says_so_to_people(cli: Cli, root: Path) -> None:
    words = ("consume", root, "t", "--filter-item", "nope", "--idle-timeout", 0)
    assert (cli(*words).out, cli(*words).err) == (b"", "no such messages\n")
    assert cli(*words, "--format", "jsonl").err == ""


def test_text_has_a_line_a_message(cli: Cli, root: Path) -> None:
    lines = cli("consume", root, "t", "-n", 2).out.decode().splitlines()
    assert lines == [
        "2023-11-14T22:13:20.000Z t/0@0 [a] 0",
        "2023-11-14T22:13:20.001Z t/1@28 [b] 1",
    ]


def test_groups_are_listed_with_their_lag(cli: Cli, root: Path) -> None:
    assert cli.json("groups", "list", root) == []
    consumed(cli, root, "t", "--group", "g", "-n", 8)
    (row,) = cli.json("groups", "list", root)
    assert (row["group"], row["members"], row["lag"]) == ("g", 0, 12)
    rows = cli.json("groups", "show", root, "g")
    assert [row["partition"] for row in rows] == [0, 1, 2, 3]
    assert sum(row["lag"] for row in rows) == 12
    assert {row["member"] for row in rows} == {None}
    with (
        tubestore.open(root, "r") as store,
        store.consumer("g", "t", member="me", auto_commit=False) as consumer,
    ):
        consumer.poll(1)
        (member,) = cli.json("groups", "show", root, "g", "--members")
        assert (member["id"], member["partitions"]) == ("me", 4)
        assert {row["member"] for row in cli.json("groups", "show", root, "g")} == {"me"}
        refused = cli("groups", "reset", root, "g", "--to", "first", "--apply")
        assert refused.code == 2
        assert "living members: me" in refused.err
        assert "living members: me" in cli("groups", "delete", root, "g", "--yes").err


def test_times_of_groups_are_shown_to_people_and_numbers_for_programs(cli: Cli, root: Path) -> None:
    consumed(cli, root, "t", "--group", "g", "-n", 8)
    (group,) = cli.json("groups", "list", root)
    committed = time_text(group["committed"])
    assert committed in cli("groups", "list", root).out.decode()
    rows = cli.json("groups", "show", root, "g")
    waiting = sorted(row.pop("waiting_since") for row in rows)
    assert waiting == [1_700_000_000_000 + number for number in range(8, 12)]
    assert "waiting_since_ms" not in rows[0]
    assert "2023-11-14T22:13:20.008Z" in cli("groups", "show", root, "g").out.decode()
    (gone,) = cli.json("groups", "expire", root, "--after", "0s")
    assert time_text(gone["used_ms"]) in cli("groups", "expire", root, "--after", "0s").out.decode()


def test_reset_shows_what_would_change_and_changes_it_with_apply(cli: Cli, root: Path) -> None:
    consumed(cli, root, "t", "--group", "g")
    moved = cli.json("groups", "reset", root, "g", "--to", "first")
    assert [(row["before"], row["after"]) for row in moved] == [(28 * n, 0) for n in range(17, 21)]
    assert consumed(cli, root, "t", "--group", "g") == []
    cli.json("groups", "reset", root, "g", "--to", "first", "--apply")
    assert consumed(cli, root, "t", "--group", "g") == list(range(20))
    cli.json("groups", "reset", root, "g", "--time", 1_700_000_000_018, "--apply")
    assert consumed(cli, root, "t", "--group", "g") == [18, 19]
    cli.json("groups", "reset", root, "g", "--to", 28 * 19, "--apply")
    assert consumed(cli, root, "t", "--group", "g") == [19]
    cli.json("groups", "reset", root, "new", "--to", "last", "--topic", "t", "--apply")
    assert consumed(cli, root, "t", "--group", "new") == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["reset", "g"], "one of --to and --time"),
        (["reset", "g", "--to", "middle"], "first, last, or an offset"),
        (["reset", "none", "--to", "first"], "no group 'none'"),
        (["reset", "none", "--to", "first", "--topic", "u"], "topic 'u'"),
        (["show", "none"], "no group 'none'"),
        (["show", "gg"], "no group 'gg' in this store; did you mean 'g'? there are: g"),
        (["delete", "none", "--yes"], "no group 'none'"),
        (["export", "g", "none"], "no group 'none'"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, root: Path, words: list[str], text: str) -> None:
    consumed(cli, root, "t", "--group", "g")
    result = cli("groups", words[0], root, *words[1:])
    assert result.code == (1 if text.startswith(("no group", "topic")) else 2)
    assert text in result.err
    assert "Traceback" not in result.err


def test_a_deleted_group_begins_anew(cli: Cli, root: Path) -> None:
    consumed(cli, root, "t", "--group", "g")
    assert cli("groups", "delete", root, "g", "--yes").code == 0
    assert cli.json("groups", "list", root) == []
    assert consumed(cli, root, "t", "--group", "g") == list(range(20))


def test_lost_positions_are_an_error_until_they_are_set(cli: Cli, root: Path) -> None:
    consumed(cli, root, "t", "--group", "g")
    log = next((root / ".tubestore" / "groups" / "g").glob("positions-*.log"))
    data = bytearray(log.read_bytes())
    data[5] ^= 1
    log.write_bytes(data)
    result = cli("consume", root, "t", "--group", "g", "--idle-timeout", 0)
    assert result.code != 0
    assert "snapshot of all positions is damaged" in result.err
    assert cli("groups", "reset", root, "g", "--to", "first", "--apply").code != 0
    cli.json("groups", "reset", root, "g", "--to", "last", "--topic", "t", "--apply")
    assert consumed(cli, root, "t", "--group", "g") == []


def test_positions_go_to_a_file_of_tubemqs_and_come_back(cli: Cli, root: Path) -> None:
    consumed(cli, root, "t", "--group", "g", "-n", 8)
    file = root.parent / "offsets.meta"
    file.write_bytes(cli("groups", "export", root).out)
    assert cli("groups", "delete", root, "g", "--yes").code == 0
    assert len(cli.json("groups", "import", root, file)) == 4
    assert cli.json("groups", "list", root) == []
    assert len(cli.json("groups", "import", root, file, "--apply")) == 4
    assert consumed(cli, root, "t", "--group", "g") == list(range(8, 20))
    file.write_text("{}")
    assert "not an offsets.meta" in cli("groups", "import", root, file).err


def test_settings_are_printed_and_expired_groups_are_shown_before_they_go(
    cli: Cli, root: Path
) -> None:
    consumed(cli, root, "t", "--group", "g")
    done = cli("groups", "set", root, "g", "--retention-waits", "--expire-after", "30d")
    assert done.out.decode().splitlines() == ["retention waits: yes", "expires after: 30d"]
    done = cli("groups", "set", root, "g", "--expire-after", "never")
    assert done.out.decode().splitlines() == ["retention waits: yes", "expires after: never"]
    assert cli("groups", "set", root, "g").code == 2
    assert cli.json("groups", "expire", root) == []
    assert [row["name"] for row in cli.json("groups", "expire", root, "--after", "0ms")] == ["g"]
    assert len(cli.json("groups", "list", root)) == 1
    cli.json("groups", "expire", root, "--after", "0ms", "--apply")
    assert cli.json("groups", "list", root) == []


def test_the_shell_completes_groups_of_the_store_that_is_named(cli: Cli, root: Path) -> None:
    for group in ("orders", "order-lines", "logs"):
        consumed(cli, root, "t", "--group", group)
    for context in (
        SimpleNamespace(params={"root": str(root)}, args=[]),
        SimpleNamespace(params={}, args=[str(root)]),
    ):
        assert complete_group(context, "ord") == ["order-lines", "orders"]  # type: ignore[arg-type]
    nowhere = SimpleNamespace(params={"root": str(root / "gone")}, args=[])
    assert complete_group(nowhere, "") == []  # type: ignore[arg-type]


def test_what_moves_nothing_prints_no_head_of_columns(cli: Cli, root: Path) -> None:
    consumed(cli, root, "t", "--group", "g")
    assert cli("groups", "expire", root) == Result(0, b"", "0 groups would be deleted\n")
    assert cli("groups", "expire", root, "-f", "csv").out == b"name,used_ms,positions\n"
