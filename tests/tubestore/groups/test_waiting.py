"""One thread waits for the files of many shards."""

from __future__ import annotations

import threading

from tubestore.groups.waiting import FileWaiter
from tubestore.testing import MemoryVfs


def test_a_change_in_a_directory_makes_its_calls_once() -> None:
    vfs = MemoryVfs()
    vfs.make_directories("/a")
    vfs.make_directories("/b")
    waiter = FileWaiter(vfs)
    called = {"a": threading.Semaphore(0), "b": threading.Semaphore(0)}
    waiter.call_once(["/a"], called["a"].release)
    waiter.call_once(["/b"], called["b"].release)
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
    for _ in range(2):
        waiter.call_once(["/a"], called.release)
        assert called.acquire(timeout=60)
    waiter.close()


def test_a_waiter_that_was_never_asked_has_no_thread() -> None:
    waiter = FileWaiter(MemoryVfs())
    waiter.close()
    assert "tubestore-waiter" not in {thread.name for thread in threading.enumerate()}
