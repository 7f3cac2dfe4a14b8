"""The files of one queue: rolled, and told from what is none."""

from __future__ import annotations

import pytest

from rocketcompat.queues.consume_queue import ConsumeQueue
from rocketcompat.queues.table import ConsumeQueueTable
from tests.support.rocket.queues import put, queue_of, table_of
from tubestore.core.vfs import VfsFile
from tubestore.errors import NotAStore
from tubestore.testing.memory_vfs import MemoryVfs


def test_units_roll_into_the_next_file_and_are_read_over_the_border() -> None:
    vfs = MemoryVfs()
    queue = queue_of(vfs)
    put(queue, 0, 17)
    assert [name for name, _, _ in vfs.entries("/store/consumequeue/T/1")] == [
        "00000000000000000000",
        "00000000000000000140",
        "00000000000000000280",
    ]
    assert queue.units(3, 16)["tags_code"].tolist() == list(range(10, 23))
    assert queue.units_in_file(3, 800)["tags_code"].tolist() == [10, 11, 12, 13]
    assert len(queue.units(17, 20)) == 0


@pytest.mark.parametrize(("emptied", "end"), [(0, 17), (1, 17), (2, 14)])
def test_a_reader_passes_by_a_file_whose_length_a_power_cut_took(emptied: int, end: int) -> None:
    vfs = MemoryVfs()
    put(queue_of(vfs), 0, 17)
    empty(vfs, emptied)
    assert read_queue(vfs).max_offset == end


def test_the_end_is_before_an_empty_file_and_one_that_was_not_written() -> None:
    vfs = MemoryVfs()
    put(queue_of(vfs), 0, 15)
    empty(vfs, 1)
    empty(vfs, 2).pwrite(bytes(140), 0)
    assert read_queue(vfs).max_offset == 7


def empty(vfs: MemoryVfs, number: int) -> VfsFile:
    """Cut one of the queue's files to nothing, and return it."""
    file = vfs.open(f"/store/consumequeue/T/1/{140 * number:020d}", writable=True)
    file.truncate(0)
    return file


def read_queue(vfs: MemoryVfs) -> ConsumeQueue:
    """Return the queue as a reader has it."""
    table = ConsumeQueueTable(vfs, "/store/consumequeue", 140, writable=False)
    table.load()
    queue = table.find("T", 1)
    assert queue is not None
    return queue


def test_queues_of_rocksdb_are_refused() -> None:
    vfs = MemoryVfs()
    vfs.make_directories("/store/consumequeue")
    vfs.open("/store/consumequeue/CURRENT", create=True)
    with pytest.raises(NotAStore, match="RocksDB"):
        table_of(vfs).load()


def test_what_is_no_queue_is_passed_by() -> None:
    vfs = MemoryVfs()
    for name in ("T/0", "T/x", "T/07", "%RETRY%g/3"):
        vfs.make_directories(f"/store/consumequeue/{name}")
    table = table_of(vfs)
    table.load()
    assert [(queue.topic, queue.queue_id) for queue in table] == [("%RETRY%g", 3), ("T", 0)]
