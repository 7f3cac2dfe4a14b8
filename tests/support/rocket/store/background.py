"""A store whose threads run by a clock that is moved by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import rocketcompat
from rocketcompat import MessageStoreConfig
from rocketcompat.store.default_message_store import DefaultMessageStore
from rocketcompat.store.service_thread import ServiceThread
from tubestore.clock import ManualClock
from tubestore.testing import FaultyVfs, MemoryVfs

#: A test waits so long only when it fails.
PATIENCE = 30.0

THREADED = MessageStoreConfig(
    mapped_file_size_commit_log=1 << 16,
    mapped_file_size_consume_queue=20 * 1000,
    max_hash_slot_num=16,
    max_index_num=1000,
    flush_interval_commit_log=1,
    flush_interval_consume_queue=1,
    clean_resource_interval=1,
    layouts=frozenset({"consume_queue", "index"}),
)


class WatchedVfs(FaultyVfs):
    """A disk on which a test waits for a call."""

    def __init__(self, inner: MemoryVfs) -> None:
        super().__init__(inner)
        self.made: list[tuple[str, str]] = []
        self._changed = threading.Condition()

    def ask(self, call: str, path: str) -> None:
        try:
            super().ask(call, path)
        finally:
            with self._changed:
                self.made.append((call, path))
                self._changed.notify_all()

    def paths(self, call: str) -> set[str]:
        """Return the paths that such a call was made for."""
        with self._changed:
            return {path for made, path in self.made if made == call}

    def wait_for(self, is_met: Callable[[], bool]) -> None:
        """Wait until the calls so far meet a condition."""
        with self._changed:
            assert self._changed.wait_for(is_met, PATIENCE), self.made[-20:]


class Rounds:
    """Waits for whole rounds of a service's thread."""

    def __init__(self, service: ServiceThread) -> None:
        self._honest, self._count, self._changed = service.work, 0, threading.Condition()
        service.work = self._work  # type: ignore[method-assign]

    def _work(self) -> float:
        seconds = self._honest()
        with self._changed:
            self._count += 1
            self._changed.notify_all()
        return seconds

    def wait(self) -> None:
        """Wait for a round that began after this call."""
        with self._changed:
            wanted = self._count + 2
            assert self._changed.wait_for(lambda: self._count >= wanted, PATIENCE)


@pytest.fixture
def vfs(clock: ManualClock) -> WatchedVfs:
    return WatchedVfs(MemoryVfs(clock))


@contextmanager
def running(vfs: WatchedVfs, clock: ManualClock, **options: Any) -> Iterator[DefaultMessageStore]:
    with rocketcompat.open("/s", "w", THREADED.changed(**options), vfs=vfs, clock=clock) as store:
        yield store
