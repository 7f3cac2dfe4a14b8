"""The demo of the stack finds everything that it wrote, and mends what it damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcompat.cli.demo.run import run
from tests.support.engine.demos import printed_by


@pytest.mark.gate
@pytest.mark.crash
def test_the_demo_recovers_what_was_acknowledged_and_mends_a_damaged_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed_by(run, tmp_path, monkeypatch)
    assert "lost 0, twice 0" in text
    assert text.count(" 0 findings") == 2  # the store, and the copy that was mended
    assert "3 differ, 3 marked as lost" in text
    assert (tmp_path / "stack").is_dir()
