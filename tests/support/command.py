"""Runs a command line inside the test's process, as a shell would see it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Finished:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of stdout as JSON objects."""
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Finished]


def run_command(
    main: Callable[[], None],
    arguments: tuple[object, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Finished:
    """Call a `main` with arguments; it must leave through SystemExit."""
    monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    code = left.value.code
    return Finished(code if isinstance(code, int) else 1, captured.out, captured.err)
