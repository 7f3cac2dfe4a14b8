"""What the commands of both packages for jobs in Spark share: options, mistakes, files of rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tube_cli import Cli
from tests.support.tube_cli import cli as cli
from tubestore.cli.kit.errors import UsageMistake
from tubestore.cli.kit.spark_jobs import pairs, write_rows


def test_mistakes_at_the_command_line_are_one_line(cli: Cli, tmp_path: Path) -> None:
    done = cli("spark", "audit", tmp_path / "nothing", "--dry-run")
    assert (done.code, done.err) == (3, f"tubestore: {tmp_path}/nothing: no such directory\n")
    done = cli("spark", "compact", tmp_path, tmp_path / "b", "-o", "nonsense", "--dry-run")
    assert done.code == 2
    assert "NAME=VALUE is needed" in done.err


def test_an_option_ends_its_name_at_the_first_equals_sign() -> None:
    assert pairs(["path=/a", "filter=k=v", "empty="]) == {
        "path": "/a", "filter": "k=v", "empty": "",
    }  # fmt: skip
    assert pairs(None) == {}


@pytest.mark.parametrize("given", ["nonsense", "=value", ""])
def test_an_option_without_a_name_or_a_value_is_refused(given: str) -> None:
    with pytest.raises(UsageMistake, match="NAME=VALUE is needed"):
        pairs([given])


def test_rows_of_splits_are_written_as_a_json_line_each(tmp_path: Path) -> None:
    rows = [{"split": 0, "rows": 3}, {"split": 1, "rows": 0}]
    write_rows(str(tmp_path / "rows"), rows)
    lines = (tmp_path / "rows").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
