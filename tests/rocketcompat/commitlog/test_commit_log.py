"""The CommitLog: places, rolling, group commit, full disks and failed syncs."""

from __future__ import annotations

import errno
import threading

import numpy as np
import pytest

from rocketcompat.commitlog.commit_log import CommitLog, PartPlaced
from rocketcompat.commitlog.reads import record_at
from rocketcompat.commitlog.walk import scan
from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.record.encode import encode_columns
from tests.support.rocket.files.logs import CONFIG, DIRECTORY, FIXED, SIZE, opened, put
from tests.support.rocket.files.logs import log as log
from tubestore.clock import ManualClock
from tubestore.errors import DiskFull, MessageTooLarge, StoreFailed
from tubestore.testing import FaultyVfs, MemoryVfs


def test_a_record_may_end_eight_bytes_before_the_end_of_the_file(log: CommitLog) -> None:
    assert put(log, 500)[0] == 0
    assert put(log, SIZE - 500 - 8)[0] == 500
    assert put(log, SIZE - 8)[0] == SIZE
    assert put(log, 100)[0] == 2 * SIZE
    for end in (SIZE, 2 * SIZE):
        assert log.read_at(end - 8, 8) == bytes.fromhex("00000008cbd43194")


def test_one_byte_more_goes_to_the_next_file_behind_a_blank(log: CommitLog) -> None:
    put(log, 500)
    assert put(log, SIZE - 500 - 7)[0] == SIZE
    assert log.read_at(500, 8) == (SIZE - 500).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    assert not any(log.read_at(508, SIZE))


def test_a_record_larger_than_a_file_is_refused_before_anything_is_written(
    log: CommitLog, memory_vfs: MemoryVfs
) -> None:
    with pytest.raises(MessageTooLarge):
        put(log, SIZE - 7)
    assert memory_vfs.tree() == {}


def test_a_batch_is_split_at_the_end_of_a_file(log: CommitLog) -> None:
    put(log, 100)
    bodies = [b"x" * (230 - FIXED)] * 9
    encoded = encode_columns({"topic": ["T"] * 9, "body": bodies}, CONFIG)
    places, numbers, _ = log.put_columns(encoded)
    assert places.tolist() == [100, 330, 560, 1000, 1230, 1460, 1690, 2000, 2230]
    assert numbers.tolist() == list(range(1, 10))
    found = [piece.base + s for piece in scan(log.queue, 0, log.max_offset) for s in piece.starts]
    assert found == [0, *places.tolist()]


def test_an_empty_batch_is_nothing(log: CommitLog) -> None:
    places, numbers, _ = log.put_columns(encode_columns({"topic": np.array([], "U")}, CONFIG))
    assert len(places) == len(numbers) == log.max_offset == 0


def test_a_full_disk_refuses_and_may_be_tried_again(clock: ManualClock) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    log = opened(vfs, clock)
    put(log, 200)
    vfs.fail("pwrite", error=errno.ENOSPC, written=77)
    with pytest.raises(OSError, match="No space"):
        put(log, 300)
    assert log.max_offset == 200
    assert not any(log.queue.files[0]._file.pread(SIZE, 200))
    assert put(log, 150)[:2] == (200, 1)


