"""The demo finds everything that it wrote, also after its child was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engine.demos import printed_by
from tubestore.cli.demo.run import run


@pytest.mark.gate
@pytest.mark.crash
def test_the_demo_reads_back_what_it_wrote_and_recovers_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed_by(run, tmp_path, monkeypatch)
    assert "lost 0, twice 0" in text
    assert text.count(" 0 findings") == 1
    assert (tmp_path / "engine").is_dir()
