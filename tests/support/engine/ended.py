"""Stores that are closed, and threads that are in a call."""

from __future__ import annotations

from typing import Any


def bodies(topic: Any, partition: int = 0) -> list[bytes | None]:
    return [m.body for m in topic.read(partition)]
