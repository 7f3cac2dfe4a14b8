"""Stores whose topics come and go."""

from __future__ import annotations

from typing import Any


def bodies(topic: Any, partition: int = 0) -> list[bytes | None]:
    return [m.body for m in topic.read(partition)]
