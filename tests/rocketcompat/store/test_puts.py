"""The way of a message to the log: alone, in columns, by several threads, at each level."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import rocketcompat
from rocketcompat import Message
from tests.support.rocket.inside import log_of
from tests.support.rocket.store.opened import OPTIONS, opened
from tubestore.clock import ManualClock
from tubestore.errors import (
    InvalidMessage,
)
from tubestore.testing import MemoryVfs


def test_columns_are_stored_like_single_messages(tmp_path: Path) -> None:
    bodies = [b"1", b"2", b"3"]
    table = pa.table({"topic": ["A", "B", "A"], "body": bodies, "keys": ["k", "k", "l"]})
    with opened(tmp_path) as store:
        placed = store.put_columns(table)
        assert placed.column_names == [
            "physical_offset", "queue_offset", "size", "store_timestamp", "status",
        ]  # fmt: skip
        assert placed["queue_offset"].to_pylist() == [0, 0, 1]
        for row, body in zip(placed.to_pylist(), bodies, strict=True):
            record = store.look_message(row["physical_offset"])
            assert (record.body, record.size) == (body, row["size"])
        store.wait_dispatched(placed["physical_offset"][-1].as_py())
        assert [m.body for m in store.get_message("A", 0, 0)] == [b"1", b"3"]
        with pytest.raises(InvalidMessage):
            store.put_columns({"topic": ["A"], "no": [1]})
        assert store.put_columns({"topic": pa.array([], pa.string())}).num_rows == 0


def test_threads_put_side_by_side(tmp_path: Path) -> None:
    with rocketcompat.open(tmp_path, "w", OPTIONS) as store:

        def work(number: int) -> None:
            for i in range(50):
                store.put_message(Message(f"T{number % 2}", b"%d" % i), durability="fsync"
                                  if i % 25 == 0 else None)  # fmt: skip

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.wait_dispatched(store.max_physical_offset - 1, timeout=30)
        assert store.dispatch_behind_bytes == 0
        assert [store.max_offset_in_queue(f"T{i}", 0) for i in (0, 1)] == [100, 100]


def test_fsync_is_on_stable_storage_and_page_cache_does_not_wait(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    with rocketcompat.open(
        "/s", "w", OPTIONS, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        before = log_of(store).sync_count
        first = store.put_message(Message("T", b"1"))
        assert log_of(store).sync_count == before
        second = store.put_message(Message("T", b"2"), durability="fsync")
        assert log_of(store).synced_offset == second.physical_offset + second.size
        assert first.physical_offset < log_of(store).synced_offset


def test_sync_flush_makes_every_put_durable(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    config = OPTIONS.changed(flush_disk_type="SYNC_FLUSH")
    with rocketcompat.open(
        "/s", "w", config, vfs=memory_vfs, clock=clock, background=False
    ) as store:
        store.put_message(Message("T"))
        store.put_columns({"topic": ["T"] * 50})
        assert log_of(store).synced_offset == store.max_physical_offset
        count = log_of(store).sync_count
        store.put_message(Message("T"), durability="page_cache")
        assert log_of(store).sync_count == count
