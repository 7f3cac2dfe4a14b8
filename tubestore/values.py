"""Numbers, ages, sizes and times as users give them, and as people read them.

>>> parse_age("7d"), parse_age("delete,168h"), parse_size("10GiB")
(604800000, 604800000, 10737418240)
>>> size_bytes("64MiB"), age_ms("90s"), age_ms(timedelta(minutes=1))
(67108864, 90000, 60000)
"""

from __future__ import annotations

import enum
import functools
import operator
import re
import sys
import warnings
from collections.abc import Iterable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from tubestore.errors import InvalidMessage, unknown_name

#: A time span: a timedelta, or a text such as "36h" or TubeMQ's "delete,168h". A bare number is ms,
#: and warns: callers mean seconds or days as often.
Age = int | timedelta | str
#: Bytes: a number, or a text such as "64MiB" or "1.5GB".
Size = int | str
#: A wait: seconds as a number, a timedelta, or a text such as "1s" or "500ms".
Seconds = float | timedelta | str
if TYPE_CHECKING:
    _Given = TypeVar("_Given", contravariant=True)
    _Read = TypeVar("_Read", covariant=True)

    class _Setting(Generic[_Given, _Read]):
        """A field that is given in other types than it is read: type checkers know both."""

        def __get__(self, holder: object, owner: Any = None) -> _Read: ...
        def __set__(self, holder: object, value: _Given) -> None: ...

    SizeInBytes = _Setting[Size, int]
    SizeOrNone = _Setting[Size | None, int | None]
    AgeInMs = _Setting[Age, int]
    AgeOrNone = _Setting[Age | None, int | None]
else:
    SizeInBytes = AgeInMs = int
    SizeOrNone = AgeOrNone = int | None
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER = r"(\d+)(?:\.(\d+))?"
_SPAN = _NUMBER + "(ms|s|m|h|d)"
_AGE = re.compile(_SPAN)
_BEFORE_NOW = re.compile(f"-?{_SPAN}")
#: TubeMQ's delete policy: without a unit it means hours.
_POLICY = re.compile(r"delete\s*,\s*(\d+)([smh]?)")
_SIZE = re.compile(_NUMBER + r"\s*([KMGTP]i?)?B?")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


Settings = TypeVar("Settings")


def hinted(settings: type[Settings]) -> type[Settings]:
    """Let a dataclass refuse a name that it does not have with the nearest one that it has."""
    names = [each.name for each in fields(cast(Any, settings)) if each.init]
    known, make = frozenset(names), settings.__init__

    @functools.wraps(make)
    def __init__(self: Any, *values: Any, **given: Any) -> None:
        if not given.keys() <= known:
            name = next(name for name in given if name not in known)
            raise TypeError(f"{settings.__name__}: {unknown_name(name, names)}")
        make(self, *values, **given)

    settings.__init__ = __init__  # type: ignore[method-assign]
    return settings


def setting(default: int | None) -> Any:
    """Return the default of a field that is a `SizeInBytes` or its like."""
    return default


class Keep(enum.Enum):
    """Sentinel: leave the setting unchanged (None means "no bound")."""

    AS_IT_IS = enum.auto()


_WAITS = "seconds as a number, a timedelta, or '1s'"
#: The longest time span in seconds that a caller may give, 31 years: no thread can wait for as
#: long as a float can name.
SECONDS_MAX = 1_000_000_000
_PACKAGES = ("tubestore", "rocketcompat")
#: Numbers of a caller are below this: the sum of two fits 8 bytes.
WHOLE_END = 1 << 62


class UsageMistake(Exception):
    """An argument or option that cannot be used as given; its text is the line the user reads."""


#: The greatest number of 64 bits.
LONG_MAX = (1 << 63) - 1


def whole_number(value: Any) -> int | None:
    """Return an integer of any kind as an int; None for anything else, `True` and 1.0 too.

    >>> whole_number(7), whole_number(True), whole_number("7"), whole_number(7.0)
    (7, None, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def checked_whole(name: str, value: Any, least: int | None = 0, most: int | None = None) -> int:
    """Return a whole number that a caller gives; TypeError or ValueError names the argument."""
    number = whole_number(value)
    if number is None:
        raise TypeError(f"{name} = {value!r}: a whole number is needed")
    if most is not None and number > most:
        raise ValueError(f"{name} = {number}: at most {most}")
    if least is not None and number < least:
        limit = f"at least {least}" if least else "not negative"
        raise ValueError(f"{name} = {value}: {limit}")
    return number


def size_bytes(value: Size | None, name: str = "max_bytes") -> int | None:
    """Return a size that a caller gives in bytes, None for none; InvalidMessage for others."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return parse_size(value)
        except InvalidMessage as error:
            raise InvalidMessage(f"{name}: {error}") from None
    size = checked_whole(name, value, None, None)
    if size < 0:
        raise InvalidMessage(f"{name} = {value}: not negative")
    if size > LONG_MAX:
        raise InvalidMessage(f"{name} = {value}: at most {LONG_MAX}")
    return size


