"""Index files check their invariants after each call of these tests."""

from __future__ import annotations

import pytest

from rocketcompat.index.index_file import IndexFile
from tests.support.steps import check_after


@pytest.fixture(autouse=True)
def _checked_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    check_after(monkeypatch, IndexFile, ("put_keys", "flush"))
