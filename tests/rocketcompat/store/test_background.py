"""What the threads of an open store do by themselves: dispatch, flush and clean."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.store.default_message_store import DefaultMessageStore
from rocketcompat.store.service_thread import ServiceThread
from tests.support.rocket.inside import index_of, log_of, opened_of, parts_of, queues_of
from tubestore.clock import ManualClock
from tubestore.testing import FaultyVfs, MemoryVfs

#: A test waits so long only when it fails.
PATIENCE = 30.0
HOUR = 3_600_000
CONFIG = MessageStoreConfig(
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
    with rocketcompat.open("/s", "w", CONFIG.changed(**options), vfs=vfs, clock=clock) as store:
        yield store


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the cleaner's first round come at once; it comes after a minute."""
    monkeypatch.setattr("rocketcompat.store.opening.FIRST_RUN_SECONDS", 0.0)


# -- flushing ----------------------------------------------------------------------------------


def test_the_flush_thread_syncs_one_put_after_the_thorough_interval(
    vfs: WatchedVfs, clock: ManualClock
) -> None:  # FLS-06
    with running(vfs, clock, layouts=frozenset()) as store:
        rounds = Rounds(opened_of(store).flusher)
        put = store.put_message(Message("T", b"x" * 100))
        rounds.wait()
        assert log_of(store).synced_offset == put.physical_offset == 0
        clock.advance(CONFIG.flush_commit_log_thorough_interval)
        rounds.wait()
        assert log_of(store).synced_offset == put.size


def test_the_flush_thread_syncs_a_log_of_four_dirty_pages_at_its_interval(
    vfs: WatchedVfs, clock: ManualClock
) -> None:  # FLS-06
    with running(vfs, clock) as store:
        rounds = Rounds(opened_of(store).flusher)
        store.put_message(Message("T", b"x" * 4 * 4096))
        clock.advance(CONFIG.flush_interval_commit_log)
        rounds.wait()
        assert log_of(store).synced_offset == store.max_physical_offset


def test_the_flush_thread_syncs_a_queue_of_two_dirty_pages_at_its_interval(
    vfs: WatchedVfs, clock: ManualClock
) -> None:  # FLS-09
    with running(vfs, clock, flush_interval_consume_queue=1000) as store:
        placed = store.put_columns({"topic": ["T"] * 500})
        assert store.wait_dispatched(placed["physical_offset"][-1].as_py())
        rounds, queue = Rounds(opened_of(store).flusher), queues_of(store).find_or_create("T", 0)
        rounds.wait()
        assert queue.dirty_pages == 2  # the interval of the queues is not over
        clock.advance(1000)
        rounds.wait()
        assert queue.dirty_pages == 0
        assert "/s/consumequeue/T/0/" + "0" * 20 in vfs.paths("sync")


def test_the_flush_thread_syncs_ten_queues_of_one_unit_after_the_thorough_interval(
    vfs: WatchedVfs, clock: ManualClock
) -> None:  # FLS-10
    with running(vfs, clock) as store:
        puts = [store.put_message(Message("T", queue_id=queue_id)) for queue_id in range(10)]
        assert store.wait_dispatched(puts[-1].physical_offset)
        wanted = {f"/s/consumequeue/T/{queue_id}/{0:020d}" for queue_id in range(10)}
        assert wanted.isdisjoint(vfs.paths("sync"))
        clock.advance(CONFIG.flush_consume_queue_thorough_interval)
        vfs.wait_for(lambda: wanted <= {path for call, path in vfs.made if call == "sync"})


def test_the_flush_thread_works_at_the_shortest_of_its_intervals() -> None:
    for log, queues, seconds in ((500, 1000, 0.5), (600, 200, 0.2)):
        vfs, clock = WatchedVfs(MemoryVfs()), ManualClock()
        options = {"flush_interval_commit_log": log, "flush_interval_consume_queue": queues}
        config = CONFIG.changed(**options)
        with rocketcompat.open(
            "/s", "w", config, vfs=vfs, clock=clock, background=False
        ) as store:  # fmt: skip
            assert opened_of(store).flusher.work() == seconds
            assert opened_of(store).flusher.after_error() == seconds


def test_what_the_flush_thread_could_not_sync_is_tried_again(
    vfs: WatchedVfs, clock: ManualClock
) -> None:
    with running(vfs, clock) as store:
        rounds, queue = Rounds(opened_of(store).flusher), queues_of(store).find_or_create("T", 0)
        fault = vfs.fail("sync", path="/s/consumequeue")
        placed = store.put_columns({"topic": ["T"] * 500})
        assert store.wait_dispatched(placed["physical_offset"][-1].as_py())
        clock.advance(1)
        vfs.wait_for(lambda: ("sync", f"/s/consumequeue/T/0/{0:020d}") in vfs.made)
        clock.advance(1)
        rounds.wait()
        assert fault.struck == 1
        assert queue.dirty_pages == 0
        assert "FlushService" in str(store.problems[-1])


# -- cleaning ----------------------------------------------------------------------------------

