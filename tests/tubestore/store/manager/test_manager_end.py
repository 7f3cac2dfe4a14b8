"""A store for reading only, after its end, in a forked child; its threads and ids."""

from __future__ import annotations

import contextlib
import copy
import errno
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support.engine.ended import bodies
from tubestore.errors import DiskFull, ReadOnlyStore, StoreClosed, StoreLocked
from tubestore.shard.message_store import MessageStore
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs


# -- read only -------------------------------------------------------------------------------
def test_a_reader_refuses_every_write(tmp_path: Path) -> None:
    with tubestore.open(tmp_path) as store:
        store.create_topic("t").append(b"x")
    with tubestore.open(tmp_path, mode="r") as store:
        with pytest.raises(ReadOnlyStore):
            store.create_topic("u")
        with pytest.raises(ReadOnlyStore):
            store["t"].append(b"y")
        with pytest.raises(ReadOnlyStore):
            store["t"].append_batch({"body": [b"y"]})
        with pytest.raises(ReadOnlyStore):
            store.append_batch({"topic": ["t"], "body": [b"y"]})
        store.flush()
        store.sync()
        store.maintain()
        assert bodies(store["t"]) == [b"x"]


# -- the end ---------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["w", "r"])
def test_a_closed_store_refuses_everything(tmp_path: Path, mode: Any) -> None:
    with tubestore.open(tmp_path) as store:
        store.create_topic("t", stores=2).append(b"x", partition=0)
    store = tubestore.open(tmp_path, mode)
    topic = store["t"]
    assert bodies(topic) == [b"x"]
    store.close()
    store.close()
    calls: dict[str, Any] = {
        "create_topic": lambda: store.create_topic("u"),
        "topic": lambda: store.topic("t"),
        "append_batch": lambda: store.append_batch([{"topic": "t", "body": b"x"}]),
        "flush": store.flush,
        "sync": store.sync,
        "refresh": store.refresh,
        "topic.append": lambda: topic.append(b"x", partition=0),
        "topic.append elsewhere": lambda: topic.append(b"x", partition=10_000),
        "topic.append_batch": lambda: topic.append_batch({"body": [b"x"]}),
        "topic.read": lambda: topic.read(0),
        "topic.scan": lambda: topic.scan().read_all(),
        "topic.messages": lambda: list(topic.messages(0)),
        "topic.partitions": topic.partitions,
    }
    refused = {}
    for name, call in calls.items():
        try:
            call()
        except (StoreClosed, ReadOnlyStore) as error:
            refused[name] = type(error)
    assert sorted(refused) == sorted(calls)
    assert "the store is closed" in repr(store)


def test_what_was_read_stays_valid_after_close(tmp_path: Path) -> None:
    with tubestore.open(tmp_path) as store:
        topic = store.create_topic("t")
        topic.append_batch({"body": [b"%d" % n for n in range(1000)]})
        page = topic.read(0, limit=1000)
    assert [m.body for m in page] == [b"%d" % n for n in range(1000)]


def test_closing_writes_what_was_only_in_memory(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, durability="memory") as store:
        topic = store.create_topic("t", partitions=3, stores=3)
        topic.append_batch({"body": [b"x"] * 90})
    with tubestore.open(tmp_path, mode="r") as store:
        assert store["t"].scan().read_all().num_rows == 90


@pytest.mark.parametrize("background", [False, True])
def test_a_store_that_a_full_disk_keeps_from_closing_goes_on(
    memory_vfs: MemoryVfs, background: bool
) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, background=background, durability="memory")
    topic = store.create_topic("t", stores=3)
    faulty.fail("pwrite", path="t-1", error=errno.ENOSPC, forever=True)
    rows = {"body": [b"0", b"1", b"2"], "partition": [0, 10_000, 20_000]}
    topic.append_batch(rows)
    for time in range(2):
        with pytest.raises(DiskFull):
            store.close()
        assert [len(topic.read(p)) for p in rows["partition"]] == [1 + time, 1, 1]
        with pytest.raises(DiskFull) as caught:
            topic.append(b"refused", partition=10_000)
        assert caught.value.taken == "no"
        assert topic.append(b"x", partition=0).offset is not None
        with pytest.raises(StoreLocked):
            tubestore.open("/s", vfs=memory_vfs, background=False)
    faulty.heal()
    topic.append(b"y", partition=10_000)
    store.close()
    store.close()
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        counts = [len(store["t"].read(p)) for p in (0, 10_000, 20_000)]
    assert counts == [3, 2, 1]


