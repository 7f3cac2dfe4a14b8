"""The files of one queue: rolled, and told from what is none."""

from __future__ import annotations

import pytest

from tests.support.rocket.queues import put, queue_of, table_of
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
