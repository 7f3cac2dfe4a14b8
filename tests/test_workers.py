"""The few threads behind a store: what is asked for is done, once, and they end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import tubestore
from tubestore.errors import StoreFailed
from tubestore.testing import MemoryVfs
from tubestore.workers import Workers


class Shard:
    """Counts what is done to it."""

    name = "t-0"

    def __init__(self) -> None:
        self.flushed, self.synced = threading.Semaphore(0), threading.Semaphore(0)
        self.running, self.most = 0, 0
        self.error: Exception | None = None
        self.hold: threading.Event | None = None
        self._lock = threading.Lock()

    def flush(self) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        if self.hold is not None:
            assert self.hold.wait(10)
        with self._lock:
            self.running -= 1
        self.flushed.release()
        if self.error is not None:
            raise self.error

    def sync_files(self) -> None:
        self.flush()
        self.synced.release()

    def maintain(self) -> None:
        pass


class Owner:
    def __init__(self) -> None:
        self.all: list[Any] = []

    def shards(self) -> Iterator[Any]:
        yield from self.all


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_request_is_done(threads: int) -> None:
    owner = Owner()
    workers = Workers(threads, owner.shards)
    shard: Any = Shard()
    try:
        for _ in range(50):
            workers.flush_soon(shard)
            assert shard.flushed.acquire(timeout=5), "a request was forgotten"
        workers.sync_soon(shard)
        assert shard.synced.acquire(timeout=5)
    finally:
        workers.stop()


def test_a_request_wakes_a_worker_at_once_and_not_the_timer() -> None:
    owner = Owner()
    workers = Workers(1, owner.shards)
    shard: Any = Shard()
    slow = 0
    try:
        for _ in range(50):
            workers.flush_soon(shard)
            if not shard.flushed.acquire(timeout=0.3):  # until the timer's next turn
                slow += 1
                assert shard.flushed.acquire(timeout=5)
    finally:
        workers.stop()
    assert slow == 0


def test_a_shard_is_worked_on_by_one_thread_at_a_time() -> None:
    owner = Owner()
    workers = Workers(4, owner.shards)
    shard: Any = Shard()
    shard.hold = threading.Event()
    try:
        for _ in range(10):
            workers.flush_soon(shard)
        workers.sync_soon(shard)
        shard.hold.set()
        assert shard.synced.acquire(timeout=5)
    finally:
        workers.stop()
    assert shard.most == 1


def test_one_stuck_shard_does_not_stop_the_others() -> None:
    owner = Owner()
    workers = Workers(2, owner.shards)
    stuck: Any = Shard()
    stuck.hold = threading.Event()
    other: Any = Shard()
    try:
        workers.flush_soon(stuck)
        workers.flush_soon(other)
        assert other.flushed.acquire(timeout=5)
    finally:
        stuck.hold.set()
        workers.stop()


def test_a_failing_shard_does_not_end_a_worker(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()
    workers = Workers(1, owner.shards)
    bad: Any = Shard()
    bad.error = StoreFailed("/s/t-0", "EIO")
    good: Any = Shard()
    try:
        workers.flush_soon(bad)
        workers.flush_soon(good)
        assert good.flushed.acquire(timeout=5)
    finally:
        workers.stop()
    assert "EIO" in caplog.text


def test_the_timer_maintains_every_shard() -> None:
    owner = Owner()
    maintained = threading.Event()
    shard: Any = Shard()
    shard.maintain = maintained.set
    owner.all.append(shard)
    workers = Workers(1, owner.shards)
    try:
        assert maintained.wait(5)
    finally:
        workers.stop()


def test_a_store_that_was_forgotten_is_not_kept_alive_by_its_timer(
    monkeypatch: pytest.MonkeyPatch, memory_vfs: MemoryVfs
) -> None:
    monkeypatch.setattr("tubestore.workers.MAINTENANCE_INTERVAL_S", 0.01)
    store = tubestore.open("/s", vfs=memory_vfs)
    topic = store.create_topic("t")
    topic.append(b"x", durability="memory")
    turned = threading.Event()
    shard: Any = topic.shard(0)
    monkeypatch.setattr(shard, "maintain", turned.set)
    assert turned.wait(5)
    del topic, shard
    monkeypatch.undo()
    with pytest.warns(ResourceWarning, match="was not closed"):  # noqa: PT031
        del store
        gc.collect()
    with tubestore.open("/s", vfs=memory_vfs) as again:
        assert len(again["t"].read(0)) == 1


def test_stopping_ends_all_threads() -> None:
    before = threading.active_count()
    owner = Owner()
    workers = Workers(3, owner.shards)
    assert threading.active_count() == before + 4
    workers.stop()
    assert threading.active_count() == before
