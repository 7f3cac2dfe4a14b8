"""A demo at a small size, and what it printed."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tubestore.cli.kit import demo


def printed_by(run: Callable[..., bool], out: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a demo over a thousand lines; returns its text."""
    monkeypatch.setattr(demo, "KILLED_AFTER", 500)
    text = io.StringIO()
    console = Console(file=text, width=120)
    paths = [Path(demo.__file__).parent]
    assert run(paths=paths, out=out, partitions=5, lines=1_000, console=console)
    return text.getvalue()
