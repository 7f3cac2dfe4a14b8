"""When what is synced: intervals, least pages, group commit."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig, PutStatus
from rocketcompat.store.default_message_store import DefaultMessageStore
from rocketcompat.store.flush import FlushService
from tests.support.rocket.inside import (
    dispatcher_of,
    log_of,
    opened_of,
    queues_of,
)
from tests.support.rocket.store.background import THREADED, Rounds, WatchedVfs, running
from tests.support.rocket.store.background import vfs as vfs
from tests.support.rocket.stores import opener
from tubestore.clock import ManualClock
from tubestore.errors import DiskFull, StoreBusy, StoreFailed
from tubestore.testing import FaultyVfs, MemoryVfs

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=20 * 1000,
    layouts=frozenset({"consume_queue"}),
)

opened = opener(CONFIG)

#: A record with a topic of one byte takes this many bytes besides its body.
FIXED = 92


def flusher(store: DefaultMessageStore) -> FlushService:
    return opened_of(store).flusher


def put(store: DefaultMessageStore, size: int) -> None:
    store.put_message(Message("T", b"x" * (size - FIXED)))


def test_asynchronous_flushes_are_the_default() -> None:  # FLS-07
    assert MessageStoreConfig().flush_disk_type == "ASYNC_FLUSH"


def test_an_asynchronous_put_does_not_sync(store: DefaultMessageStore) -> None:  # FLS-05
    before = log_of(store).sync_count
    put(store, 5000)
    assert log_of(store).sync_count == before
    assert log_of(store).synced_offset == 0


def test_the_log_is_synced_when_four_pages_are_dirty(
    store: DefaultMessageStore, clock: ManualClock
) -> None:  # FLS-06
    put(store, 4 * 4096 - 1)
    clock.advance(500)
    flusher(store).flush_due()
    assert log_of(store).synced_offset == 0
    put(store, 100)
    clock.advance(500)
    flusher(store).flush_due()
    assert log_of(store).synced_offset == store.max_physical_offset


def test_one_put_is_synced_after_the_thorough_interval(
    store: DefaultMessageStore, clock: ManualClock
) -> None:  # FLS-06
    put(store, 200)
    clock.advance(9_999)
    flusher(store).flush_due()
    assert log_of(store).synced_offset == 0
    clock.advance(1)
    flusher(store).flush_due()
    assert log_of(store).synced_offset == 200


def test_the_thorough_interval_of_the_log_is_an_option(vfs: FaultyVfs, clock: ManualClock) -> None:
    with opened(vfs, clock, flush_commit_log_thorough_interval=3000) as store:
        put(store, 200)
        clock.advance(3000)
        flusher(store).flush_due()
        assert log_of(store).synced_offset == 200


@pytest.mark.parametrize(("least", "synced"), [(0, 200), (1, 0)])
def test_with_no_least_pages_whatever_is_dirty_is_synced(
    vfs: FaultyVfs, clock: ManualClock, least: int, synced: int
) -> None:
    options = {"flush_commit_log_least_pages": least, "flush_consume_queue_least_pages": least}
    with opened(vfs, clock, **options) as store:
        put(store, 200)
        dispatcher_of(store).dispatch_pending()
        clock.advance(1000)
        vfs.calls.clear()
        flusher(store).flush_due()
        assert log_of(store).synced_offset == synced
        assert (vfs.calls["sync"] >= 2) == (not least)  # of the log, and of the queue


def test_the_log_is_not_read_before_its_interval_is_over(
    vfs: FaultyVfs, clock: ManualClock
) -> None:
    with opened(vfs, clock, flush_interval_commit_log=5000) as store:
        flusher(store).flush_due()
        put(store, 5 * 4096)
        clock.advance(4999)
        flusher(store).flush_due()
        assert log_of(store).synced_offset == 0
        clock.advance(1)
        flusher(store).flush_due()
        assert log_of(store).synced_offset == 5 * 4096


def test_a_queue_is_synced_when_two_page_borders_are_behind_it(
    store: DefaultMessageStore, vfs: FaultyVfs, clock: ManualClock
) -> None:  # FLS-09, FLS-11
    units = 8191 // 20  # 8180 bytes, and one more passes the second border
    columns = {"topic": ["T"] * units}
    store.put_columns(columns)
    dispatcher_of(store).dispatch_pending()
    queue = queues_of(store).find_or_create("T", 0)
    assert queue.dirty_pages == 1
    clock.advance(1000)
    flusher(store).flush_due()
    assert queue.dirty_pages == 1
    put(store, 200)
    dispatcher_of(store).dispatch_pending()
    flusher(store).flush_due()  # its second is not over
    assert queue.dirty_pages == 2
    clock.advance(1000)
    flusher(store).flush_due()
    assert queue.dirty_pages == 0


def test_everything_is_synced_after_the_thorough_interval_of_the_queues(
    vfs: FaultyVfs, clock: ManualClock
) -> None:  # FLS-10
    with opened(vfs, clock, flush_consume_queue_thorough_interval=7000) as store:
        for queue_id in range(10):
            store.put_message(Message("T", queue_id=queue_id))
        dispatcher_of(store).dispatch_pending()
        clock.advance(6999)
        flusher(store).flush_due()
        assert queues_of(store).ends[1] == 0
        clock.advance(1)
        flusher(store).flush_due()
        assert queues_of(store).ends[1] == store.max_physical_offset


def test_marks_are_written_every_ten_seconds_at_least(
    store: DefaultMessageStore, clock: ManualClock
) -> None:
    put(store, 200)
    dispatcher_of(store).dispatch_pending()
    clock.advance(10_000)
    flusher(store).flush_due()
    assert queues_of(store).ends == (200, 200)


def test_a_failed_sync_of_a_queue_is_tried_again(
    store: DefaultMessageStore, vfs: FaultyVfs, clock: ManualClock
) -> None:
    store.put_columns({"topic": ["T"] * 500})
    dispatcher_of(store).dispatch_pending()
    queue = queues_of(store).find_or_create("T", 0)
    vfs.fail("sync", path="/s/consumequeue", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        queues_of(store).flush_due(2)
    assert queue.dirty_pages == 2
    assert queues_of(store).flush_due(2) == 1
    assert queue.dirty_pages == 0


def test_a_synchronous_put_returns_when_its_sync_is_over(
    vfs: FaultyVfs, clock: ManualClock
) -> None:  # FLS-01, FLS-02
    with opened(vfs, clock, flush_disk_type="SYNC_FLUSH") as store:
        for number in range(1, 4):
            put(store, 200)
            assert log_of(store).synced_offset == 200 * number


@pytest.mark.parametrize("given", [{"properties": {"WAIT": "false"}}, {}])
def test_a_message_that_does_not_wait_is_not_waited_for(
    vfs: FaultyVfs, clock: ManualClock, given: dict[str, Any]
) -> None:
    with opened(vfs, clock, flush_disk_type="SYNC_FLUSH") as store:
        store.put_message(Message("T", b"x", **given))
        waited = log_of(store).synced_offset == store.max_physical_offset
        assert waited == (not given)


@pytest.mark.parametrize(("texts", "waits"), [
    (["WAIT\x01false", "a\x01b\x02WAIT\x01false\x02c\x01d"], False),
    (["WAIT\x01false", None], True),
    (["WAIT\x01true", "WAIT\x01false"], True),
    (["AWAIT\x01false", "WAIT\x01falsehood"], True),
])  # fmt: skip
@pytest.mark.parametrize("durability", [None, "fsync"])
def test_a_batch_is_waited_for_if_one_of_its_messages_waits(
    vfs: FaultyVfs, clock: ManualClock, texts: list[str | None], waits: bool, durability: Any
) -> None:
    with opened(vfs, clock, flush_disk_type="SYNC_FLUSH") as store:
        store.put_columns({"topic": ["T", "T"], "properties": texts}, durability=durability)
        synced = log_of(store).synced_offset == store.max_physical_offset
        assert synced == (waits or durability == "fsync")


@pytest.mark.parametrize("text", ["AWAIT\x01false", "WAIT\x01falsehood"])
def test_only_the_property_itself_decides_that_a_message_does_not_wait(
    vfs: FaultyVfs, clock: ManualClock, text: str
) -> None:
    with opened(vfs, clock, flush_disk_type="SYNC_FLUSH") as store:
        store.put_message(Message("T", properties=text))
        assert log_of(store).synced_offset == store.max_physical_offset


def test_a_failed_sync_acknowledges_nothing_ever_again(  # apache/rocketmq #2706, #5235
    vfs: FaultyVfs, clock: ManualClock
) -> None:
    store = opened(vfs, clock, flush_disk_type="SYNC_FLUSH")
    put(store, 200)
    vfs.fail("sync", path="/s/commitlog", error=errno.EIO)
    with pytest.raises(StoreFailed):
        put(store, 200)
    for _ in range(2):  # the disk works again, and what it lost is not known
        with pytest.raises(StoreFailed):
            put(store, 200)
    assert log_of(store).synced_offset == 200
    with pytest.raises(StoreFailed):
        store.close()
    assert vfs.exists("/s/abort")


class SlowSync:
    """A file whose sync waits until it is let go."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.entered, self.go = inner, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def sync(self) -> None:
        self.entered.set()
        assert self.go.wait(30)
        self.inner.sync()


