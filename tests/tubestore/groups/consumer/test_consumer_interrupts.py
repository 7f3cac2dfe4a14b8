"""An interrupt anywhere in a consumer's poll ends that poll, and no message is passed over."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

import tubestore
from tests.support.engine.interrupts import Interrupt, interrupted
from tubestore.clock import ManualClock
from tubestore.groups.assigned import AssignedPartitions
from tubestore.groups.consumer import Consumer
from tubestore.groups.directory import GroupDirectory
from tubestore.groups.feed import ShardFeed
from tubestore.groups.member import GroupMember
from tubestore.groups.positions_log import PositionsLog
from tubestore.groups.waiter import Waiter
from tubestore.testing import MemoryVfs

#: What a poll goes through, from the top.
WAY: tuple[Callable[..., Any], ...] = (
    Consumer.poll,
    Consumer._note_processed,
    Consumer._read,
    Consumer._skip_removed,
    Consumer._wait,
    Consumer._take_turn,
    Consumer._take,
    Consumer._give_up,
    Consumer._lose,
    Consumer._remove,
    Consumer._commit_if_due,
    Consumer._commit,
    Consumer._note_committed,
    AssignedPartitions.add,
    AssignedPartitions.remove,
    ShardFeed.add,
    ShardFeed.remove,
    ShardFeed.read,
    ShardFeed._begin,
    ShardFeed._read_laggards,
    ShardFeed._read_front,
    GroupMember.turn,
    GroupMember.join,
    GroupMember.release,
    GroupMember.commit,
    GroupMember._committing,
    GroupDirectory.locked,
    GroupDirectory._take_lock,
    GroupDirectory.save,
    PositionsLog.append,
    PositionsLog.refresh,
    Waiter.take,
    Waiter.ask,
    Waiter.wait,
)
#: These are in the way of messages that are gone through one by one only.
ROWS: tuple[Callable[..., Any], ...] = (
    Consumer.messages,
    Consumer._poll_batch,
    Consumer._leave_batch,
)
BODIES = {b"%d" % n for n in range(30)}


class Group:
    """A store of ready messages, and a consumer that has polled; a second one is to join."""

    def __init__(self) -> None:
        self.vfs, self.clock = MemoryVfs(), ManualClock()
        self.store = tubestore.open("/s", vfs=self.vfs, clock=self.clock, background=False)
        topic = self.store.create_topic("t", partitions=5)
        for body in sorted(BODIES):
            topic.append(body, partition=len(body) * int(body) % 5)
        self.consumer = self._consumer()
        self.got: set[bytes | None] = set()

    def _consumer(self) -> Consumer:
        return self.store.consumer("g", "t", auto_commit_interval=0, session_timeout=60)

    def poll(self, limit: int) -> None:
        self.got |= {message.body for message in self.consumer.poll(limit)}

    def work(self) -> None:
        """Poll while a second member takes partitions, commits some, and leaves."""
        self.poll(3)
        self.poll(4)
        with self._consumer() as other:
            self.poll(2)
            self.got |= {message.body for message in other.poll(2)}
        self.poll(1)
        self.poll(1000)
        self.consumer.interrupt()
        self.consumer.poll(timeout=600)  # it does not wait

    def rows(self) -> None:
        for message in self.consumer.messages(idle_timeout=0):
            self.got.add(message.body)

    def finish(self, place: int) -> None:
        """Poll what is left, and compare."""
        self.clock.advance(70_000)  # the session of a member that was ended while it joined
        while len(polled := self.consumer.poll(7)):
            self.got |= {message.body for message in polled}
        assert self.got == BODIES, place
        assert len(self.consumer.assignment) == 5, place
        self.consumer.close()
        assert all(each.lag == 0 for each in self.store.describe_group("g").partitions), place
        with self.store.consumer("g", "t") as other:
            assert len(other.poll()) == 0, place
        self.store.close()
        assert not self.vfs._held, place


def each_place(function: Callable[..., Any], step: Callable[[Group], None]) -> None:
    code = inspect.unwrap(function)
    assert isinstance(code, FunctionType)
    for place in range(1, 10_000):
        group = Group()
        was_interrupted = interrupted(lambda g=group: step(g), place, code)
        group.finish(place)
        if not was_interrupted:
            assert place > 1, "it was not called"
            return
    raise AssertionError("it has no end")


@pytest.mark.parametrize("function", WAY, ids=lambda function: function.__qualname__)
def test_after_an_interrupt_of_a_poll_every_message_comes(function: Callable[..., Any]) -> None:
    each_place(function, Group.work)


@pytest.mark.parametrize("function", ROWS, ids=lambda function: function.__qualname__)
def test_after_an_interrupt_of_an_iteration_every_message_comes(
    function: Callable[..., Any],
) -> None:
    each_place(function, Group.rows)


def test_the_interrupts_are_no_errors_that_the_consumer_handles() -> None:
    assert not issubclass(Interrupt, Exception)
