"""Numbers that users give: `True` is none, though Python counts it among the integers."""

from __future__ import annotations

import operator
from typing import Any


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
