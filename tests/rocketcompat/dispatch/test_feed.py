"""The rest of the log is followed as batches, over what cannot be read."""

from __future__ import annotations

import pytest

from rocketcompat.commitlog.commit_log import CommitLog
from tests.support.rocket.files.dispatched import CONFIG, Recorder, put
from tests.support.rocket.files.dispatched import log as log
from tests.support.rocket.inside import (
    dispatcher_for,
    new_log,
    take_appended,
)
from tubestore.clock import ManualClock
from tubestore.errors import CorruptRecord
from tubestore.testing import FaultyVfs, MemoryVfs


def test_a_log_that_cannot_be_read_for_a_moment_is_read_again(clock: ManualClock) -> None:
    vfs = FaultyVfs(MemoryVfs(clock))
    log = new_log(vfs, "/log", CONFIG, clock)
    log.queue.load()
    log.start_at(0, 0)
    places = put(log, 20)
    follower = Recorder("f")
    service = dispatcher_for(log, [follower], clock, position=0)
    for nth in range(1, 4):
        vfs.fail("pread", nth=nth)
        with pytest.raises(OSError, match="Input/output error"):
            service.dispatch_pending()
    service.dispatch_pending()
    assert follower.offsets == places


def test_damage_is_passed_over_and_reported(log: CommitLog, clock: ManualClock) -> None:
    places = put(log, 20)
    take_appended(log)
    log.queue.files[0].write_at(places[2] + 4, b"\xff" * 4)
    follower = Recorder("a")
    service = dispatcher_for(log, [follower], clock, position=0)
    service.dispatch_pending()
    assert follower.offsets == places[:2] + places[3:]
    region = (places[2], places[3] - places[2])
    behind = next(batch for batch in follower.batches if batch.start >= places[3])
    assert behind.damaged == region
    assert isinstance(service.problems[0], CorruptRecord)
    assert log.gaps.over(places[2])