def test_a_disk_that_is_full_at_a_new_file_leaves_the_log_whole(clock: ManualClock) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    log = opened(vfs, clock)
    put(log, 800)
    vfs.fail("truncate", error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        put(log, 800)
    assert put(log, 800)[:2] == (SIZE, 1)
    assert sum(len(p.starts) for p in scan(log.queue, 0, log.max_offset)) == 2


def test_a_batch_that_meets_a_full_disk_keeps_the_rows_before(clock: ManualClock) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    log = opened(vfs, clock)
    encoded = encode_columns({"topic": ["T"] * 9, "body": [b"x" * (230 - FIXED)] * 9}, CONFIG)
    vfs.fail("truncate", nth=2, error=errno.ENOSPC)
    with pytest.raises(PartPlaced, match="No space") as raised:
        log.put_columns(encoded)
    assert raised.value.queue_offsets.tolist() == [0, 1, 2, 3]
    assert isinstance(raised.value.cause, DiskFull)
    assert raised.value.cause.taken == "no"
    assert log.next_queue_offset("T", 0) == 4
    assert put(log, 100)[:2] == (SIZE, 4)


def test_a_broken_disk_fails_the_log(clock: ManualClock) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    log = opened(vfs, clock)
    put(log, 200)
    vfs.fail("pwrite", error=errno.EIO)
    with pytest.raises(StoreFailed):
        put(log, 200)
    with pytest.raises(StoreFailed):
        put(log, 200)
    assert record_at(log, 0).topic == "T"


def test_after_a_failed_sync_nothing_is_acknowledged(clock: ManualClock) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    log = opened(vfs, clock)
    put(log, 200)
    vfs.fail("sync")
    for _ in range(2):
        with pytest.raises(StoreFailed):
            log.sync_to(200)
    with pytest.raises(StoreFailed):
        put(log, 200)
    assert log.synced_offset == 0


def test_waiters_share_one_sync(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    log = opened(memory_vfs, clock)
    running, go_on = threading.Event(), threading.Event()
    flush = log.queue.flush

    def slow() -> bool:
        running.set()
        go_on.wait(10)
        return flush()

    log.queue.flush = slow  # type: ignore[method-assign]
    first = put(log, 100)[0]
    leader = threading.Thread(target=log.sync_to, args=(first + 100,))
    leader.start()
    running.wait(10)
    waiters = []
    for _ in range(16):
        end = put(log, 100)[0] + 100
        waiters.append(threading.Thread(target=log.sync_to, args=(end,)))
        waiters[-1].start()
    go_on.set()
    for thread in (leader, *waiters):
        thread.join(10)
    assert log.synced_offset == log.max_offset
    assert log.sync_count <= 3
    assert log.sync_to(log.max_offset)


def test_a_sync_covers_the_directory_of_a_new_file(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    journal = memory_vfs.record()
    log = opened(memory_vfs, clock)
    put(log, 900)
    put(log, 900)
    log.flush()
    kinds = [(call.kind, call.path) for call in journal.calls]
    assert ("sync_directory", DIRECTORY) in kinds
    assert sum(kind == "sync" for kind, _ in kinds) == 2


def test_a_cut_leaves_nothing_behind(memory_vfs: MemoryVfs) -> None:
    queue = MappedFileQueue(memory_vfs, "/q", 100)
    queue.write_at(0, b"\xff" * 350)
    assert queue.truncate_dirty_files(130) > 0
    assert [file.file_from_offset for file in queue.files] == [0, 100]
    assert queue.max_offset == 130
    tree = memory_vfs.tree()
    assert tree[f"/q/{100:020d}"] == b"\xff" * 30 + bytes(70)


def test_what_was_written_over_files_is_read_back(memory_vfs: MemoryVfs) -> None:
    queue = MappedFileQueue(memory_vfs, "/q", 100)
    queue.write_at(90, b"a" * 120)
    assert queue.read(90, 10) + queue.read(100, 100) + queue.read(200, 50) == b"a" * 120
    assert queue.read(210, 5) == queue.read(5000, 5) == b""
    assert queue.flushed_where == 0
    assert queue.flush()
    assert not queue.flush()


def test_a_view_stays_valid_when_its_file_is_gone(memory_vfs: MemoryVfs) -> None:
    queue = MappedFileQueue(memory_vfs, "/q", 100)
    queue.write_at(0, b"a" * 150)
    views = [file.view(1 << 30) for file in queue.files]
    queue.delete_oldest()
    queue.close()
    assert [bytes(view) for view in views] == [b"a" * 100, b"a" * 50]
