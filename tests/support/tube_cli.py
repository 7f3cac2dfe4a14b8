"""`tubestore` run in this process or as one of its own, and a store to run it on."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tubestore
from tests.support import REPOSITORY
from tubestore.cli import main

COMMAND = [sys.executable, "-m", "tubestore"]


HERE = REPOSITORY


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE), "NO_COLOR": "1"}


class Result(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """Runs a command in this process, from its arguments to its exit code."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capture: Any) -> None:
        self._monkeypatch, self._capture = monkeypatch, capture

    def __call__(self, *arguments: object, stdin: bytes = b"", terminal: bool = False) -> Result:
        self._monkeypatch.setattr(sys, "argv", ["tubestore", *map(str, arguments)])
        given = io.TextIOWrapper(io.BytesIO(stdin))
        self._monkeypatch.setattr(given, "isatty", lambda: terminal)
        self._monkeypatch.setattr(sys, "stdin", given)
        self._capture.readouterr()
        with pytest.raises(SystemExit) as leaving:
            main()
        out, err = self._capture.readouterr()
        return Result(int(leaving.value.code or 0), out, err.decode())

    def json(self, *arguments: object) -> list[dict[str, Any]]:
        result = self(*arguments, "--format", "jsonl")
        assert result.code == 0, result.err
        return result.rows


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsysbinary: Any) -> Cli:
    return Cli(monkeypatch, capsysbinary)


@pytest.fixture
def root(tmp_path: Path, cli: Cli) -> Path:
    """A store with 1,000 numbered lines over 4 partitions."""
    lines = b"".join(b"line %d\n" % n for n in range(1000))
    assert cli("append", tmp_path / "s", "t", "--partitions", 4, stdin=lines).code == 0
    return tmp_path / "s"


def finish(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env=ENVIRONMENT, capture_output=True, timeout=60, check=False, **options,
    )  # fmt: skip


def bodies_in(root: Path) -> list[bytes | None]:
    if not (root / ".tubestore" / "topics.json").exists():
        return []
    with tubestore.open(root, mode="r") as store:
        return [m.body for m in store["t"].read(0)] if "t" in store else []
