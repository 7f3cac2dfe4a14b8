"""`tubestore append`: what it takes, and what it reports."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import tubestore
from tests.support.tube_cli import Cli
from tests.support.tube_cli import cli as cli
from tests.support.tube_cli import root as root


@pytest.mark.gate
def test_lines_go_in_and_come_out_once_each_in_order(cli: Cli, root: Path) -> None:
    seen = []
    for partition in range(4):
        rows = cli.json("read", root, "t", "-p", partition)
        assert {row["partition"] for row in rows} == {partition}
        seen.append([int(base64.b64decode(r["body"]).split()[1]) for r in rows])
        assert seen[-1] == sorted(seen[-1])
    assert sorted(n for numbers in seen for n in numbers) == list(range(1000))


def test_append_reports_what_it_did_and_skips_empty_lines(cli: Cli, tmp_path: Path) -> None:
    result = cli("append", tmp_path / "s", "t", "--partitions", 1, "-f", "jsonl", stdin=b"a\n\nbc")
    assert result.rows == [
        {"topic": "t", "messages": 2, "bytes": 3, "empty_lines": 1, "durability": "page_cache"}
    ]
    assert [r["body"] for r in cli.json("read", tmp_path / "s", "t")] == ["YQ==", "YmM="]


def test_lines_of_a_jsonl_file_are_bodies_and_append_says_so(
    cli: Cli, root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "one"}\n')
    done = cli("append", root, "t", file)
    assert done.err == f"tubestore: {file}: each line is a body; --input jsonl appends its fields\n"
    assert cli("append", root, "t", file, "--input", "lines").err == ""
    assert cli("append", root, "t", file, "--input", "jsonl").err == ""
    bodies = [base64.b64decode(row["body"]) for row in cli.json("read", root, "t")]
    assert (bodies.count(b'{"text": "one"}'), bodies.count(b"one")) == (2, 1)


def test_append_takes_files_a_key_a_filter_item_and_a_durability(
    cli: Cli, root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"\xff\xfe\nb\r\n")
    options = ("--key", "k", "--filter-item", "f", "--durability", "fsync")
    assert cli("append", root, "t", file, file, *options).code == 0
    rows = cli.json("read", root, "t", "--filter-item", "f")
    assert [base64.b64decode(r["body"]) for r in rows] == [b"\xff\xfe", b"b\r"] * 2
    assert len({r["partition"] for r in rows}) == 1
    assert {r["filter_item"] for r in rows} == {"f"}


def test_a_topic_is_copied_within_a_store_and_to_another_one(cli: Cli, tmp_path: Path) -> None:
    root, other = tmp_path / "s", tmp_path / "other"
    cli("append", root, "a", "--partitions", 2, "--filter-item", "red", stdin=b"one\ntwo\n")
    done = cli("copy", root, "a", "b", "-f", "jsonl")
    assert (done.code, done.rows) == (0, [{"topic": "b", "messages": 2, "left_out": 0}])
    cli("copy", root, "b", "c", "--to", other, "--partitions", 1, "--new-times")
    rows = cli("read", other, "c", "-f", "jsonl").rows
    assert [(row["filter_item"], base64.b64decode(row["body"])) for row in rows] == [
        ("red", b"one"), ("red", b"two"),
    ]  # fmt: skip
    assert cli("copy", root, "a", "b", "--end", "2001-01-01T00:00:00Z").code == 0
    assert len(cli("read", root, "b", "-f", "jsonl").rows) == 2
    assert "no topic 'x'" in cli("copy", root, "x", "b").err


@pytest.mark.parametrize("elsewhere", ["the same", "another", "a new one"])
def test_a_missing_target_is_made_like_the_source(cli: Cli, tmp_path: Path, elsewhere: str) -> None:
    """Also in a store that is there, and in one that is made for it."""
    root, other = tmp_path / "s", tmp_path / "other"
    with tubestore.open(root) as store:
        store.create_topic("a", partitions=3, stores=2).append(b"one", partition=10_002)
    if elsewhere == "another":
        tubestore.open(other).close()
    to = [] if elsewhere == "the same" else ["--to", other]
    for name, more, made in (("b", [], (3, 2)), ("c", ["--partitions", 4], (4, 1))):
        assert cli("copy", root, "a", name, *to, *more).code == 0
        with tubestore.open(root if elsewhere == "the same" else other, mode="r") as store:
            options = store.topic(name).options
            assert (options.partitions, options.stores) == made
            bodies = [batch.column("body").to_pylist() for batch in store.topic(name).scan()]
            assert bodies == [[b"one"]]


def test_a_copy_that_is_refused_makes_nothing(cli: Cli, tmp_path: Path) -> None:
    root, other = tmp_path / "s", tmp_path / "other"
    cli("append", root, "a", "--partitions", 1, stdin=b"one\n")
    for wrong in (("x", "b"), ("a", "b/c"), ("a", "b", "--start", "soon")):
        assert cli("copy", root, *wrong, "--to", other).code != 0
        assert not other.exists()
        assert cli("copy", root, *wrong).code != 0
    with tubestore.open(root, mode="r") as store:
        assert [*store] == ["a"]
    assert cli("copy", root, "a", "a", "--partitions", 2).code != 0  # it has one
