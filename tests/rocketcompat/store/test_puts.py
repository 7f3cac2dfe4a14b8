"""The way of a message to the log: alone, in columns, by several threads, at each level."""

from __future__ import annotations

import threading
import warnings
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import log_of
from tests.support.rocket.store.opened import OPTIONS, opened
from tubestore.clock import ManualClock, Time
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


NOW = 1_700_000_000_000
HOUR = 3_600_000
TIMES = [
    (NOW - 5, NOW - 5),
    ("-2h", NOW - 2 * HOUR),
    (timedelta(hours=1), NOW - HOUR),
    ("2023-11-14T22:13:20Z", NOW),
    (datetime(2023, 11, 14, 23, 13, 20, tzinfo=timezone(timedelta(hours=1))), NOW),
    (None, NOW),
]


def in_memory() -> DefaultMessageStore:
    clock = ManualClock(NOW)
    return rocketcompat.open(
        "/r", "w", OPTIONS, vfs=MemoryVfs(clock), clock=clock, background=False
    )


@pytest.mark.parametrize(("given", "stored"), TIMES)
def test_the_time_of_a_message_is_given_in_any_form(given: Time | None, stored: int) -> None:
    with in_memory() as store:
        message = Message("T", b"x", born_timestamp=given)
        placed = [store.put_message(message).physical_offset]
        batch = MessageBatch("T", [BatchItem(b"y")], born_timestamp=given)
        placed += store.put_messages(batch).physical_offsets
        assert (message.born_timestamp, batch.born_timestamp) == (given, given)
        if given is not None:
            columns = {"topic": ["T"], "born_timestamp": [given]}
            placed += store.put_columns(columns)["physical_offset"].to_pylist()
        assert {store.look_message(at).born_timestamp for at in placed} == {stored}


def test_a_time_that_looks_like_seconds_warns_where_it_is_given() -> None:
    with in_memory() as store:
        for put in (
            lambda: store.put_message(Message("T", born_timestamp=1_700_000_000)),
            lambda: store.put_messages(
                MessageBatch("T", [BatchItem()], born_timestamp=1_700_000_000)
            ),
        ):
            with pytest.warns(FutureWarning, match="born_timestamp = 1700000000") as found:
                put()
            assert found[0].filename == __file__


def test_a_stored_time_is_put_again_without_a_doubt() -> None:
    with in_memory() as store, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = store.put_message(Message("T", born_timestamp=1_700_000_000)).physical_offset
        warnings.simplefilter("error")
        record = store.look_message(first)
        again = [store.put_message(record), store.put_message(record.message("U"))]
        again.append(store.send_back(record, "g"))
        found = [store.look_message(put.physical_offset).born_timestamp for put in again]
    assert found == [1_700_000_000] * 3


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("born_timestamp", "yesterday", "born_timestamp: 'yesterday' is not a valid time"),
        ("born_timestamp", datetime(2026, 1, 1), "born_timestamp .* no time zone"),  # noqa: DTZ001
        ("born_timestamp", 1.5, "born_timestamp 1.5"),
        ("born_timestamp", 1 << 63, "born_timestamp: 9223372036854775808 does not fit 64 bits"),
        ("flag", 1 << 31, "flag: 2147483648 does not fit 32 bits"),
        ("queue_id", 1 << 31, "queue_id: 2147483648 does not fit 32 bits"),
        ("reconsume_times", "1", "reconsume_times: '1' is not a whole number"),
    ],
)
def test_a_number_that_no_record_holds_is_refused_by_the_name_of_its_field(
    field: str, value: Any, what: str
) -> None:
    with in_memory() as store:
        with pytest.raises(InvalidMessage, match=what):
            store.put_message(Message("T", b"x", **{field: value}))
        assert store.max_physical_offset == 0
