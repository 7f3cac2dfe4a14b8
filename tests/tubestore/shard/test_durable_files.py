"""A shard's files without its buffers: what is written, safe, refused and let in again."""

from __future__ import annotations

import errno
import threading

import pytest

from tests.support.tube import encode_rows, make_rows
from tubestore.clock import ManualClock
from tubestore.errors import DiskFull, StoreClosed, StoreFailed
from tubestore.options import StoreOptions
from tubestore.record.records import Placed
from tubestore.segments.file_store import MsgFileStore
from tubestore.shard.announcements import Announcements
from tubestore.shard.durable_files import DurableFiles
from tubestore.shard.statistics import ShardCounters
from tubestore.testing import FaultyVfs, MemoryVfs

HOME = "/store/t-0"


class Opened:
    """Durable files with what a shard hands in."""

    def __init__(self, vfs: FaultyVfs, **options: int) -> None:
        settings = StoreOptions(**options)
        files = MsgFileStore(vfs, HOME, 0, settings)
        files.load(writable=True)
        self.lock = threading.Lock()
        self.closed_room = 0
        self.clock, self.counters = ManualClock(), ShardCounters()
        self.durable = DurableFiles(
            files,
            options=settings,
            clock=self.clock,
            counters=self.counters,
            lock=self.lock,
            changed=Announcements(),
            close_room=self.close_room,
        )

    def close_room(self) -> None:
        self.closed_room += 1

    def write(self, count: int = 1) -> None:
        durable = self.durable
        index, data = durable.visible.index_end, durable.visible.data_end
        try:
            durable.visible = durable.write(
                (Placed(index, data, encode_rows(make_rows(count), index, data)),)
            )
        finally:
            durable.check_invariants()
        durable.roll_after(count)
        durable.check_invariants()


@pytest.fixture
def faulty(memory_vfs: MemoryVfs) -> FaultyVfs:
    return FaultyVfs(memory_vfs)


def test_written_data_is_unsynced_until_a_sync_covers_it(faulty: FaultyVfs) -> None:
    opened = Opened(faulty)
    durable = opened.durable
    opened.write(3)
    assert durable.unsynced_bytes == durable.visible.data_end > 0
    durable.sync_data(durable.visible.data_end)
    durable.check_invariants()
    assert (durable.unsynced_bytes, opened.counters.syncs) == (0, 1)
    durable.sync_data(durable.visible.data_end)
    assert opened.counters.syncs == 1


def test_a_sync_is_due_by_messages_by_bytes_and_by_time(faulty: FaultyVfs) -> None:
    by_count = Opened(faulty, sync_after_messages=2, sync_after_ms=1000)
    by_count.write()
    assert not by_count.durable.is_sync_due()
    by_count.write()
    assert by_count.durable.is_sync_due()
    assert not by_count.durable.is_sync_overdue()
    by_count.clock.advance(1000)
    assert by_count.durable.is_sync_overdue()
    by_count.durable.sync_all()
    assert not by_count.durable.is_sync_due()
    assert not by_count.durable.is_sync_overdue()


def test_a_full_disk_refuses_until_there_is_room_and_is_logged_once(
    faulty: FaultyVfs, caplog: pytest.LogCaptureFixture
) -> None:
    opened = Opened(faulty)
    opened.write()
    faulty.fail("pwrite", error=errno.ENOSPC, forever=True)
    for _ in range(3):
        with pytest.raises(DiskFull):
            opened.write()
    assert opened.durable.is_full
    assert not opened.durable.failed
    assert opened.closed_room == 3
    opened.durable.check_usable()  # the next flush tries again
    assert len(caplog.records) == 1
    faulty.heal()
    opened.write()
    opened.durable.note_room()
    assert opened.durable.trouble is None
    assert "there is room on the disk again" in caplog.text


