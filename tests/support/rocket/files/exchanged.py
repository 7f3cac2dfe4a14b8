"""Stores that are copied, exported and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rocketcompat.inspect.diff import diff
from rocketcompat.inspect.directory import StoreDirectory


def differences(left: Path, right: Path, **options: Any) -> list[dict[str, Any]]:
    return list(diff(StoreDirectory(left), StoreDirectory(right), **options))
