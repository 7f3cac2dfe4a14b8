"""How long single calls take: HDR histograms, which merge and keep three digits of every value."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from bench.layouts.capabilities import Unavailable

F = TypeVar("F", bound=Callable[..., Any])
#: From 1 ns to 10 minutes, three significant digits.
LOWEST, HIGHEST, DIGITS = 1, 600_000_000_000, 3
PERCENTILES = {"p50_us": 50.0, "p99_us": 99.0, "p999_us": 99.9}


class Calls:
    """Takes the time of every call that goes through `watch`, from any thread."""

    def __init__(self) -> None:
        self.nanoseconds: list[int] = []

    def watch(self, call: F) -> F:
        """Return the same call, timed."""
        note, now = self.nanoseconds.append, time.perf_counter_ns

        def timed(*arguments: Any, **named: Any) -> Any:
            begin = now()
            found = call(*arguments, **named)
            note(now() - begin)
            return found

        return timed  # type: ignore[return-value]


def histogram(nanoseconds: Iterable[int] = ()) -> Any:
    """Return a histogram of these times."""
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError as error:
        raise Unavailable("hdrhistogram is not installed (pip install tubestore[bench])") from error
    found = HdrHistogram(LOWEST, HIGHEST, DIGITS)
    times, counts = np.unique(np.fromiter(nanoseconds, np.int64), return_counts=True)
    for value, count in zip(times.tolist(), counts.tolist(), strict=True):
        found.record_value(min(max(value, LOWEST), HIGHEST), count)
    return found


def encoded(found: Any) -> str:
    """Return a histogram as the text that HdrHistogram's own libraries read and write."""
    return found.encode().decode("ascii")  # type: ignore[no-any-return]


def merged(texts: Iterable[str]) -> Any:
    """Return one histogram of several encoded ones."""
    total = histogram()
    for text in texts:
        total.decode_and_add(text)
    return total


def percentiles(found: Any) -> dict[str, float]:
    """Return p50, p99, p99.9 and the maximum, in microseconds; empty without a call."""
    if not found.get_total_count():
        return {}
    values = {
        name: found.get_value_at_percentile(percent) / 1000 for name, percent in PERCENTILES.items()
    }
    return values | {"max_us": found.get_max_value() / 1000}
