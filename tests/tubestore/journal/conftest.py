"""Shards and journals check their invariants after each call of these tests."""

from __future__ import annotations

import pytest

from tests.support.steps import check_after
from tests.support.tube import check_each_step
from tubestore.journal.root_journal import RootJournal


@pytest.fixture(autouse=True)
def _checked_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    check_each_step(monkeypatch)
    check_after(monkeypatch, RootJournal, ("write", "sync", "go_on", "begin_anew", "forget"))
