"""A few of many parameters for the quick tests; the others run in the gate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(step: int, values: Iterable[Any]) -> list[Any]:
    """Return all parameters; all but one in `step` are marked for the gate."""
    return [
        pytest.param(value, marks=pytest.mark.gate) if number % step else value
        for number, value in enumerate(values)
    ]