@pytest.mark.parametrize("call", ["pwrite", "sync"])
def test_any_other_failure_is_for_good(
    faulty: FaultyVfs, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened = Opened(faulty)
    durable = opened.durable
    opened.write()
    faulty.fail(call)
    with pytest.raises(StoreFailed):
        opened.write() if call == "pwrite" else durable.sync_all()
    durable.check_invariants()
    assert durable.failed
    for refused in (durable.check_usable, durable.sync_all, durable.roll_again):
        with pytest.raises(StoreFailed):
            refused()
    durable.note_room()
    with pytest.raises(StoreFailed):
        durable.check_usable()
    assert len(caplog.records) == 1


def test_a_failed_shard_stays_failed_until_it_is_closed(faulty: FaultyVfs) -> None:
    opened = Opened(faulty)
    durable = opened.durable
    durable.fail("first")
    durable.fail("second")
    with pytest.raises(StoreFailed, match="first"):
        durable.check_usable()
    assert not durable.is_closed
    with opened.lock:
        durable.refuse(StoreClosed("closed"))
    durable.fail("third")
    with pytest.raises(StoreClosed):
        durable.check_usable()
    durable.check_invariants()


def test_a_raised_error_is_a_new_one_each_time(faulty: FaultyVfs) -> None:
    durable = Opened(faulty).durable
    raised = durable.fail("sync: EIO")
    with pytest.raises(StoreFailed) as caught:
        durable.check_usable()
    assert caught.value is not raised
    assert caught.value is not durable.trouble


def test_a_full_segment_is_sealed_and_waits_for_room_if_there_is_none(faulty: FaultyVfs) -> None:
    opened = Opened(faulty, segment_size_bytes=100)
    faulty.fail("create", nth=3, error=errno.ENOSPC, forever=True)
    opened.write(5)
    assert opened.durable.is_full
    assert len(list(opened.durable.files.data)) == 1
    faulty.heal()
    opened.durable.roll_again()
    opened.durable.check_invariants()
    assert not opened.durable.is_full
    assert len(list(opened.durable.files.data)) == 2


def test_data_of_an_earlier_process_is_synced_once(faulty: FaultyVfs) -> None:
    opened = Opened(faulty)
    opened.write()
    opened.durable.files.close()
    again = Opened(faulty)
    again.durable.files.distrust_directories()
    before = faulty.calls["sync"]
    again.durable.sync_data_once(again.durable.visible.data_end)
    assert faulty.calls["sync"] == before + 1
    again.durable.sync_data_once(again.durable.visible.data_end)
    assert faulty.calls["sync"] == before + 1


def test_what_a_sync_of_the_file_system_covered_is_not_synced_again(faulty: FaultyVfs) -> None:
    opened = Opened(faulty)
    durable = opened.durable
    opened.write()
    end = durable.visible.data_end
    durable.note_synced(end + 1000)  # no more than there is
    before = faulty.calls["sync"]
    durable.sync_data_once(end)
    assert faulty.calls["sync"] == before
    opened.write()
    durable.sync_data_once(durable.visible.data_end)
    assert faulty.calls["sync"] == before + 1


def test_a_cut_takes_back_what_a_sync_of_the_file_system_covered(faulty: FaultyVfs) -> None:
    opened = Opened(faulty)
    durable = opened.durable
    opened.write(4)
    durable.note_synced(durable.visible.data_end)
    durable.cut(56)
    opened.write(2)
    assert not durable.is_durable(durable.visible.data_end)


def test_a_cut_takes_back_what_was_safe(faulty: FaultyVfs) -> None:
    opened = Opened(faulty)
    durable = opened.durable
    opened.write(4)
    durable.sync_all()
    index_file, data_file = durable.files_from(56)
    data_end = durable.cut(56)
    assert (index_file[1], data_file[1]) == (56, data_end)
    durable.check_invariants()
    assert (durable.visible.index_end, durable.visible.data_end) == (56, data_end)
    opened.write()
    assert durable.unsynced_bytes > 0


def test_a_contradiction_is_found(faulty: FaultyVfs) -> None:
    opened = Opened(faulty)
    opened.write()
    opened.durable.failed = True
    with pytest.raises(AssertionError, match="failed, and takes appends"):
        opened.durable.check_invariants()
    opened.durable.failed = False
    opened.durable.commits.end = 1 << 40
    with pytest.raises(AssertionError, match="more is safe than was written"):
        opened.durable.check_invariants()
