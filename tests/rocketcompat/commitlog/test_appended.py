"""What puts leave for the dispatcher."""

from __future__ import annotations

import threading

import pytest

from rocketcompat.commitlog.commit_log import CommitLog
from tests.support.rocket.files.dispatched import CONFIG, Recorder, put, put_columns
from tests.support.rocket.files.dispatched import log as log
from tests.support.rocket.files.dispatched import wide_log as wide_log
from tests.support.rocket.inside import (
    appended_of,
    dispatcher_for,
    new_log,
)
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs


def test_when_too_many_are_pending_none_is_lost(
    log: CommitLog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketcompat.commitlog.appended._STARTS_MAX", 10)
    follower = Recorder("a")
    service = dispatcher_for(log, [follower], clock, position=0)
    places = put(log, 25)
    assert service.dispatch_pending() == 25
    places += put(log, 4)
    service.dispatch_pending()
    assert follower.offsets == places


def test_a_put_that_finds_much_pending_hands_it_over_itself(
    memory_vfs: MemoryVfs, clock: ManualClock
) -> None:
    log = new_log(memory_vfs, "/log", CONFIG.changed(dispatch_inline_bytes=500), clock)
    log.queue.load()
    log.start_at(0, 0)
    follower = Recorder("a")
    service = dispatcher_for(log, [follower], clock, position=0)
    service._thread = threading.Thread()  # one that never runs
    for _ in range(20):
        put(log, 1)
        service.wake_or_help(log.max_offset)
    assert service.behind <= 500
    assert len(follower.offsets) > 10


def test_columns_that_no_follower_takes_are_not_kept_for_ever(
    wide_log: CommitLog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketcompat.commitlog.appended._COLUMNS_BYTES_MAX", 10_000)
    places = []
    for _ in range(8):
        places += put_columns(wide_log, 20, 2)
    assert 0 < sum(len(records.data) for records in appended_of(wide_log).columns) <= 10_000
    follower = Recorder("a")
    dispatcher_for(wide_log, [follower], clock, position=0).dispatch_pending()
    assert follower.offsets == places
