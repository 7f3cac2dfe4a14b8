"""The clocks: the machine's, and one that stands."""

from __future__ import annotations

import time
import warnings
from datetime import UTC, datetime, timedelta

import pytest

from tubestore.clock import ManualClock, SystemClock, Time, time_ms


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


NOW = ManualClock(1_700_000_000_000)
TWO_HOURS_AGO = 1_700_000_000_000 - 7_200_000


@pytest.mark.parametrize(
    "given",
    [
        TWO_HOURS_AGO,
        datetime.fromtimestamp(TWO_HOURS_AGO / 1000, UTC),
        "2023-11-14T20:13:20Z",
        "2023-11-14T21:13:20+01:00",
        "-2h",
        "2h",
        "120m",
        str(TWO_HOURS_AGO),
        timedelta(hours=2),
        -timedelta(hours=2),
    ],
)
def test_a_time_is_given_in_any_of_its_forms(given: Time) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert time_ms(given, clock=NOW) == TWO_HOURS_AGO


@pytest.mark.parametrize("text", ["yesterday", "2023-11-14T20:13:20", "", "2w"])
def test_a_text_that_is_no_time_is_refused_by_the_argument_s_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"^start: "):
        time_ms(text, "start")


def test_a_number_that_looks_like_seconds_warns_at_the_caller_s_line() -> None:
    with pytest.warns(
        FutureWarning, match=r"start = 1700000000 is 1970-01-20T\S+ as num"
    ) as warned:
        assert time_ms(1_700_000_000, "start") == 1_700_000_000
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [time_ms(n) for n in (0, 99_999_999, 100_000_000_000)] == [0, 99_999_999, 10**11]


def test_a_text_of_digits_that_looks_like_seconds_warns_as_the_number_does() -> None:
    with pytest.warns(FutureWarning, match=r"start = 1700000000 is 1970-01-20T"):
        assert time_ms("1700000000", "start") == 1_700_000_000
