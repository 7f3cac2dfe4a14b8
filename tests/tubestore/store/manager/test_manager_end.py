"""A store for reading only, after its end, in a forked child; its threads and ids."""

from __future__ import annotations

import contextlib
import copy
import errno
import gc
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import tubestore
from tests.support import REPOSITORY
from tests.support.tube import RunningClock
from tubestore.clock import ManualClock
from tubestore.core.vfs import OsVfs
from tubestore.errors import (
    DiskFull,
    ReadOnlyStore,
    StoreClosed,
    StoreFailed,
    StoreLocked,
)
from tubestore.shard.message_store import MessageStore
from tubestore.store.manager import MessageStoreManager, engine_of
from tubestore.store.topic import shards_of
from tubestore.testing import FaultyVfs, MemoryVfs


def bodies(topic: Any, partition: int = 0) -> list[bytes | None]:
    return [m.body for m in topic.read(partition)]


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


def test_a_store_that_was_not_closed_warns_and_closes_itself(memory_vfs: MemoryVfs) -> None:
    store = tubestore.open("/s", vfs=memory_vfs, background=False)
    store.create_topic("t").append(b"x", durability="memory")
    with pytest.warns(ResourceWarning, match="was not closed"):  # noqa: PT031
        del store
        gc.collect()
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        assert bodies(store["t"]) == [b"x"]


def test_closing_writes_what_was_only_in_memory(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, durability="memory") as store:
        topic = store.create_topic("t", partitions=3, stores=3)
        topic.append_batch({"body": [b"x"] * 90})
    with tubestore.open(tmp_path, mode="r") as store:
        assert store["t"].scan().read_all().num_rows == 90


def test_all_shards_are_closed_even_when_one_fails(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, background=False, durability="memory")
    topic = store.create_topic("t", stores=3)
    topic.append_batch({"body": [b"x"] * 3, "partition": [0, 10_000, 20_000]})
    faulty.fail("pwrite", path="t-1", error=errno.EIO)
    with pytest.raises(StoreFailed):
        store.close()
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        counts = [len(store["t"].read(p)) for p in (0, 10_000, 20_000)]
    assert counts == [1, 0, 1]


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


def test_opening_a_store_again_closes_the_one_that_a_full_disk_kept_open(
    memory_vfs: MemoryVfs,
) -> None:
    faulty = FaultyVfs(memory_vfs)
    settings: dict[str, Any] = {"vfs": faulty, "background": False, "durability": "memory"}
    store = tubestore.open("/s", **settings)
    topic = store.create_topic("t")
    with pytest.raises(StoreLocked):
        tubestore.open("/s", **settings)
    topic.append(b"x")
    faulty.fail("pwrite", error=errno.ENOSPC, forever=True)
    with pytest.raises(DiskFull):
        store.close()
    with pytest.raises(DiskFull):
        tubestore.open("/s", **settings)
    assert bodies(topic) == [b"x"]
    faulty.heal()
    with tubestore.open("/s", **settings) as other:
        assert bodies(other["t"]) == [b"x"]
    with pytest.raises(StoreClosed):
        topic.append(b"y")


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
    faulty.fail("create", error=errno.ENOSPC, forever=True)
    topic.append(b"x" * 100)  # written; the next file cannot be made
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
    stall = shard._stall

    def stalled(size: int, count: int) -> None:
        arrived.set()
        stall(size, count)

    monkeypatch.setattr(shard, "_stall", stalled)

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


def test_a_shard_that_another_thread_opens_during_close_is_closed(memory_vfs: MemoryVfs) -> None:
    with tubestore.open("/s", vfs=memory_vfs, background=False) as store:
        store.create_topic("t").append(b"0")
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, background=False)
    topic = store["t"]
    closing = threading.Thread(target=store.close)
    ask = faulty.ask

    def close_meanwhile(call: str, path: str) -> None:
        faulty.ask = ask  # type: ignore[method-assign]
        closing.start()
        for _ in range(10_000):
            if "closed" in repr(store):
                break
            threading.Event().wait(0.001)
        ask(call, path)

    faulty.ask = close_meanwhile  # type: ignore[method-assign]
    shard = shards_of(topic).shard(0)
    closing.join(30)
    assert isinstance(shard, MessageStore)
    assert shard.is_over()


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


def test_a_failed_shard_does_not_stop_the_others(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)
    store = tubestore.open("/s", vfs=faulty, background=False)
    topic = store.create_topic("t", stores=2)
    faulty.fail("sync", path="t-0")
    with pytest.raises(StoreFailed):
        topic.append(b"x", partition=0, durability="fsync")
    topic.append(b"y", partition=10_000, durability="memory")
    assert bodies(topic, 10_000) == [b"y"]
    assert bodies(topic, 0) == [b"x"]
    with pytest.raises(StoreFailed, match="t-0"):
        store.close()
    with tubestore.open("/s", vfs=memory_vfs, background=False) as again:
        assert bodies(again["t"], 10_000) == [b"y"]


