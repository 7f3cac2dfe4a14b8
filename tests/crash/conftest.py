"""Fixtures of the crash proof."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest


class _NotInstalled:
    """Says at once that a package is missing.

    pyarrow asks for these two again and again where they are not installed, and each time
    Python looks for them in every directory: a third of the time of a small read.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in ("pandas", "dateutil") and name not in sys.modules:
            raise ModuleNotFoundError(name)


@pytest.fixture(autouse=True)
def quick_and_quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Spare thousands of recoveries their log lines and pyarrow's searches."""
    monkeypatch.setattr(sys, "meta_path", [_NotInstalled(), *sys.meta_path])
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
