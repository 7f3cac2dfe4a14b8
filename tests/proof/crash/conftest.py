"""Fixtures of the crash proof."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proof.explorer.setting import quick_and_quiet


@pytest.fixture(autouse=True)
def setting() -> Iterator[None]:
    """Run in the proof's setting."""
    with quick_and_quiet():
        yield