SMALL = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 200,
         "delete_when": ";".join(f"{hour:02d}" for hour in range(24))}  # fmt: skip


@pytest.mark.usefixtures("soon")
def test_the_clean_thread_deletes_expired_files_of_log_queues_and_index(
    vfs: WatchedVfs, clock: ManualClock
) -> None:  # CLN-01
    with running(vfs, clock, max_index_num=12, **SMALL) as store:
        cleaner = Rounds(opened_of(store).cleaner)
        cleaner.wait()
        for number in range(60):
            store.put_message(Message("T", b"x" * 80, keys=f"k{number}"))
        store.flush()
        cleaner.wait()
        assert store.min_physical_offset == 0
        for _ in range(2):  # a round each interval, not one
            before = store.min_physical_offset
            clock.advance(73 * HOUR)
            cleaner.wait()
            assert store.min_physical_offset > before
            for number in range(60):
                store.put_message(Message("T", b"x" * 80, keys=f"k{number}"))
            store.flush()
        first = store.look_message(store.min_physical_offset)
        assert store.min_offset_in_queue("T", 0) == first.queue_offset
        assert all(opened_of(store).cleaner.deleted.values())
        removed = {path.split("/")[2] for path in vfs.paths("remove")}
        assert removed >= {"commitlog", "consumequeue", "index"}


def test_the_clean_thread_begins_after_a_minute_and_works_every_ten_seconds(
    vfs: WatchedVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # CLN-01
    started: dict[str, float] = {}

    def start(service: ServiceThread, first: float = 0.0) -> None:
        started[service.name] = first

    monkeypatch.setattr(ServiceThread, "start", start)
    default = MessageStoreConfig().clean_resource_interval
    with running(vfs, clock, clean_resource_interval=default) as store:
        assert started["CleanService"] == 60.0
        assert opened_of(store).cleaner.work() == 10.0


@pytest.mark.usefixtures("soon")
def test_the_clean_thread_refuses_messages_on_a_full_disk_and_takes_them_again(
    vfs: WatchedVfs, clock: ManualClock
) -> None:  # CLN-06
    used = [50]
    with running(vfs, clock) as store:
        cleaner = opened_of(store).cleaner
        cleaner._disk_used = lambda path: used[0]
        rounds = Rounds(cleaner)
        used[0] = 91
        rounds.wait()
        with pytest.raises(OSError, match="91 % used"):
            store.put_message(Message("T"))
        used[0] = 50
        rounds.wait()
        assert store.put_message(Message("T")).queue_offset == 0


# -- dispatching -------------------------------------------------------------------------------


class Arrivals:
    """Waits until a structure has what was put; asks the dispatcher for nothing."""

    def __init__(self, follower: Any, threads: set[str] | None = None) -> None:
        self.threads = set() if threads is None else threads
        self._honest, self._count, self._changed = follower.put, 0, threading.Condition()
        follower.put = self._put_batch

    def _put_batch(self, batch: Any) -> None:
        self._honest(batch)
        with self._changed:
            self.threads.add(threading.current_thread().name)
            self._count += len(batch)
            self._changed.notify_all()

    def wait(self, count: int, seconds: float) -> bool:
        """Wait until so many rows have come; False if they have not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count >= count, seconds)


@pytest.mark.parametrize("structure", ["queues", "index"])
def test_a_put_is_readable_soon_without_a_waiter(
    vfs: WatchedVfs, clock: ManualClock, structure: str
) -> None:  # DSP-01, DSP-04
    with running(vfs, clock) as store:
        arrivals = Arrivals(getattr(parts_of(store), structure))
        soon = []
        for count in range(1, 11):  # a slow machine may miss the second some times, not always
            put = store.put_message(Message("T", keys="k"))
            soon.append(arrivals.wait(count, 1.0))
            assert soon[-1] or arrivals.wait(count, PATIENCE)
            if soon[-1]:
                break
        assert soon[-1]
        if structure == "queues":
            assert store.get_message("T", 0, put.queue_offset).messages
        else:
            assert store.query_message("T", "k").physical_offsets[-1] == put.physical_offset


def test_queues_and_index_are_built_in_the_dispatchers_thread(
    vfs: WatchedVfs, clock: ManualClock
) -> None:
    """DSP-01: a put does not do it."""
    threads: set[str] = set()
    with running(vfs, clock) as store:
        arrivals = [Arrivals(queues_of(store), threads), Arrivals(index_of(store), threads)]
        for _ in range(3):
            store.put_message(Message("T", keys="k"))
        assert all(arrived.wait(3, PATIENCE) for arrived in arrivals)
    assert threads == {"ReputMessageService"}


@pytest.mark.parametrize("wanted", [True, False])
def test_delayed_messages_are_delivered_in_the_background_if_that_is_the_option(
    wanted: bool,
) -> None:
    config = CONFIG.changed(enable_schedule_message=wanted)
    with rocketcompat.open("/s", "w", config, vfs=MemoryVfs()) as store:
        services = store.stats()["services"]
        assert services["ScheduleMessageService"]["running"] is wanted
        assert services["FlushService"]["running"]
