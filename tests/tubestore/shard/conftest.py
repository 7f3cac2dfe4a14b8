"""Shards check their invariants after each call of these tests."""

from __future__ import annotations

import pytest

from tests.support.tube import check_each_step


@pytest.fixture(autouse=True)
def _checked_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    check_each_step(monkeypatch)
