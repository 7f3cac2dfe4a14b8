"""All queues of a store."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rocketcompat.messages import DispatchBatch
from tests.support.rocket.queues import table_of
from tubestore.testing.memory_vfs import MemoryVfs


def test_the_first_offset_follows_the_logs_minimum() -> None:
    """As upstream's testCorrectMinOffset; an expired queue begins at its end (5.3.3)."""
    vfs = MemoryVfs()
    table = table_of(vfs, 6_000)
    queue = table.find_or_create("T", 1)
    offsets = np.arange(10_000)
    queue.put_units(offsets, offsets * 100, np.full(10_000, 100), np.zeros(10_000))
    found = []
    for minimum in (0, 2000, 2001, 999_900, 1_000_000):
        table.correct_min_offset(minimum)
        found.append(queue.min_offset)
    assert found == [0, 20, 21, 9_999, 10_000]


def test_a_sync_covers_every_queue_that_was_written_once() -> None:
    vfs = MemoryVfs()
    table = table_of(vfs)
    for queue_id in range(3):
        table.find_or_create("T", queue_id)
    table.mark(0)
    none = np.empty(0, np.int64)
    columns = (none, none, [], *[none] * 7, None, *[none] * 3)
    table.put(DispatchBatch(0, 500, *columns))  # type: ignore[arg-type]
    table.flush(sync=False)
    assert table.ends == (500, 0)
    table.flush(sync=True)
    assert table.ends == (500, 500)


def test_a_batch_without_a_queued_record_is_taken(tmp_path: Path) -> None:
    """Prepared and rolled back messages alone made the followers of a store stop."""
    import rocketcompat
    from rocketcompat import Message

    with rocketcompat.open(tmp_path, "w", layouts={"consume_queue"}, background=False) as store:
        prepared = store.put_message(Message("T", b"half", sys_flag=0x4))
        assert store.wait_dispatched(prepared.physical_offset)
        assert store.problems == []
        assert store.put_message(Message("T", b"whole")).queue_offset == 0
