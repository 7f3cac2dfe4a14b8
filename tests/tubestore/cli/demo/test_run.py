"""The demos find everything that they wrote, also after their child was killed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from rocketcompat.cli.demo import run as stack_demo
from tubestore.cli.demo import run as engine_demo
from tubestore.cli.kit import demo


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=120)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.gate
@pytest.mark.crash
def test_both_demos_read_back_what_they_wrote_and_recover_what_was_acknowledged(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "KILLED_AFTER", 500)
    small = {
        "paths": [Path(demo.__file__).parent], "out": tmp_path / "out",
        "partitions": 5, "lines": 1_000, "console": console,
    }  # fmt: skip
    assert engine_demo.run(**small)  # type: ignore[arg-type]
    assert stack_demo.run(**small)  # type: ignore[arg-type]
    text = printed(console)
    assert text.count("lost 0, twice 0") == 2
    assert text.count(" 0 findings") == 3  # both stores of each, and what was mended
    assert "3 differ, 3 marked as lost" in text
    assert {"engine", "stack"} <= {entry.name for entry in (tmp_path / "out").iterdir()}
