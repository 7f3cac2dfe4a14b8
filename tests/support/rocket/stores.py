"""A RocketMQ store at "/s", on any disk and with any clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rocketcompat
from rocketcompat import MessageStoreConfig


def opener(config: MessageStoreConfig) -> Callable[..., Any]:
    """Return `opened(vfs, clock, **options)`, which opens the store for writing without threads."""

    def opened(vfs: Any, clock: Any, **options: Any) -> Any:
        changed = config.changed(**options)
        return rocketcompat.open("/s", "w", changed, vfs=vfs, clock=clock, background=False)

    return opened
