"""The clocks: the machine's, and one that stands."""

from __future__ import annotations

import time

from tubestore.clock import ManualClock, SystemClock


def test_the_system_clock_is_the_time_of_the_machine_in_ms() -> None:
    before = time.time_ns() // 1_000_000
    now = SystemClock().now_ms()
    assert before <= now <= time.time_ns() // 1_000_000
    assert isinstance(now, int)


def test_the_monotonic_clock_counts_seconds_and_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)
    assert abs(readings[0] - time.monotonic()) < 60


def test_a_manual_clock_stands_until_it_is_told_to_go() -> None:
    clock = ManualClock(5000)
    assert [clock.now_ms(), clock.now_ms()] == [5000, 5000]
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic()) == (5250, 5.25)
    clock.advance(-1000)
    assert clock.now_ms() == 4250
