"""Fixtures of a module that has `opened`: a disk in memory that may fail, and a store on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketcompat.store.default_message_store import DefaultMessageStore
from tubestore.clock import ManualClock
from tubestore.testing import FaultyVfs, MemoryVfs


@pytest.fixture
def vfs(clock: ManualClock) -> FaultyVfs:
    return FaultyVfs(MemoryVfs(clock))


@pytest.fixture
def store(
    vfs: FaultyVfs, clock: ManualClock, request: pytest.FixtureRequest
) -> Iterator[DefaultMessageStore]:
    with request.module.opened(vfs, clock) as store:
        yield store
