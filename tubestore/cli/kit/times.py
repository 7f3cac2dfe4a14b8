"""Times as users give them (D12): ms since the epoch, ISO-8601 with a zone, or `-2h` from now."""

from __future__ import annotations

import re
from datetime import datetime

from tubestore.cli.kit.errors import UsageMistake

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RELATIVE = re.compile(r"-(\d+)(ms|s|m|h|d)")


def parse_time(text: str, now_ms: int) -> int:
    """Return ms since the epoch; UsageMistake if it is no time, or has no zone.

    >>> parse_time("-2h", 10_000_000), parse_time("1970-01-01T01:00:00+01:00", 0)
    (2800000, 0)
    """
    if re.fullmatch(r"\d+", text):
        return int(text)
    relative = _RELATIVE.fullmatch(text)
    if relative:
        return now_ms - int(relative[1]) * _UNITS_MS[relative[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageMistake(f"{text!r} is no time: ms, ISO-8601 with a zone, or -2h") from None
    if moment.tzinfo is None:
        raise UsageMistake(f"{text!r} has no zone: end it with Z or +01:00")
    return round(moment.timestamp() * 1000)
