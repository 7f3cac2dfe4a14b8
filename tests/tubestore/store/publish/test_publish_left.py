"""What jobs leave that nobody publishes, and who removes it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

import tubestore
from tests.support.publishing import ROOT, batch, bodies, numbered, open_store, stage
from tests.support.publishing import store as store
from tests.support.publishing import vfs as vfs
from tubestore.clock import ManualClock
from tubestore.errors import (
    InvalidMessage,
)
from tubestore.store.manager import engine_of
from tubestore.testing import MemoryVfs


def test_a_job_that_is_given_up_leaves_nothing(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    staged = stage(vfs, "j", batch(numbered(3)))
    assert store.abort("j") is None
    assert not any("/staging/" in path for path in vfs.tree())
    with pytest.raises(InvalidMessage, match="missing"):
        store.publish("j", staged)
    assert store.abort("j") is None


def test_giving_up_a_job_that_is_there_returns_what_became_of_it(
    vfs: MemoryVfs, store: tubestore.MessageStoreManager
) -> None:
    result = store.publish("j", stage(vfs, "j", batch(numbered(3))))
    known = store.abort("j")
    assert known is not None
    assert known.files == result.files
    assert len(bodies(store)) == 3


def test_the_janitor_removes_what_was_not_written_to_for_a_day(vfs: MemoryVfs) -> None:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    with open_store(vfs, clock=clock) as store:
        store.create_topic("a", partitions=3, stores=2)
        stage(vfs, "given up", batch([b"x"]))
        clock.advance(23 * 3600 * 1000)
        stage(vfs, "still writing", batch([b"x"]))
        clock.advance(2 * 3600 * 1000)
        assert store.clean_staging() == ["job-given%20up"]
        assert store.clean_staging(timedelta(days=7)) == []
        assert store.clean_staging(timedelta(0)) == ["job-still%20writing"]
    assert not any("/staging/" in path for path in vfs.tree())


def test_the_background_removes_what_was_staged_and_given_up_a_day_ago() -> None:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    with open_store(vfs, clock=clock) as store:
        store.create_topic("a", partitions=3, stores=2)
        stage(vfs, "given up", batch([b"x"]))
        clock.advance(23 * 3600 * 1000)
        staged = stage(vfs, "in time", batch([b"y"]))
        store.maintain()
        assert job_directories(vfs) == ["job-given%20up", "job-in%20time"]
        clock.advance(2 * 3600 * 1000)
        store.maintain()
        assert job_directories(vfs) == ["job-in%20time"]
        assert store.publish("in time", staged).rows == 1


def test_a_lease_that_holds_everything_holds_what_is_staged_too() -> None:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    with open_store(vfs, clock=clock, staging_grace_ms=1000) as store:
        store.create_topic("a", partitions=3, stores=2)
        stage(vfs, "j", batch([b"x"]))
        vfs.make_directories(f"{ROOT}/.tubestore/leases")
        lease = f"{ROOT}/.tubestore/leases/newer.json"
        clock.advance(3600_000)
        vfs.replace_file(lease, b"of a newer version")
        store.maintain()
        assert job_directories(vfs) == ["job-j"]
        vfs.remove(lease)
        clock.advance(3600_000)
        store.maintain()
        assert job_directories(vfs) == []


def test_the_background_waits_for_a_job_that_is_being_published() -> None:
    clock = ManualClock()
    vfs = MemoryVfs(clock)
    with open_store(vfs, clock=clock) as store:
        stage(vfs, "j", batch([b"x"]))
        clock.advance(48 * 3600 * 1000)
        busy, done = threading.Event(), threading.Event()

        def publish() -> None:
            with engine_of(store).topics.lock:
                busy.set()
                done.wait(30)

        thread = threading.Thread(target=publish)
        thread.start()
        busy.wait(30)
        store.maintain()
        assert job_directories(vfs) == ["job-j"]
        done.set()
        thread.join()
        clock.advance(3600_000)
        store.maintain()
        assert job_directories(vfs) == []


def job_directories(vfs: MemoryVfs) -> list[str]:
    return [name for name, _, _ in vfs.entries(f"{ROOT}/.tubestore/staging")]
