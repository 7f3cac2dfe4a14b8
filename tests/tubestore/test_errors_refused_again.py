"""A store that refuses hundreds of calls keeps nothing of them: no frames and no memory."""

from __future__ import annotations

import errno
import gc
import logging
import tracemalloc
from collections.abc import Callable

import pytest

import rocketcompat
import tubestore
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.options import LAYOUTS
from rocketcompat.store.default_message_store import DefaultMessageStore
from rocketcompat.store.service_thread import ServiceThread
from tests.support.rocket.inside import log_of, opened_of
from tests.support.tube import make_row, open_shard
from tubestore.clock import ManualClock
from tubestore.core.group_commit import GroupCommit
from tubestore.errors import DiskFull, StoreClosed, StoreFailed, TubeStoreError, again
from tubestore.options import Durability
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.testing import FaultyVfs, MemoryVfs

REFUSALS = 300
#: What they may leave; one frame of each would be 120 KB.
BYTES_MAX = 40_000


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Log nothing: what is captured is kept."""
    caplog.set_level(logging.CRITICAL)


def frames_of(error: BaseException | None) -> int:
    """Return how many frames an exception and its causes refer to."""
    count = 0
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            count, trace = count + 1, trace.tb_next
        error = error.__cause__ or error.__context__
    return count


def refused(call: Callable[[], object], kind: type[TubeStoreError]) -> int:
    """Make a call that is refused; returns the frames of what it raised."""
    try:
        call()
    except TubeStoreError as error:
        if type(error) is kind:
            return frames_of(error)
    pytest.fail(f"it did not raise {kind.__name__}")


def refused_without_end(call: Callable[[], object], kind: type[TubeStoreError]) -> None:
    """Have a call refused very often; the last refusal is as large as an early one."""
    for _ in range(10):
        early = refused(call, kind)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(REFUSALS):
            late = refused(call, kind)
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert late == early
    assert left < BYTES_MAX


def failed_shard(faulty: FaultyVfs) -> None:
    faulty.fail("sync", forever=True)


def full_disk(faulty: FaultyVfs) -> None:
    faulty.fail("pwrite", error=errno.ENOSPC, forever=True)


@pytest.fixture
def faulty(memory_vfs: MemoryVfs) -> FaultyVfs:
    return FaultyVfs(memory_vfs)


@pytest.mark.gate
@pytest.mark.parametrize(("trouble", "kind"), [(failed_shard, StoreFailed), (full_disk, DiskFull)])
@pytest.mark.parametrize("level", ["memory", "page_cache", "fsync"])
def test_refused_appends_leave_nothing(
    faulty: FaultyVfs,
    trouble: Callable[[FaultyVfs], None],
    kind: type[TubeStoreError],
    level: Durability,
) -> None:
    shard = open_shard(faulty)
    trouble(faulty)
    with pytest.raises(kind):
        shard.append(make_row(b"first"), "fsync")
    refused_without_end(lambda: shard.append(make_row(b"next"), level), kind)
    refused_without_end(shard.sync, kind)
    faulty.heal()
    if kind is DiskFull:
        shard.close()


@pytest.mark.gate
def test_calls_to_a_closed_shard_and_topic_leave_nothing(store: MessageStoreManager) -> None:
    topic = store.create_topic("t")
    topic.append(b"x")
    store.delete_topic("t")
    refused_without_end(lambda: topic.append(b"y", durability="page_cache"), StoreClosed)
    refused_without_end(lambda: topic.read(0, "earliest"), StoreClosed)


@pytest.mark.gate
def test_calls_to_a_reader_that_was_closed_leave_nothing(store: MessageStoreManager) -> None:
    store.create_topic("t").append(b"x", durability="page_cache")
    context = engine_of(store).context
    reader = tubestore.open(store.root, "r", vfs=context.vfs, clock=context.clock)
    topic = reader.topic("t")
    topic.read(0, "earliest")
    reader.close()
    refused_without_end(lambda: topic.read(0, "earliest"), StoreClosed)


@pytest.mark.gate
def test_waiters_of_a_stream_whose_sync_failed_leave_nothing() -> None:
    commits = GroupCommit(0)

    def failing() -> int:
        raise StoreFailed("/s/t-0", "sync: EIO")

    refused(lambda: commits.reach(1, failing), StoreFailed)
    refused_without_end(lambda: commits.reach(1, lambda: 1), StoreFailed)
    refused_without_end(lambda: commits.run(lambda: 1), StoreFailed)


@pytest.fixture
def rocket(faulty: FaultyVfs, clock: ManualClock) -> DefaultMessageStore:
    config = MessageStoreConfig(mapped_file_size_commit_log=1 << 16, layouts=LAYOUTS)
    return rocketcompat.open("/s", "w", config, vfs=faulty, clock=clock, background=False)


@pytest.mark.gate
def test_puts_into_a_log_that_failed_leave_nothing(
    rocket: DefaultMessageStore, faulty: FaultyVfs
) -> None:
    rocket.put_message(Message("T", b"x"))
    faulty.fail("sync", forever=True)
    with pytest.raises(StoreFailed):
        rocket.flush()
    refused_without_end(lambda: rocket.put_message(Message("T", b"x")), StoreFailed)
    refused_without_end(lambda: rocket.put_columns({"topic": ["T"]}), StoreFailed)
    refused_without_end(rocket.flush, StoreFailed)
    refused_without_end(opened_of(rocket).flusher.persist, StoreFailed)
    refused_without_end(opened_of(rocket).shut_down, StoreFailed)
    with pytest.raises(StoreFailed):
        rocket.close()
    refused_without_end(lambda: rocket.put_message(Message("T", b"x")), StoreClosed)


@pytest.mark.gate
def test_puts_onto_a_disk_that_is_too_full_leave_nothing(rocket: DefaultMessageStore) -> None:
    log_of(rocket).refusals.too_full = DiskFull("/s", "91 % used")
    refused_without_end(lambda: rocket.put_message(Message("T", b"x")), DiskFull)
    refused_without_end(lambda: rocket.put_columns({"topic": ["T"]}), DiskFull)
    log_of(rocket).refusals.too_full = None
    rocket.close()


class Failing(ServiceThread):
    """A service whose every round meets the same kept error."""

    def __init__(self) -> None:
        super().__init__("Failing")
        self.kept = StoreClosed("/s is closed")
        self.rounds = 0

    def work(self) -> float:
        self.rounds += 1
        if self.rounds == 1000:
            raise StoreFailed("/s", "sync: EIO")
        raise again(self.kept)

    def after_error(self) -> float:
        return 0.0


def test_rounds_of_a_service_that_fail_leave_nothing() -> None:
    service = Failing()
    service._run(0.0)
    assert service.rounds == 1000
    assert len(service.problems) == 2
    assert frames_of(service.kept) == 0
    assert max(map(frames_of, service.problems)) == 0