def test_a_wait_that_is_too_long_is_an_error_and_the_message_is_there(clock: ManualClock) -> None:
    with opened(
        MemoryVfs(clock), clock, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=0
    ) as store:
        put(store, 200)
        file = log_of(store).queue.last
        assert file is not None
        slow: Any = SlowSync(file._file)
        file._file = slow
        leader = threading.Thread(target=put, args=(store, 200))
        leader.start()
        assert slow.entered.wait(30)
        result = store.put_message(Message("T", b"late"))  # FLUSH_DISK_TIMEOUT, FLS-03
        assert result.status is PutStatus.FLUSH_DISK_TIMEOUT
        rows = store.put_columns({"topic": ["T"] * 2, "body": [b"late", b"later"]}).to_pylist()
        assert [row["status"] for row in rows] == ["FLUSH_DISK_TIMEOUT"] * 2
        slow.go.set()
        leader.join(30)
        file._file = slow.inner
        assert store.look_message(result.physical_offset).body == b"late"
        assert store.look_message(rows[1]["physical_offset"]).body == b"later"
        assert store.put_columns({"topic": ["T"]})["status"].to_pylist() == ["PUT_OK"]


def test_many_waiters_share_syncs(clock: ManualClock) -> None:  # FLS-03
    with opened(MemoryVfs(clock), clock, flush_disk_type="SYNC_FLUSH") as store:
        put(store, 200)
        file = log_of(store).queue.last
        assert file is not None
        slow: Any = SlowSync(file._file)
        file._file = slow
        threads = [threading.Thread(target=put, args=(store, 200)) for _ in range(20)]
        for thread in threads:
            thread.start()
        assert slow.entered.wait(30)
        while log_of(store).put_count < 21:  # all have written, one syncs
            threads[-1].join(0.01)
        slow.go.set()
        for thread in threads:
            thread.join(30)
        file._file = slow.inner
        assert log_of(store).synced_offset == 21 * 200
        assert log_of(store).sync_count <= 4


