"""Calls that are due by a clock that stands still until a test moves it."""

from __future__ import annotations

import threading

import pytest

from rocketcompat.broker.timers import Timers, TimerThread
from tubestore.clock import ManualClock, SystemClock
from tubestore.errors import StoreClosed


@pytest.fixture
def timers(clock: ManualClock) -> Timers:
    return Timers(clock)


def test_calls_are_made_in_the_order_in_which_they_are_due(
    timers: Timers, clock: ManualClock
) -> None:
    made: list[str] = []
    timers.after(2, "b", lambda: made.append("b"))
    timers.after(1, "a", lambda: made.append("a"))
    timers.after(3, "c", lambda: made.append("c"))
    assert timers.run_due() == 0
    clock.advance(2_000)
    assert timers.run_due() == 2
    assert made == ["a", "b"]
    assert timers.seconds_left() == 1


def test_a_repeated_call_goes_on_after_an_error_which_is_reported_once(
    timers: Timers, clock: ManualClock
) -> None:
    made: list[int] = []

    def call() -> None:
        made.append(1)
        raise OSError("no room")

    timers.every(5, "flush", call, first=1)
    for seconds in (1, 5, 5):
        clock.advance(seconds * 1000)
        timers.run_due()
    assert len(made) == 3
    assert [str(problem) for problem in timers.problems] == ["flush: no room"]


def test_a_cancelled_call_is_not_made(timers: Timers, clock: ManualClock) -> None:
    timers.after(1, "a", lambda: pytest.fail("was made")).cancel()
    assert timers.seconds_left() is None
    clock.advance(1_000)
    assert timers.run_due() == 0


def test_a_repeated_call_ends_when_the_store_is_closed(timers: Timers) -> None:
    def call() -> None:
        raise StoreClosed("closed")

    timers.every(0, "check", call)
    timers.run_due()
    assert timers.seconds_left() is None
    assert timers.problems == []


def test_a_thread_makes_calls_that_are_added_while_it_waits() -> None:
    timers = Timers(SystemClock())
    thread = TimerThread(timers, timers.run_due, "test")
    made: list[int] = []
    event = threading.Event()

    def call() -> None:
        made.append(1)
        event.set()

    timers.after(0, "a", call)
    assert event.wait(30)
    thread.stop()
    timers.after(0, "b", lambda: made.append(2))
    assert made == [1]
