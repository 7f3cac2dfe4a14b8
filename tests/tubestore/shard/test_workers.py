"""The few threads behind a store: what is asked for is done, once, and they end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tubestore
from tests.support.engine.interrupts import interrupted
from tubestore.errors import StoreClosed, StoreFailed, TubeStoreError
from tubestore.segments.file_store import MsgFileStore
from tubestore.shard.workers import Workers
from tubestore.store.manager import engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import MemoryVfs


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

    def fail(self, reason: str) -> StoreFailed:
        return StoreFailed("/s/t-0", reason)


class Owner:
    def __init__(self) -> None:
        self.all: list[Any] = []
        self.problems: list[TubeStoreError] = []
        self.tidied = threading.Semaphore(0)

    def due_shards(self) -> list[Any]:
        return list(self.all)

    def keep_house(self, pause: Callable[[float], bool]) -> None:
        if not pause(0):
            self.tidied.release()

    def note_problem(self, problem: TubeStoreError) -> None:
        self.problems.append(problem)


def workers_of(threads: int, owner: Owner) -> Workers:
    return Workers(threads, owner.due_shards, owner.keep_house, owner.note_problem)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_request_is_done(threads: int) -> None:
    owner = Owner()
    workers = workers_of(threads, owner)
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
    workers = workers_of(1, owner)
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


@pytest.mark.parametrize("request_of", [Workers.flush_soon, Workers.sync_soon])
def test_no_request_takes_its_lock_in_python_where_an_interrupt_would_leave_it_taken(
    request_of: Callable[..., None],
) -> None:
    owner = Owner()
    workers = workers_of(0, owner)
    try:
        ended = interrupted(lambda: request_of(workers, Shard()), 2, threading.Condition.__enter__)
        assert not ended
        assert not workers._changed._is_owned()  # type: ignore[attr-defined]
    finally:
        workers.stop()


def test_a_shard_is_worked_on_by_one_thread_at_a_time() -> None:
    owner = Owner()
    workers = workers_of(4, owner)
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
    workers = workers_of(2, owner)
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


def test_a_failing_shard_does_not_end_a_worker() -> None:
    owner = Owner()
    workers = workers_of(1, owner)
    bad: Any = Shard()
    bad.error = StoreFailed("/s/t-0", "EIO")
    good: Any = Shard()
    try:
        workers.flush_soon(bad)
        workers.flush_soon(good)
        assert good.flushed.acquire(timeout=5)
    finally:
        workers.stop()
    assert [str(problem) for problem in owner.problems] == [str(bad.error)]


def test_an_error_that_nobody_foresaw_fails_its_shard_and_is_kept_as_a_problem(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def broken(self: Any, *given: Any) -> None:
        raise RuntimeError("a bug")

    store = tubestore.open("/s", vfs=memory_vfs, flush_workers=1)
    topic = store.create_topic("t", stores=2)
    topic.append(b"kept", partition=0, durability="memory")
    shard: Any = shards_of(topic).shard(0)
    monkeypatch.setattr(MsgFileStore, "append", broken)
    assert engine_of(store).opener.background is not None
    engine_of(store).opener.background.flush_soon(shard)
    engine_of(store).opener.background.flush_soon(_Signal(done))  # type: ignore[arg-type]
    assert done.wait(10), "the worker ended"
    monkeypatch.undo()
    assert "a bug" in str(store.problems[0])
    with pytest.raises(StoreFailed, match="RuntimeError: a bug"):
        topic.append(b"refused", partition=0)
    assert [m.body for m in topic.messages(0)] == [b"kept"]
    topic.append(b"the other shard goes on", partition=10_000)
    with pytest.raises(StoreFailed, match="RuntimeError: a bug"):
        store.close()
    assert "a bug" in caplog.text


class _Signal(Shard):
    """Says when it was flushed."""

    def __init__(self, done: threading.Event) -> None:
        super().__init__()
        self.flush = done.set  # type: ignore[method-assign]


def test_an_error_in_the_timer_fails_one_shard_and_the_others_are_maintained() -> None:
    owner = Owner()
    bad: Any = Shard()
    maintained = threading.Event()
    good: Any = Shard()
    good.maintain = maintained.set

    def broken() -> None:
        raise ZeroDivisionError

    bad.maintain = broken
    owner.all += [bad, good]
    workers = workers_of(1, owner)
    try:
        assert maintained.wait(5)
    finally:
        workers.stop()
    assert isinstance(owner.problems[0], StoreFailed)


def test_syncs_that_are_asked_for_in_a_moment_are_done_once() -> None:
    owner = Owner()
    workers = workers_of(1, owner)
    shard: Any = Shard()
    try:
        for _ in range(1000):
            workers.sync_soon(shard)
        assert shard.synced.acquire(timeout=5)
    finally:
        workers.stop()
    rest = sum(shard.synced.acquire(blocking=False) for _ in range(1000))
    assert rest < 100


def test_the_timer_maintains_every_shard() -> None:
    owner = Owner()
    maintained = threading.Event()
    shard: Any = Shard()
    shard.maintain = maintained.set
    owner.all.append(shard)
    workers = workers_of(1, owner)
    try:
        assert maintained.wait(5)
    finally:
        workers.stop()


def test_a_store_that_was_forgotten_is_not_kept_alive_by_its_timer(
    monkeypatch: pytest.MonkeyPatch, memory_vfs: MemoryVfs
) -> None:
    monkeypatch.setattr("tubestore.shard.workers.MAINTENANCE_INTERVAL_S", 0.01)
    store = tubestore.open("/s", vfs=memory_vfs)
    topic = store.create_topic("t")
    topic.append(b"x", durability="memory")
    turned = threading.Event()
    shard: Any = shards_of(topic).shard(0)
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
    workers = workers_of(3, owner)
    assert threading.active_count() == before + 5  # the timer, and retention
    workers.stop()
    assert threading.active_count() == before


def test_the_house_is_kept_by_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over many files takes long; buffers that are due by time do not wait for it."""
    monkeypatch.setattr("tubestore.shard.workers.MAINTENANCE_INTERVAL_S", 0.001)
    owner = Owner()
    workers = workers_of(1, owner)
    for _ in range(3):
        assert owner.tidied.acquire(timeout=10)
    workers.stop()


def test_a_shard_whose_topic_was_deleted_is_no_problem(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()
    workers = workers_of(1, owner)
    shard: Any = Shard()
    shard.error = StoreClosed("deleted")
    workers.flush_soon(shard)
    assert shard.flushed.acquire(timeout=10)
    workers.stop()
    assert (owner.problems, caplog.text) == ([], "")
