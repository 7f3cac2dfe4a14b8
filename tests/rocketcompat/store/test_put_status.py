"""What is refused, and what RocketMQ would have answered."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message, MessageStoreConfig, PutStatus
from rocketcompat.messages import MessageBatch
from rocketcompat.record.batches import BatchItem
from rocketcompat.store.put_status import put_status_of
from tests.support.golden import ROCKET_VERSIONS, GoldenFactory
from tests.support.golden_puts import Again
from tests.support.rocket.inside import log_of
from tests.support.rocket.stores import opener
from tubestore.clock import ManualClock
from tubestore.errors import DiskFull, InvalidMessage, StoreBusy, TubeStoreError
from tubestore.testing import FaultyVfs, MemoryVfs

CONFIG = MessageStoreConfig(mapped_file_size_commit_log=4096, layouts=frozenset({"consume_queue"}))


opened = opener(CONFIG)


def status_of(store: Any, message: Message) -> PutStatus:
    try:
        status: PutStatus = store.put_message(message).status
    except (TubeStoreError, OSError) as error:
        return put_status_of(error, message, compat=store.config.compat)
    return status


@pytest.mark.gate
@pytest.mark.parametrize("version", ROCKET_VERSIONS)
def test_large_messages_are_answered_as_the_real_store_answers(
    golden: GoldenFactory, tmp_path: Path, version: str
) -> None:
    theirs = golden("rocketmq", version, "large")
    again = Again(theirs, tmp_path / "again")
    seen = set()
    for row in theirs.puts():
        expected = row["out"]["status"]
        assert status_of(again.store, again.message(row)).value == expected
        seen.add(expected)
    assert "PUT_OK" in seen
    assert len(seen) == 3
    again.close()


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (Message("T", b"x" * 100), PutStatus.PUT_OK),
        (Message("T", b"x" * 5000), PutStatus.MESSAGE_ILLEGAL),  # a real one burns files
        (Message("t" * 128), PutStatus.MESSAGE_ILLEGAL),
        (Message("é" * 64), PutStatus.MESSAGE_ILLEGAL),  # a real one cannot read it again
        (Message(""), PutStatus.MESSAGE_ILLEGAL),
        (Message("T", properties={"a": "b\x02"}), PutStatus.MESSAGE_ILLEGAL),
        (Message("T", properties="é" * 16384), PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ],
)
def test_each_refusal_has_its_status(
    clock: ManualClock, message: Message, status: PutStatus
) -> None:
    with opened(MemoryVfs(clock), clock) as store:
        assert status_of(store, message) is status


@pytest.mark.parametrize("durability", ["fsynced", "FSYNC", "", 0, True])
def test_a_misspelt_durability_is_refused_before_anything_is_written(
    clock: ManualClock, durability: Any
) -> None:
    batch = MessageBatch("T", [BatchItem(b"x")])
    inner = MessageBatch("T", [BatchItem(b"x", properties={"UNIQ_KEY": "k"})])
    with opened(MemoryVfs(clock), clock) as store:
        for put in (
            lambda: store.put_message(Message("T"), durability=durability),
            lambda: store.put_messages(batch, durability=durability),
            lambda: store.put_inner_batch(inner, durability=durability),
            lambda: store.put_columns({"topic": ["T"]}, durability=durability),
        ):
            with pytest.raises(InvalidMessage, match="none of 'page_cache', 'fsync'") as raised:
                put()
            assert raised.value.taken == "no"
        assert store.max_physical_offset == 0


def test_limits_of_the_disk_and_of_the_store_s_life_have_their_status(clock: ManualClock) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    store = opened(vfs, clock)
    vfs.fail("truncate", path="/s/commitlog", error=errno.ENOSPC)
    assert status_of(store, Message("T")) is PutStatus.CREATE_MAPPED_FILE_FAILED
    assert status_of(store, Message("T")) is PutStatus.PUT_OK
    log_of(store).refusals.too_full = DiskFull("/s", 91)
    assert status_of(store, Message("T")) is PutStatus.SERVICE_NOT_AVAILABLE
    log_of(store).refusals.too_full = None
    store.close()
    assert status_of(store, Message("T")) is PutStatus.SERVICE_NOT_AVAILABLE
    with rocketcompat.open("/s", "r", CONFIG, vfs=vfs, clock=clock) as reader:
        assert status_of(reader, Message("T")) is PutStatus.SERVICE_NOT_AVAILABLE
    assert put_status_of(RuntimeError()) is PutStatus.UNKNOWN_ERROR


class Hanging:
    """A file of the log whose writes wait until they are let go."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.entered, self.go = inner, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def pwrite(self, data: Any, position: int) -> None:
        self.entered.set()
        assert self.go.wait(30)
        self.inner.pwrite(data, position)


def test_a_put_does_not_wait_behind_one_that_hangs_in_the_disk(clock: ManualClock) -> None:
    with opened(MemoryVfs(clock), clock) as store:
        store.put_message(Message("T"))
        file = log_of(store).queue.last
        hanging = file._file = Hanging(file._file)
        first = threading.Thread(target=store.put_message, args=(Message("T", b"slow"),))
        first.start()
        assert hanging.entered.wait(30)
        clock.advance(1001)
        for put in (
            lambda: store.put_message(Message("T")),
            lambda: store.put_columns({"topic": ["T"]}),
        ):
            with pytest.raises(StoreBusy, match="1001 ms") as raised:
                put()
            assert put_status_of(raised.value) is PutStatus.OS_PAGE_CACHE_BUSY
        hanging.go.set()
        first.join(30)
        file._file = hanging.inner
        assert store.put_message(Message("T")).queue_offset == 2
