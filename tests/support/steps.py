"""Objects that check their invariants after each of their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest


def check_after(monkeypatch: pytest.MonkeyPatch, kind: type[Any], names: Iterable[str]) -> None:
    """Have every object of a class check its invariants after each call of these methods."""

    def checked(step: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(step)
        def call(self: Any, *given: Any, **named: Any) -> Any:
            try:
                return step(self, *given, **named)
            finally:
                self.check_invariants()

        return call

    for name in names:
        monkeypatch.setattr(kind, name, checked(getattr(kind, name)))