def test_a_failed_close_does_not_hide_what_went_wrong_before(memory_vfs: MemoryVfs) -> None:
    faulty = FaultyVfs(memory_vfs)

    def use() -> None:
        with tubestore.open("/s", vfs=faulty, background=False) as store:
            store.create_topic("t").append(b"x", durability="memory")
            faulty.fail("sync")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()


# -- fork ------------------------------------------------------------------------------------


def in_a_child(work: Any) -> str:
    """Run `work` in a fork and return what it answered; a child that hangs is killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = "nothing was raised"
        try:
            work()
        except BaseException as error:
            answer = type(error).__name__
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    timer = threading.Timer(5, os.kill, (pid, 9))
    timer.start()
    try:
        answer = os.read(reading, 100).decode() or "killed"
        os.waitpid(pid, 0)
    finally:
        timer.cancel()
        os.close(reading)
    return answer


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, background=False) as store:
        topic = store.create_topic("t", stores=2)
        topic.append(b"x", partition=0, durability="memory")
        for work in (
            lambda: topic.append(b"y", partition=0),
            lambda: topic.append(b"y", partition=10_000),
            lambda: topic.append_batch({"body": [b"y"]}),
            lambda: topic.read(0),
            lambda: store.create_topic("u"),
            lambda: store.flush(),
            lambda: store.sync(),
        ):
            assert in_a_child(work) == "StoreClosed"
        assert in_a_child(store.close) == "nothing was raised"
        with pytest.raises(StoreLocked):
            tubestore.open(tmp_path, vfs=OsVfs())
        assert topic.append(b"z", partition=0).offset == 28
        assert bodies(topic) == [b"x", b"z"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_was_in_a_call_does_not_hang(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"x")
        shard: Any = shards_of(topic).shard(0)
        with shard._append_lock, engine_of(store).topics.lock:  # as if other threads were inside
            assert in_a_child(lambda: topic.append(b"y")) == "StoreClosed"
            assert in_a_child(lambda: topic.read(0)) == "StoreClosed"
            assert in_a_child(store.sync) == "StoreClosed"


# -- background ------------------------------------------------------------------------------


def test_background_threads_end_with_the_store(tmp_path: Path) -> None:
    before = threading.active_count()
    with tubestore.open(tmp_path) as store:
        assert threading.active_count() > before
        store.create_topic("t").append(b"x")
    assert threading.active_count() == before


def test_message_ids_rise_and_go_on_after_the_clock_stepped_back(
    store: MessageStoreManager, clock: ManualClock
) -> None:
    counter = engine_of(store).context.ids
    ids = [counter.next()]
    clock.advance(-60_000)
    ids += [counter.next(), *counter.next_many(3).tolist(), counter.next()]
    clock.advance(120_000)
    ids.append(counter.next())
    assert ids == sorted(set(ids))


def test_a_new_topic_does_not_wait_for_room_that_idle_ones_hold(memory_vfs: MemoryVfs) -> None:
    """At the bound of all buffers the oldest are flushed first (D8)."""
    with tubestore.open(
        "/s",
        vfs=memory_vfs,
        clock=RunningClock(),
        background=False,
        durability="memory",
        memory_bound_bytes=4 * (64 << 10),
    ) as store:
        topic = store.create_topic("t", stores=10)
        for number in range(10):
            topic.append(b"x", partition=number * 10_000)
        assert engine_of(store).context.pool.used <= 4 * (64 << 10)


def test_at_the_bound_the_oldest_and_the_largest_buffers_are_written(
    memory_vfs: MemoryVfs,
) -> None:
    clock = ManualClock()
    with tubestore.open(
        "/s", vfs=memory_vfs, clock=clock, background=False, durability="memory"
    ) as store:
        topic = store.create_topic("t", stores=30)
        for number in range(30):  # the older, the smaller
            topic.append(b"x" * (number + 1), partition=number * 10_000)
            clock.advance(1)
        engine_of(store).context.pool.relieve()
        shards = shards_of(topic).written_shards()
        waiting = [shard.store_id for shard in shards if shard.dirty_bytes]
        assert waiting == list(range(8, 22))


@pytest.mark.gate
@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise ValueError", 1), ("sys.exit(3)", 3)])
def test_a_program_that_leaves_its_store_open_ends_and_its_messages_are_written(
    tmp_path: Path, end: str, code: int
) -> None:
    lines = (
        "import sys, tubestore",
        f"topic = tubestore.open({str(tmp_path)!r}).create_topic('t')",
        "topic.append(b'1', partition=0)",
        "topic.append(b'2', partition=0, durability='memory')",
        end,
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    ended = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, check=False, timeout=120, text=True
    )
    assert ended.returncode == code, ended.stderr
    assert "was not closed" not in ended.stderr  # Python shows a ResourceWarning on request only
    with tubestore.open(tmp_path, "r") as store:
        assert [message.body for message in store.topic("t").messages(0)] == [b"1", b"2"]
