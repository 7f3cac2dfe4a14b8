"""What keeps an import quick: names that are loaded when they are first used, and loggers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging


def lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`; `modules` has the module of each name, below the package.

    In a room's `__init__` it keeps the room's lower files free of the upper ones.
    """

    def __getattr__(name: str) -> Any:
        if name in modules:
            return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__


def logger(name: str) -> logging.Logger:
    """Return a module's logger. A program that configures no logging gets no line of it.

    Not in a package's `__init__`: `logging` takes longer to load than all of a package.
    """
    import logging

    for package in ("tubestore", "rocketcompat"):
        found = logging.getLogger(package)
        if not found.handlers:  # without one Python would print warnings on the standard error
            found.addHandler(logging.NullHandler())
    return logging.getLogger(name)
