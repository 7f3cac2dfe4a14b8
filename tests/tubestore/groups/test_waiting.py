"""One thread waits for the files of many shards."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

import tubestore
from tubestore.clock import ManualClock
from tubestore.groups import waiting
from tubestore.groups.waiting import FileWaiter, ReaderWaiter, Seen
from tubestore.shard.reader import ShardReader
from tubestore.staging.writer import StagedWriter
from tubestore.testing import MemoryVfs


def test_a_change_in_a_directory_makes_its_calls_once() -> None:
    vfs = MemoryVfs()
    vfs.make_directories("/a")
    vfs.make_directories("/b")
    waiter = FileWaiter(vfs)
    called = {"a": threading.Semaphore(0), "b": threading.Semaphore(0)}
    calls = {name: partial(called[name].release) for name in called}
    for name, call in calls.items():
        waiter.call_once([f"/{name}"], call)
    vfs.replace_file("/a/x", b"")
    assert called["a"].acquire(timeout=60)
    vfs.replace_file("/a/y", b"")
    vfs.replace_file("/b/y", b"")
    assert called["b"].acquire(timeout=60)
    assert not called["a"].acquire(blocking=False)
    waiter.close()


def test_a_directory_that_cannot_be_watched_is_looked_into_again_and_again() -> None:
    class Blind(MemoryVfs):
        def watch(self):  # type: ignore[no-untyped-def]
            raise OSError("no watches")

    waiter = FileWaiter(Blind())
    called = threading.Semaphore(0)
    call = partial(called.release)
    for _ in range(2):
        waiter.call_once(["/a"], call)
        assert called.acquire(timeout=60)
    waiter.close()


def test_a_waiter_that_was_never_asked_has_no_thread() -> None:
    waiter = FileWaiter(MemoryVfs())
    waiter.close()
    assert "tubestore-waiter" not in {thread.name for thread in threading.enumerate()}


def test_a_call_that_is_asked_for_twice_is_made_once() -> None:
    vfs = MemoryVfs()
    vfs.make_directories("/a")
    waiter = FileWaiter(vfs)
    called, other = threading.Semaphore(0), threading.Semaphore(0)
    call, other_call = partial(called.release), partial(other.release)
    for _ in range(3):
        waiter.call_once(["/a"], call)
    waiter.call_once(["/a"], other_call)
    vfs.replace_file("/a/x", b"")
    assert other.acquire(timeout=60)
    assert called.acquire(timeout=60)
    assert not called.acquire(blocking=False)
    waiter.close()


def test_a_call_that_is_asked_for_again_as_it_is_made_is_not_made_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that looked into the ring without a pause kept a core busy."""
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 3600.0)
    vfs = MemoryVfs()
    vfs.make_directories("/a")
    vfs.make_directories("/b")
    waiter = FileWaiter(vfs)
    looked, changed = threading.Semaphore(0), threading.Semaphore(0)
    changed_call = partial(changed.release)

    def look() -> None:
        waiter.call_once(["/a"], look, unreported=True)
        looked.release()

    waiter.call_once(["/a"], look, unreported=True)
    assert looked.acquire(timeout=60)
    for number in range(3):  # each time the thread goes round
        waiter.call_once(["/b"], changed_call)
        vfs.replace_file(f"/b/{number}", b"")
        assert changed.acquire(timeout=60)
    assert not looked.acquire(blocking=False)
    waiter.close()


