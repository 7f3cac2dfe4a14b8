"""The commands of `tubestore`: their list, their help, and how the module starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.tube_cli import ENVIRONMENT, Cli, finish
from tests.support.tube_cli import cli as cli


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
