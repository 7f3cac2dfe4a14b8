"""Whatever call to the disk fails, the public calls raise errors of ours and no other ones."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.messages import MessageBatch
from rocketcompat.options import LAYOUTS
from rocketcompat.record.batches import BatchItem
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.refused_calls import Files, refusals
from tubestore.clock import ManualClock
from tubestore.errors import StorageError
from tubestore.testing import FaultyVfs, MemoryVfs

Store = DefaultMessageStore
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=1024, mapped_file_size_consume_queue=100, max_hash_slot_num=5,
    max_index_num=9, file_reserved_time=1, layouts=LAYOUTS,
)  # fmt: skip
HOURS_MS = 3_600_000
#: The public calls that touch files, each on a store that has messages and was opened anew.
CALLS: dict[str, Callable[[Store], Any]] = {
    "put_message": lambda s: s.put_message(Message("T", b"x" * 600, keys="k"), durability="fsync"),
    "put_columns": lambda s: s.put_columns({"topic": ["T", "U"] * 6}, durability="fsync"),
    "put_messages": lambda s: s.put_messages(MessageBatch("T", [BatchItem(b"x")] * 3)),
    "flush": lambda s: (s.put_message(Message("T", keys="k")), s.flush()),
    "deliver_due": lambda s: (s.put_message(Message("T", delay_level=1)), s.deliver_due()),
    "wait_dispatched": lambda s: s.wait_dispatched(
        s.put_message(Message("T", keys="k")).physical_offset
    ),
    "clean": lambda s: s.clean(),
    "clean, as a dry run": lambda s: s.clean(dry_run=True),
    "clean_staging": lambda s: s.clean_staging(),
    "stats": lambda s: s.stats(),
    "refresh": lambda s: s.refresh(),
    "get_message": lambda s: s.get_message("T", 0, 0),
    "query_message": lambda s: s.query_message("T", "k"),
    "query_messages": lambda s: s.query_messages("T", ["k", "k1"]),
    "read_queue": lambda s: s.read_queue("T", 0),
    "read_queues": lambda s: s.read_queues({("T", 0): 0, ("U", 0): 0}),
    "scan": lambda s: list(s.scan(verify=True)),
    "look_message": lambda s: s.look_message(s.min_physical_offset),
    "commit_log_data": lambda s: s.commit_log_data(0),
    "places": lambda s: (s.min_offset_in_queue("T", 0), s.max_offset_in_queue("T", 0)),
    "queue_table": lambda s: s.queue_table(),
    "times": lambda s: (
        s.offset_in_queue_by_time("T", 0, 5), s.message_store_timestamp("T", 0, 1),
        s.earliest_message_time("T"), s.earliest_message_time(),
    ),
    "close": lambda s: (s.put_message(Message("T", keys="k")), s.close()),
}  # fmt: skip


#: Calls that a writer makes without the disk.
NO_CALLS = {"clean, as a dry run", "stats", "refresh"}


@functools.cache
def files() -> Files:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    with rocketcompat.open("/s", "w", CONFIG, vfs=vfs, clock=clock, background=False) as store:
        for number in range(12):
            store.put_message(Message("TU"[number % 2], b"x" * 90, keys=f"k{number % 3}"))
    clock.advance(2 * HOURS_MS)
    return Files(vfs, clock)


def open_store(mode: Any, vfs: FaultyVfs, clock: ManualClock) -> Store:
    return rocketcompat.open("/s", mode, CONFIG, vfs=vfs, clock=clock, background=False)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_the_system_refuses_raises_a_documented_error(name: str) -> None:
    assert (
        refusals(lambda: files().opened(partial(open_store, "w")), CALLS[name]) or name in NO_CALLS
    )


@pytest.mark.parametrize(
    "name", ["get_message", "query_messages", "read_queue", "scan", "times", "refresh"]
)
def test_a_reader_raises_documented_errors_too(name: str) -> None:
    assert refusals(lambda: files().opened(partial(open_store, "r")), CALLS[name])


@pytest.mark.parametrize("mode", ["w", "r"])
def test_opening_and_closing_raise_documented_errors(mode: Any) -> None:
    assert refusals(lambda: files().opening(partial(open_store, mode)), lambda use: use())


def test_the_error_names_the_file_and_keeps_its_cause() -> None:
    faulty, clock = files().again()
    faulty.fail("lock", error=errno.EACCES)
    with pytest.raises(StorageError) as caught:
        rocketcompat.open("/s", "w", CONFIG, vfs=faulty, clock=clock)
    error = caught.value
    assert error.errno == errno.EACCES
    assert str(error.filename).startswith("/s")
    assert isinstance(error.__cause__, OSError)