def test_a_shard_without_files_is_waited_for_in_the_directory_that_will_get_them(
    memory_vfs: MemoryVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages in the ring come before the shard's first file."""
    asked: list[str] = []
    call_once = FileWaiter.call_once

    def noted(self: FileWaiter, directories: Iterable[str], call: Any, **how: Any) -> None:
        asked.extend(directories)
        call_once(self, directories, call, **how)

    monkeypatch.setattr(FileWaiter, "call_once", noted)
    how: Any = {"vfs": memory_vfs, "clock": clock, "background": False}
    with tubestore.open("/store", **how) as store:
        store.create_topic("t").append(b"first")
        with (
            tubestore.open("/store", "r", **how) as reader,
            reader.consumer(None, "t") as consumer,
        ):
            assert len(consumer.poll()) == 1
            assert len(consumer.poll()) == 0
            assert "/store" in asked
            assert all(map(memory_vfs.exists, asked))
            store.flush()
            store["t"].append(b"second")
            assert [message.body for message in consumer.poll(timeout=60)] == [b"second"]


def test_a_batch_in_the_journal_wakes_the_readers_of_its_shards_only(
    memory_vfs: MemoryVfs, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(30)]

    def opened(mode: Any) -> tubestore.MessageStoreManager:
        how: Any = {"vfs": memory_vfs, "clock": clock, "background": False}
        return tubestore.open("/store", mode, journal_shards_min=2, **how)

    read: list[str] = []
    refresh = ShardReader.refresh

    def counting(self: ShardReader, horizon: Any = None) -> None:
        read.append(self.topic)
        refresh(self, horizon)

    with opened("w") as store:
        for name in names:
            store.create_topic(name).append(b"first", durability="page_cache")
        with opened("r") as reader, reader.consumer(None, names) as consumer:
            first = consumer.poll()
            assert len(first) == len(names)
            for count in range(4):
                body = b"%d" % count
                store.append_batch({"topic": ["t7", "t9"], "body": [body] * 2})
                found = consumer.poll(timeout=60)
                while len(found) < 2:
                    found = consumer.poll(timeout=60)
                assert [message.body for message in found] == [body] * 2
                consumer.poll()
                if count == 1:
                    # The first look wakes all of them, one after the other. A second one, in
                    # the same thread, has begun after the last of these calls.
                    monkeypatch.setattr(ShardReader, "refresh", counting)
            assert set(read) == {"t7", "t9"}


def test_a_ring_that_is_begun_while_a_reader_waits_is_looked_into_from_then_on() -> None:
    """Its first segment is reported, what enters it is not."""

    class Unchanged:
        def shows(self, parts: object) -> bool:
            return True

    vfs = MemoryVfs()
    vfs.make_directories("/own")
    ring, looks = threading.Event(), threading.Semaphore(0)

    def see() -> Seen:
        looks.release()
        return Seen(0, lambda shard: (), ring.is_set)

    waiter = ReaderWaiter(vfs, "/own", see)
    shard: Any = Unchanged()
    calls = [lambda: None, lambda: None]
    for call in calls:  # the first is made, as nothing was seen before
        waiter.call_once("t-0", "/elsewhere", shard, call)
        assert looks.acquire(timeout=60)
    ring.set()
    vfs.replace_file("/own/segment", b"")
    for _ in range(5):
        assert looks.acquire(timeout=60)
    waiter.close()


def test_a_published_job_wakes_a_reader(memory_vfs: MemoryVfs, clock: ManualClock) -> None:
    how: Any = {"vfs": memory_vfs, "clock": clock, "background": False}
    with tubestore.open("/store", **how) as store:
        store.create_topic("t").append(b"first", durability="page_cache")
        with (
            tubestore.open("/store", "r", **how) as reader,
            reader.consumer(None, "t") as consumer,
        ):
            assert len(consumer.poll()) == 1
            assert len(consumer.poll()) == 0
            with StagedWriter("/store", "job", "0", vfs=memory_vfs) as writer:
                writer.write({"topic": ["t"], "partition": [0], "body": [b"staged"]})
                staged = writer.finish()
            store.publish("job", staged)
            found = consumer.poll(timeout=60)
            assert [message.body for message in found] == [b"staged"]


def test_what_cannot_be_seen_wakes_everyone_and_the_thread_goes_on(
    memory_vfs: MemoryVfs,
) -> None:
    def see() -> Any:
        raise OSError("no such disk")

    memory_vfs.make_directories("/own")
    waiter = ReaderWaiter(memory_vfs, "/own", see)
    called = threading.Semaphore(0)
    shard: Any = None
    call = partial(called.release)
    for number in range(2):
        waiter.call_once("t-0", "/elsewhere", shard, call)
        memory_vfs.replace_file(f"/own/{number}", b"")
        assert called.acquire(timeout=60)
    waiter.close()
