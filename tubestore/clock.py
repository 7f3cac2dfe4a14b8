"""The source of the time: all code asks it, so that a test can set the time (D12).

And times as users give them.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from tubestore.values import whole_number

Time = int | datetime
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
    """A clock that moves only when a test moves it.

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


def time_ms(value: Time | None, name: str = "time") -> int | None:
    """Return ms since the epoch of an int (already ms) or an aware datetime; naive is refused.

    TypeError and ValueError begin with the argument's `name`.
    """
    if value is None:
        return None
    if not isinstance(value, datetime):
        number = whole_number(value)
        if number is None:
            raise TypeError(f"{name} {value!r}: an aware datetime, or ms since the epoch")
        return number
    if value.tzinfo is None:
        raise ValueError(
            f"{name} {value!r} has no time zone; give an aware datetime or ms since the epoch"
        )
    return (value - _EPOCH) // timedelta(milliseconds=1)


def checked_time_ms(value: Time, name: str = "time") -> int:
    """As `time_ms`, of a time that must be given: TypeError for None."""
    found = time_ms(value, name)
    if found is None:
        raise TypeError(f"{name} None: an aware datetime, or ms since the epoch")
    return found
