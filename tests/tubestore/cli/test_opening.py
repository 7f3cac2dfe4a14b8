"""Stores that commands write to: a directory that is not a store stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

import tubestore
from tests.support.tube_cli import Cli
from tests.support.tube_cli import cli as cli
from tests.support.tube_cli import root as root


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