def checked_size(name: str, value: Size, least: int = 0) -> int:
    """As `size_bytes`, of a size that must be given and has a least value."""
    size = size_bytes(value, name) if isinstance(value, str) else value
    return checked_whole(name, size, least, LONG_MAX)


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn at the line outside of these packages that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in _PACKAGES:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def checked_texts(name: str, values: Any) -> list[str]:
    """Return a list of texts that a caller gives; TypeError names the argument."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} = {values!r}: a list of texts is needed")
    found = list(values)
    for text in found:
        if not isinstance(text, str):
            raise TypeError(f"{name}: {text!r} is not a text")
    return found


def checked_seconds(name: str, value: Any, least: float = 0) -> float:
    """Return a wait that a caller gives in seconds; errors as `checked_whole`.

    >>> checked_seconds("timeout", "500ms"), checked_seconds("timeout", timedelta(minutes=1))
    (0.5, 60.0)
    """
    found = value
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, str):
        span = _AGE.fullmatch(value.strip())
        if span is None:
            raise ValueError(f"{name}: {value!r} is not a valid time span: {_WAITS}")
        found = _span_ms(span) / 1000
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} = {value!r}: {_WAITS}")
    if not least <= found <= SECONDS_MAX:
        raise ValueError(f"{name} = {value}: {least:g} to {SECONDS_MAX} seconds")
    return float(found)


def _span_ms(found: re.Match[str]) -> int:
    return _in_whole(found, UNITS_MS[found[3]])


def _in_whole(found: re.Match[str], unit: int) -> int:
    """Return a number that matched `_NUMBER` times its unit; what is behind the point is cut off.

    >>> _in_whole(re.match(_NUMBER, "1.5"), 1000)
    1500
    """
    behind = found[2] or ""
    return int(found[1] + behind) * unit // int(10 ** len(behind))


def parse_age(text: str) -> int:
    """Return the ms of "90s", "36h", "7d" … or of a delete policy; InvalidMessage otherwise.

    TubeMQ takes what it does not understand for 168 hours; that would delete by mistake.
    """
    if found := _AGE.fullmatch(text.strip()):
        return _span_ms(found)
    if found := _POLICY.fullmatch(text.strip()):
        return int(found[1]) * UNITS_MS[found[2] or "h"]
    raise InvalidMessage(f"{text!r} is not a valid age: 90s, 36h, 7d, or TubeMQ's delete,168h")


def parse_size(text: str) -> int:
    """Return the bytes of "500", "64MiB", "1.5GB" …; InvalidMessage otherwise.

    >>> parse_size("1KB"), parse_size("1KiB")
    (1000, 1024)
    """
    found = _SIZE.fullmatch(text.strip())
    if not found or (found[2] and not found[3]):
        raise InvalidMessage(f"{text!r} is not a valid size: 500000, 64MiB, 1.5GB")
    unit = found[3] or ""
    base = 1024 if unit.endswith("i") else 1000
    return _in_whole(found, int(base ** _POWERS[unit.removesuffix("i")]))


def age_ms(value: Age | None, name: str = "max_age") -> int | None:
    """Return an age in ms, None for none; InvalidMessage below 0."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return _in_bounds(parse_age(value), value, name)
        except InvalidMessage as error:
            raise InvalidMessage(f"{name}: {error}") from None
    if isinstance(value, timedelta):
        return _in_bounds(value // timedelta(milliseconds=1), value, name)
    found = whole_number(value)
    if found is None:
        raise TypeError(f"{name} {value!r}: a timedelta, or a text like '7d'")
    if found > 0:
        text = f"{name} = {value} is in milliseconds: give '{value}ms', '7d' or a timedelta"
        warn_caller(f"{text}; the next release refuses a bare number", FutureWarning)
    return _in_bounds(found, value, name)


def _in_bounds(age: int, value: Age, name: str) -> int:
    if not 0 <= age < WHOLE_END:
        raise InvalidMessage(f"{name} = {value}: not negative, and below 2**62 ms")
    return age


def checked_age_ms(value: Age, name: str) -> int:
    """As `age_ms`, of an age that must be given: TypeError for None."""
    found = age_ms(value, name)
    if found is None:
        raise TypeError(f"{name} None: a timedelta, or a text like '7d'")
    return found


def parse_time(text: str, now_ms: int) -> int:
    """Return ms since the epoch; UsageMistake if it is not a time, or has no zone.

    An age is the time so long ago, with a minus or without.

    >>> parse_time("-2h", 10_000_000), parse_time("1970-01-01T01:00:00+01:00", 0)
    (2800000, 0)
    >>> parse_time("2h", 10_000_000)
    2800000
    """
    if re.fullmatch(r"\d+", text):
        return int(text)
    relative = _BEFORE_NOW.fullmatch(text)
    if relative:
        return now_ms - _span_ms(relative)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageMistake(
            f"{text!r} is not a valid time: ms, ISO-8601 with a zone, or -2h"
        ) from None
    if moment.tzinfo is None:
        raise UsageMistake(f"{text!r} has no zone: end it with Z or +01:00")
    return round(moment.timestamp() * 1000)


def age_text(ms: int) -> str:
    """Return an age in its largest whole unit.

    >>> age_text(604_800_000), age_text(90_000), age_text(0)
    ('7d', '90s', '0ms')
    """
    unit = next((u for u in ("d", "h", "m", "s") if ms and ms % UNITS_MS[u] == 0), "ms")
    return f"{ms // UNITS_MS[unit]}{unit}"


def size_text(size: int) -> str:
    """Return bytes in the largest unit that is not above them.

    >>> size_text(999), size_text(10 << 30), size_text(1_572_864)
    ('999 B', '10 GiB', '1.5 MiB')
    """
    power = min(5, max(0, (size.bit_length() - 1) // 10))
    unit = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power]
    return f"{size / (1 << 10 * power):.4g} {unit}"


def moment_text(ms: int) -> str:
    """Return a time in ms as people and programs read it.

    >>> moment_text(1_700_000_000_000)
    '2023-11-14T22:13:20Z'
    """
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