def test_the_caller_can_give_up_what_cannot_be_written(
    memory_vfs: MemoryVfs, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, background=False, durability="memory")
    topic = store.create_topic("t", stores=2)
    topic.append(b"x", partition=0)
    topic.append(b"x", partition=10_000)
    faulty.fail("pwrite", path="t-1", error=errno.ENOSPC, forever=True)
    with pytest.raises(DiskFull):
        store.close()
    store.close(give_up=True)
    assert caplog.messages[-1] == "/s/t-1: closed without 53 bytes of messages"
    with pytest.raises(StoreClosed):
        topic.append(b"x", partition=0)
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        assert [len(store["t"].read(p)) for p in (0, 10_000)] == [1, 0]


def test_closing_needs_no_room_when_everything_is_written(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, background=False, segment_size_bytes=100)
    topic = store.create_topic("t")
    topic.append(b"x")
    store.flush()
    faulty.fail("create", error=errno.ENOSPC, forever=True)
    topic.append(b"x" * 100)
    store.flush()  # written; the next file cannot be made
    with pytest.raises(DiskFull):
        topic.append(b"x")
    store.flush()
    store.close()


def test_a_message_that_an_append_took_while_the_store_was_closed_is_in_it(
    memory_vfs: MemoryVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, background=False)
    topic = store.create_topic("t")
    topic.append(b"0", durability="memory")
    acknowledged = 1
    write = faulty.ask_write
    #: The append has ended, or it waits: the shard is held.
    arrived = threading.Event()
    shard = shards_of(topic).shard(0)
    assert isinstance(shard, MessageStore)
    put_later = shard._put_later

    def later(size: int, count: int, put: Any) -> Any:
        arrived.set()
        return put_later(size, count, put)

    monkeypatch.setattr(shard, "_put_later", later)

    def append_meanwhile(path: str, size: int) -> tuple[int, OSError | None]:
        thread.start()
        assert arrived.wait(30)
        faulty.ask_write = write  # type: ignore[method-assign]
        return write(path, size)

    def append() -> None:
        nonlocal acknowledged
        with contextlib.suppress(StoreClosed):
            topic.append(b"1", durability="memory")
            acknowledged += 1
        arrived.set()

    thread = threading.Thread(target=append)
    faulty.ask_write = append_meanwhile  # type: ignore[method-assign]
    store.close()
    thread.join(30)
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        assert len(store["t"].read(0)) == acknowledged


@pytest.mark.gate
def test_a_close_that_was_interrupted_anywhere_can_be_repeated() -> None:
    settings: dict[str, Any] = {
        "background": False, "durability": "memory", "journal_shards_min": 2
    }  # fmt: skip
    rows = {"body": [b"0", b"1"], "partition": [0, 10_000]}
    names = ["a", "b"]
    for nth in range(1_000):
        vfs = MemoryVfs()
        faulty = FaultyVfs(vfs)
        store = tubestore.open("/s", vfs=faulty, **settings)
        for name in names:
            store.create_topic(name)
        store.append_batch({"topic": names, "body": [b"x"] * 2}, durability="page_cache")
        store.create_topic("t", stores=2).append_batch(rows)
        interrupt_call(faulty, nth)
        try:
            store.close()
        except KeyboardInterrupt:
            assert "closed" not in repr(store)
            store.close()
        else:
            assert nth > 20
            return
        with tubestore.open("/s", vfs=vfs, **settings) as again:
            assert [len(again["t"].read(p)) for p in rows["partition"]] == [1, 1]
            assert [bodies(again[name]) for name in names] == [[b"x"]] * 2
            assert again.problems == []
    raise AssertionError("it did not end")


def interrupt_call(faulty: FaultyVfs, nth: int) -> None:
    """Interrupt the call to the disk that comes after `nth` others."""
    pass_, left = faulty._pass, nth

    def interrupt(call: str, path: str) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            raise KeyboardInterrupt
        return pass_(call, path)

    faulty._pass = interrupt  # type: ignore[method-assign]


def test_an_error_within_the_block_is_the_one_that_is_seen(memory_vfs: MemoryVfs) -> None:
    store = tubestore.open("/s", vfs=memory_vfs, background=False)

    def use() -> None:
        with store:
            store.create_topic("t").append(b"x", durability="memory")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    with tubestore.open("/s", vfs=memory_vfs, background=False) as again:
        assert bodies(again["t"]) == [b"x"]


def test_an_open_store_cannot_be_pickled_or_copied(store: MessageStoreManager) -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(store)
    with pytest.raises(TypeError):
        copy.copy(store)


def test_a_failed_close_does_not_hide_what_went_wrong_before(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)

    def use() -> None:
        with tubestore.open("/s", vfs=faulty, background=False) as store:
            store.create_topic("t").append(b"x", durability="memory")
            faulty.fail("sync")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
