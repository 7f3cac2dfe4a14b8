"""The bound on all buffers of a store together: memory follows dirty data, not topics (D8)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class PoolHolder(Protocol):
    """Holds bytes of a pool."""

    granted: int


class MemoryPool:
    """Counts the bytes that shards hold in their buffers; thread-safe.

    A holder's own count changes with that of the pool: an interrupt comes before both or behind.

    >>> pool = MemoryPool(100)
    >>> pool.take(80), pool.take(30)
    (True, False)
    >>> pool.give_back(80)
    >>> pool.used
    0
    """

    def __init__(self, bound_bytes: int, relieve: Callable[[], None] | None = None) -> None:
        self.bound_bytes = bound_bytes
        self._relieve = relieve
        self.used = 0
        self._lock = threading.Lock()

    def take(self, size: int, holder: PoolHolder | None = None) -> bool:
        """Take `size` bytes unless that would exceed the bound; an empty pool gives any size."""
        with self._lock:
            if self.used and self.used + size > self.bound_bytes:
                return False
            self.used += size
            if holder is not None:
                holder.granted += size
        return True

    def add(self, size: int) -> None:
        """Count bytes that are already held, even above the bound."""
        with self._lock:
            self.used += size

    def relieve(self) -> None:
        """Have the oldest and the largest buffers written; call it without a lock."""
        if self._relieve is not None:
            self._relieve()

    def give_back(self, size: int, holder: PoolHolder | None = None) -> None:
        """Return bytes that were taken."""
        with self._lock:
            self.used -= size
            if holder is not None:
                holder.granted -= size
