"""The `rocketcompat` command inside a test's process, and what tests ask of a directory."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rocketcompat.cli import main
from tests.support.command import Command, Finished, run_command


@pytest.fixture(name="command")
def command_fixture(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    def command(*arguments: object) -> Finished:
        return run_command(main, arguments, capsys, monkeypatch)

    return command


def digest(root: Path) -> str:
    """Names, times and bytes of everything below a directory."""
    found = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        found.update(f"{path.relative_to(root)} {path.stat().st_mtime_ns}\n".encode())
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()
