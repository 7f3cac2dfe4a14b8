"""Publishing that is refused or fails: nothing of the job before its record, all of it after."""

from __future__ import annotations

import contextlib
import errno
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tubestore
from tests.support.faults import WatchingVfs
from tests.support.publishing import CLOCK, ROOT, batch, bodies, numbered, open_store, stage
from tests.support.publishing import store as store
from tests.support.publishing import vfs as vfs
from tubestore.errors import (
    DiskFull,
    InvalidMessage,
    InvalidName,
    ReadOnlyStore,
    StoreClosed,
    StoreFailed,
    StoreLocked,
)
from tubestore.staging.commit_records import CommitRecords
from tubestore.staging.job_files import StagedFile
from tubestore.testing import FaultyVfs, MemoryVfs


def tamper(vfs: MemoryVfs, file: StagedFile, suffix: str, change: Callable[[bytes], bytes]) -> None:
    path = f"{ROOT}/.tubestore/staging/job-j/{file.name}{suffix}"
    vfs.replace_file(path, change(vfs.read_file(path)))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("suffix", [".tube", ".index"])
@pytest.mark.parametrize("change", [flipped, lambda data: data[:-1], lambda data: data + b"\0"])
def test_a_staged_file_that_is_not_what_was_staged_is_refused(
    vfs: MemoryVfs,
    store: tubestore.MessageStoreManager,
    suffix: str,
    change: Callable[[bytes], bytes],
) -> None:
    store["a"].append(b"before", partition=0)
    staged = stage(vfs, "j", batch(numbered(9)))
    tamper(vfs, staged[1], suffix, change)
    with pytest.raises(InvalidMessage, match="staged"):
        store.publish("j", staged)
    store["a"].append(b"after", partition=0)
    assert bodies(store) == [b"before", b"after"]
    good = stage(vfs, "j", batch(numbered(9)), attempt="1")
    assert store.publish("j", good).rows == 9


def test_what_is_missing_given_twice_or_nonsense_is_refused(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    staged = stage(vfs, "j", batch(numbered(3)))
    with pytest.raises(InvalidMessage, match="is missing"):
        store.publish("other", staged)
    with pytest.raises(InvalidMessage, match="twice"):
        store.publish("j", [*staged, staged[0]])
    with pytest.raises(InvalidMessage, match="description"):
        store.publish("j", [{"topic": "a"}])
    with pytest.raises(InvalidName):
        store.publish("", staged)
    lying = {**staged[0].as_json(), "store_id": 1}
    with pytest.raises(InvalidMessage, match="index"):
        store.publish("j", [lying])
    assert store.publish("j", [f.as_json() for f in staged]).rows == 3


def test_a_reading_store_and_a_closed_one_publish_nothing(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    staged = stage(vfs, "j", batch([b"x"]))
    with open_store(vfs, "r") as reader, pytest.raises(ReadOnlyStore):
        reader.publish("j", staged)
    store.close()
    with pytest.raises(StoreClosed):
        store.publish("j", staged)


def test_another_publisher_is_noticed(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = stage(vfs, "j", batch([b"x"]))
    other = CommitRecords(vfs, ROOT)
    draft = CommitRecords.draft

    def race(self: CommitRecords, record: Any) -> None:
        draft(self, record)
        vfs.replace_file(self.path(1), b"{}")

    monkeypatch.setattr(CommitRecords, "draft", race)
    with pytest.raises(StoreLocked):
        store.publish("j", staged)
    assert other.finished() == 0
    store["a"].append(b"goes on", partition=0)


@pytest.mark.gate
def test_a_failure_before_the_record_changes_nothing(vfs: MemoryVfs) -> None:
    calls = _calls_until_the_record(vfs)
    assert len(calls) > 10
    for (call, nth), number in itertools.product(calls, (errno.EIO, errno.ENOSPC)):
        inner = MemoryVfs(CLOCK)
        faulty = FaultyVfs(inner)
        store = open_store(faulty)
        store.create_topic("a", partitions=3, stores=2)
        store["a"].append(b"before", partition=0)
        staged = stage(inner, "j", batch(numbered(9)))
        faulty.fail(call, nth=nth, error=number)
        with pytest.raises((StoreFailed, DiskFull)):
            store.publish("j", staged)
        faulty.heal()
        assert CommitRecords(inner, ROOT).pending() is None, (call, nth)
        with contextlib.suppress(StoreFailed):  # a shard that could not be synced
            store.publish("j", staged)
        with contextlib.suppress(StoreFailed):
            store.close()
        with open_store(inner) as again:
            assert again.publish("j", staged).rows == 9
            assert len(bodies(again)) == 10


def _calls_until_the_record(vfs: MemoryVfs) -> list[tuple[str, int]]:
    """Every fallible call of a publish before its link, as (kind, number of that kind)."""
    watching = WatchingVfs(vfs)
    with open_store(watching) as store:
        store.create_topic("a", partitions=3, stores=2)
        store["a"].append(b"before", partition=0)
        staged = stage(vfs, "j", batch(numbered(9)))
        watching.on = True
        store.publish("j", staged)
        watching.on = False
    return watching.calls_until_the_record()


def test_appends_wait_while_a_job_is_published_and_then_go_on(vfs: MemoryVfs) -> None:
    class Waiting(FaultyVfs):
        reached, go = threading.Event(), threading.Event()

        def link(self, source: str, target: str) -> None:
            self.reached.set()
            assert self.go.wait(10)
            super().link(source, target)

    waiting = Waiting(vfs)
    with open_store(waiting, background=True, append_timeout_ms=0, clock=None) as store:
        store.create_topic("a", partitions=3, stores=2)
        store["a"].append(b"before", partition=0)
        staged = stage(vfs, "j", batch(numbered(3), partitions=(0,)))
        publisher = threading.Thread(target=store.publish, args=("j", staged))
        publisher.start()
        assert waiting.reached.wait(10)
        appended: list[tubestore.Ack] = []
        appenders = [
            threading.Thread(
                target=lambda level=level: appended.append(
                    store["a"].append(b"meanwhile", partition=0, durability=level)
                )
            )
            for level in ("memory", "page_cache", "fsync")
        ]
        for thread in appenders:
            thread.start()
        other = store["a"].append(b"another shard", partition=10_000)
        assert bodies(store) == [b"before", b"another shard"]
        assert appended == []
        assert other.offset == 0
        waiting.go.set()
        for thread in (publisher, *appenders):
            thread.join(10)
        assert sorted(a.offset for a in appended) == [4 * 28, 5 * 28, 6 * 28]
        assert bodies(store) == [b"before", *numbered(3), *[b"meanwhile"] * 3, b"another shard"]
