"""The one clock on the wall: whoever wants the time asks it, so that a test can set it (D12)."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the store asks of time."""

    def now_ms(self) -> int:
        """Wall clock, ms since the epoch (UTC)."""

    def monotonic(self) -> float:
        """Seconds that never go back; for deadlines and intervals."""


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Wall clock, ms since the epoch (UTC)."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


class ManualClock:
    """A clock that stands until it is told to go on; for tests.

    >>> clock = ManualClock(1000)
    >>> clock.advance(500)
    >>> clock.now_ms()
    1500
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return the time that was set."""
        return self._now_ms

    def monotonic(self) -> float:
        """Return the same time in seconds."""
        return self._now_ms / 1000

    def advance(self, ms: int) -> None:
        """Go on by `ms`; negative to step back, as wall clocks do."""
        self._now_ms += ms
