"""The source of the time: all code asks it, so that a test can set the time (D12).

And times as users give them.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from tubestore.values import UsageMistake, moment_text, parse_time, warn_caller, whole_number

#: A time as a caller gives it: an aware datetime, ISO text with a zone, an age like "2h" or a
#: timedelta (so long ago), or ms since the epoch.
Time = int | str | datetime | timedelta
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


_SYSTEM = SystemClock()
#: Numbers in this range are seconds since 1973 as often as they are ms of 1970 to 1973.
SECONDS_OR_MS = range(100_000_000, 100_000_000_000)
_FORMS = "an aware datetime, ISO text with a zone, an age like '2h', or ms since the epoch"


def time_ms(value: Time | None, name: str = "time", clock: Clock = _SYSTEM) -> int | None:
    """Return a time that a caller gives in ms since the epoch, None for none.

    Taken are an aware datetime, ISO text with a zone, an age (text or timedelta: so long before
    now), and ms since the epoch; a number that looks like seconds warns. TypeError and ValueError
    begin with the argument's `name`.
    """
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name} {value!r} has no time zone; give {_FORMS}")
        return (value - _EPOCH) // timedelta(milliseconds=1)
    if isinstance(value, timedelta):
        return clock.now_ms() - abs(value) // timedelta(milliseconds=1)
    if isinstance(value, str):
        try:
            found = parse_time(value, clock.now_ms())
        except UsageMistake as error:
            raise ValueError(f"{name}: {error}") from None
        if not value.isdecimal():
            return found
        value = found
    number = whole_number(value)
    if number is None:
        raise TypeError(f"{name} {value!r}: {_FORMS}")
    if number in SECONDS_OR_MS:
        text = f"{name} = {number} is {moment_text(number)}, as numbers are ms. Give {_FORMS}"
        warn_caller(f"{text}; the next release refuses such a number", FutureWarning)
    return number


def checked_time_ms(value: Time, name: str = "time", clock: Clock = _SYSTEM) -> int:
    """As `time_ms`, of a time that must be given: TypeError for None."""
    found = time_ms(value, name, clock)
    if found is None:
        raise TypeError(f"{name} None: {_FORMS}")
    return found