def test_a_structure_that_cannot_be_synced_for_a_while_is_logged_at_the_beginning_and_the_end(
    store: DefaultMessageStore, vfs: FaultyVfs, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    service = flusher(store)
    vfs.fail("sync", path="/s/consumequeue", forever=True)
    vfs.fail("sync", path="/s/checkpoint", forever=True)
    for _ in range(100):  # in most of these rounds nothing is due
        put(store, 200)
        dispatcher_of(store).dispatch_pending()
        clock.advance(1000)
        service.do_round()
    vfs.heal()
    for _ in range(3):
        put(store, 200)
        dispatcher_of(store).dispatch_pending()
        service.persist()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines)) == 4, lines
    for about in ("consume_queue", "checkpoint"):
        assert f"FlushService: {about} works again" in lines


def test_a_flush_that_ran_out_of_time_names_what_is_synced_and_what_is_not(
    store: DefaultMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, 500)
    with monkeypatch.context() as patch:
        patch.setattr(dispatcher_of(store), "dispatch_pending", lambda: 0)
        with pytest.raises(StoreBusy, match=r"all messages are synced.* last 500 bytes.* 5000 ms"):
            store.flush()
    assert log_of(store).synced_offset == 500
    store.flush()


def test_a_flush_whose_queues_find_no_room_is_refused_as_a_full_disk(
    store: DefaultMessageStore, vfs: FaultyVfs
) -> None:
    put(store, 500)
    vfs.fail("create", path="/s/consumequeue", error=errno.ENOSPC, forever=True)
    with pytest.raises(DiskFull):
        store.flush()
    vfs.heal()
    assert log_of(store).synced_offset == 500
    store.flush()


def test_the_flush_thread_syncs_one_put_after_the_thorough_interval(
    vfs: WatchedVfs, clock: ManualClock
) -> None:  # FLS-06
    with running(vfs, clock, layouts=frozenset()) as store:
        rounds = Rounds(opened_of(store).flusher)
        put = store.put_message(Message("T", b"x" * 100))
        rounds.wait()
        assert log_of(store).synced_offset == put.physical_offset == 0
        clock.advance(THREADED.flush_commit_log_thorough_interval)
        rounds.wait()
        assert log_of(store).synced_offset == put.size


def test_the_flush_thread_syncs_a_log_of_four_dirty_pages_at_its_interval(
    vfs: WatchedVfs, clock: ManualClock
) -> None:  # FLS-06
    with running(vfs, clock) as store:
        rounds = Rounds(opened_of(store).flusher)
        store.put_message(Message("T", b"x" * 4 * 4096))
        clock.advance(THREADED.flush_interval_commit_log)
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
        clock.advance(THREADED.flush_consume_queue_thorough_interval)
        vfs.wait_for(lambda: wanted <= {path for call, path in vfs.made if call == "sync"})


def test_the_flush_thread_works_at_the_shortest_of_its_intervals() -> None:
    for log, queues, seconds in ((500, 1000, 0.5), (600, 200, 0.2)):
        vfs, clock = WatchedVfs(MemoryVfs()), ManualClock()
        options = {"flush_interval_commit_log": log, "flush_interval_consume_queue": queues}
        config = THREADED.changed(**options)
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
