"""What single calls took, as HDR histograms."""

from __future__ import annotations

import threading

import pytest

from bench.measure.latency import Calls, encoded, histogram, merged, percentiles


def test_percentiles_are_those_of_the_calls_within_three_digits() -> None:
    found = percentiles(histogram(range(1000, 1_001_000, 1000)))
    assert found == pytest.approx(
        {"p50_us": 500, "p99_us": 990, "p999_us": 999, "max_us": 1000}, rel=2e-3
    )


def test_histograms_of_rounds_merge_into_one() -> None:
    texts = [encoded(histogram([1000] * 99)), encoded(histogram([5_000_000]))]
    found = merged(texts)
    assert found.get_total_count() == 100
    assert percentiles(found) == pytest.approx(
        {"p50_us": 1, "p99_us": 1, "p999_us": 5000, "max_us": 5000}, rel=2e-3
    )


def test_no_call_has_no_percentile() -> None:
    assert percentiles(histogram()) == {}


def test_a_watch_takes_the_time_of_every_call_of_every_thread() -> None:
    calls = Calls()
    doubled = calls.watch(lambda value, *, times: value * times)
    threads = [threading.Thread(target=doubled, args=(n,), kwargs={"times": 2}) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert doubled(4, times=3) == 12
    assert len(calls.nanoseconds) == 5
    assert min(calls.nanoseconds) > 0


def test_a_call_that_fails_is_not_counted() -> None:
    calls = Calls()
    with pytest.raises(ZeroDivisionError):
        calls.watch(lambda: 1 / 0)()
    assert calls.nanoseconds == []
