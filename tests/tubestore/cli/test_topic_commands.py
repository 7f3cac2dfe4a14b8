"""Arguments of the commands about topics and retention: what cannot be is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.tube_cli import Cli
from tests.support.tube_cli import cli as cli


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
    cli: Cli, aged: Path, arguments: tuple[Any, ...], code: int, says: str
) -> None:
    done = cli(arguments[0], aged, *arguments[1:])
    assert (done.code, done.out) == (code, b"")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_a_writer_elsewhere_refuses_changes_and_a_dry_run_runs(cli: Cli, aged: Path) -> None:
    with tubestore.open(aged):
        for arguments in (
            ("change", aged, "t", "--partitions", 9),
            ("delete", aged, "t", "--yes"),
            ("retention", aged, "--apply"),
        ):
            done = cli(*arguments)
            assert done.code == 3
            assert "locked" in done.err
        assert cli("retention", aged, "--max-age", "1h").code == 0


@pytest.mark.parametrize(
    "arguments", [("--explain", "--apply"), ("--grace", "1h"), ("--max-age", "1")]
)
def test_options_that_do_not_go_together_are_usage(
    cli: Cli, aged: Path, arguments: tuple[str, ...]
) -> None:
    done = cli("retention", aged, *arguments)
    assert (done.code, done.out) == (2, b"")
