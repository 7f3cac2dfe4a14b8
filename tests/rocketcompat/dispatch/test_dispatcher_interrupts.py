"""An interrupt while a caller dispatches leaves no lock taken, and no follower lacks a record."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from rocketcompat import MessageStoreConfig
from rocketcompat.commitlog.appended import Appended
from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.dispatch.dispatcher import ReputMessageService
from rocketcompat.dispatch.feed import LogFeed
from rocketcompat.dispatch.gatherer import Gatherer
from rocketcompat.messages import DispatchBatch
from tests.support.engine.interrupts import interrupted
from tests.support.rocket.files.dispatched import CONFIG, MANY, Recorder, put, put_columns
from tests.support.rocket.inside import dispatcher_for, new_log
from tubestore.clock import ManualClock
from tubestore.testing import MemoryVfs

#: What a caller that dispatches goes through, but for the followers.
WAY: tuple[Callable[..., Any], ...] = (
    ReputMessageService.dispatch_pending,
    ReputMessageService._help,
    ReputMessageService._drain,
    ReputMessageService._drained,
    ReputMessageService._hand_over,
    ReputMessageService._feed_ready,
    ReputMessageService._move_on,
    threading.Condition.__enter__,
    Gatherer.take,
    Gatherer.release,
    LogFeed.next_batch,
    LogFeed._next_columns,
    LogFeed._take_appended,
    LogFeed._next_piece,
    LogFeed._piece_of_known_starts,
    Appended.take,
)


class Followed:
    """A log of single puts and of columns, and its two followers."""

    def __init__(self, config: MessageStoreConfig) -> None:
        self.log: CommitLog = new_log(MemoryVfs(), "/log", config, ManualClock())
        self.log.queue.load()
        self.log.start_at(0, 0)
        self.places = put(self.log, 5)
        self.followers = [Recorder("one"), Recorder("other")]
        starts = [self.places[0], self.places[3]]
        self.service = dispatcher_for(
            self.log, self.followers, ManualClock(), position=0, starts=starts
        )

    def work(self) -> None:
        self.service.dispatch_pending()
        self.places += put_columns(self.log, 9, queues=3)
        self.service._help()
        self.places += put(self.log, 9)
        self.places += put_columns(self.log, 5, queues=5)
        self.service.dispatch_pending()

    def offsets(self) -> list[list[int]]:
        return [follower.offsets for follower in self.followers]


@pytest.mark.parametrize("config", [CONFIG, MANY], ids=["read from the log", "columns"])
@pytest.mark.parametrize("function", WAY, ids=lambda function: function.__qualname__)
def test_after_an_interrupt_every_record_is_handed_over_once_and_in_order(
    function: Callable[..., Any], config: MessageStoreConfig
) -> None:
    code = inspect.unwrap(function)
    assert isinstance(code, FunctionType)
    for place in range(1, 10_000):
        followed = Followed(config.changed(mapped_file_size_commit_log=1 << 13))
        was_interrupted = interrupted(followed.work, place, code)
        service = followed.service
        assert not service._dispatch_lock.locked()
        assert not service._moved._is_owned()  # type: ignore[attr-defined]
        followed.places += put(followed.log, 2)
        service.dispatch_pending()
        assert followed.offsets() == [followed.places, followed.places[3:]], place
        assert (service.problems, service.failed, service.behind) == ([], {}, 0)
        if not was_interrupted:
            # No lock is taken in Python; columns are at hand, or everything is read.
            may_be_spared = LogFeed._piece_of_known_starts, LogFeed._next_piece
            assert place > 1 or function in (threading.Condition.__enter__, *may_be_spared)
            return
    raise AssertionError("it has no end")


class Stopped(Recorder):
    """A follower that is interrupted with a part of its first batch."""

    def put(self, batch: DispatchBatch) -> None:
        super().put(batch)
        raise KeyboardInterrupt


def test_a_follower_that_was_interrupted_gets_nothing_more_and_the_others_go_on() -> None:
    followed = Followed(CONFIG)
    stopped = Stopped("stopped")
    one = followed.followers[0]
    service = dispatcher_for(followed.log, [stopped, one], ManualClock(), position=0)
    with pytest.raises(KeyboardInterrupt):
        service.dispatch_pending()
    service.dispatch_pending()
    assert one.offsets == followed.places
    assert len(stopped.batches) == 1
    assert list(service.failed) == ["stopped"]
    assert service.ends == {"stopped": 0, "one": followed.log.max_offset}
    (problem,) = service.problems
    assert "stopped stopped at 0" in str(problem)
