"""`tubestore stat | dump | check | repair`: what they show of a directory, and how they end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tubestore
from tests.support.engine.mixed import TOPICS, mixed
from tests.support.golden import GoldenFactory
from tests.support.tube import tree_digest
from tests.support.tube_cli import Cli, Result
from tests.support.tube_cli import cli as cli
from tests.support.tube_cli import root as root

#: The endings of a shard's own files.
FILES = {".tube", ".index"}


def test_a_dump_of_the_real_classes_store_has_the_contracts_fields(
    cli: Cli, golden: GoldenFactory
) -> None:
    store = golden("tubemq", "1.2.0", "basic")
    rows = cli.json("dump", store.store)
    first = next(store.expected(kind="message"))["record"]
    assert list(rows[0].items()) == [
        ("topic", "syslog"),
        ("store_id", 0),
        ("partition", 7),
        ("index_offset", 0),
        ("data_offset", 0),
        ("data_size", 140),
        ("key_code", -1),
        ("received_time", 1700000654022),
        ("msg_id", 165400000001),
        ("flag", 0),
        ("report_address", "127.0.0.1"),
        ("checksum", 1061411547),
        ("attributes", None),
        ("body", first["payload"]),
        ("state", "ok"),
    ]
    raw = cli.json("dump", store.store, "--raw")
    assert "attributes" not in raw[0]
    assert raw[0]["payload"] == first["payload"]


def test_stat_has_the_bounds_that_the_real_classes_see(cli: Cli, golden: GoldenFactory) -> None:
    for scenario in ("basic", "multistore", "rolled", "aged"):
        store = golden("tubemq", "1.2.0", scenario)
        wanted = [
            {
                "topic": row["topic"],
                "store_id": row["storeId"],
                "index_min": row["indexMin"],
                "index_max": row["indexMax"],
                "data_min": row["dataMin"],
                "data_max": row["dataMax"],
                "entries": row["entries"],
                "data_files": len(row["dataFiles"]),
                "index_files": len(row["indexFiles"]),
            }
            for row in store.expected(kind="store")
        ]
        assert cli.json("stat", store.store) == wanted


def test_stat_prints_metrics_for_prometheus(cli: Cli, golden: GoldenFactory) -> None:
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")
    store = golden("tubemq", "1.2.0", "basic")
    lines = cli("stat", store.store, "--prometheus").out.decode().splitlines()
    for row in cli.json("stat", store.store):
        labels = f'{{store_id="{row["store_id"]}",topic="{row["topic"]}"}}'
        assert f"tubestore_shard_entries{labels} {float(row['entries'])}" in lines


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


def test_repair_reports_what_it_would_do_and_ends_with_1(cli: Cli, damaged: Path) -> None:
    before = tree_digest(damaged)
    result = cli("repair", damaged, "-f", "jsonl")
    assert result.code == 1
    assert "nothing was changed; --apply does it" in result.err
    for row in result.rows:
        assert set(row) == {"path", "action", "position", "bytes", "message"}
    assert {row["action"] for row in result.rows} == {"cut_data", "rewrite_index", "leave"}
    assert tree_digest(damaged) == before
    assert b"cut_data" in cli("repair", damaged).out


def test_repair_does_it_with_apply_and_check_agrees(cli: Cli, damaged: Path) -> None:
    planned = cli("repair", damaged, "-f", "jsonl").rows
    done = cli("repair", damaged, "--apply", "-f", "jsonl")
    assert (done.code, done.rows) == (0, planned)
    left = cli("check", damaged, "-f", "jsonl")
    assert [row["reason"] for row in left.rows] == ["bad_checksum"]
    assert sum(p.is_file() for p in damaged.glob(".tubestore/quarantine/**/*")) >= 3
    again = cli("repair", damaged, "-f", "jsonl")
    assert [row["action"] for row in again.rows] == ["leave"]
    assert again.code == 0
    assert "nothing here can be mended" in again.err
    assert "`tubestore check --accept` acknowledges it" in again.err
    assert "--apply does it" not in again.err


def test_repair_names_paths_as_check_does(
    cli: Cli, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(damaged.parent)
    for place in ("damaged", damaged):
        checked = {row["path"] for row in cli("check", place, "-f", "jsonl").rows}
        planned = {row["path"] for row in cli("repair", place, "-f", "jsonl").rows}
        assert checked & planned
        assert {path.startswith(f"{place}/") for path in checked | planned} == {True}


def test_repair_of_a_sound_store_reports_it_and_ends_with_0(cli: Cli, tmp_path: Path) -> None:
    with tubestore.open(tmp_path / "s") as store:
        store.create_topic("t").append(b"x")
    result = cli("repair", tmp_path / "s")
    assert (result.code, result.out) == (0, b"")
    assert "nothing to repair" in result.err


def test_repair_is_refused_while_a_writer_is_at_work(cli: Cli, tmp_path: Path) -> None:
    with tubestore.open(tmp_path / "s"):
        for how in ((), ("--apply",)):
            result = cli("repair", tmp_path / "s", *how)
            assert result.code == 3
            assert f"locked by process {os.getpid()}" in result.err


def test_repair_writes_its_rows_to_a_file(cli: Cli, damaged: Path, tmp_path: Path) -> None:
    assert cli("repair", damaged, "-f", "parquet", "-o", tmp_path / "rows.parquet").code == 1
    assert "cut_data" in pq.read_table(tmp_path / "rows.parquet")["action"].to_pylist()


@pytest.mark.parametrize("command", ["check", "repair"])
def test_the_bar_of_a_store_with_one_shard_counts_its_bytes(
    cli: Cli, root: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool, int, int]] = []

    @contextmanager
    def watching(label: str, *, in_bytes: bool) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, total: seen.append((label, in_bytes, done, total))

    monkeypatch.setattr("tubestore.cli.inspect.watching", watching)
    assert cli(command, root).code == 0
    size = sum(f.stat().st_size for f in (root / "t-0").rglob("*.*") if f.suffix in FILES)
    assert seen[0] == (command, True, 0, size)
    assert seen[-1] == (command, True, size, size)
