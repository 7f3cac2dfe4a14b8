"""What the tables of queues share as followers: which queues were written, and how far that counts.

Guards: `_lock` guards the set of queues that were written since the last sync.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Generic, Protocol, TypeVar

from tubestore.errors import TubeStoreError


class SyncedQueue(Protocol):
    """What is asked of a queue."""

    @property
    def dirty_pages(self) -> int:
        """Borders of 4 KiB pages between what is on stable storage and the end."""

    def flush(self) -> bool:
        """Bring what was written to stable storage."""


Q = TypeVar("Q", bound=SyncedQueue)


class QueueFollower(Generic[Q]):
    """The marks of a table of queues, and its syncs; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dirty: set[Q] = set()
        self._written = self._synced = 0

    @property
    def problems(self) -> Sequence[TubeStoreError]:
        """Nothing: damaged queues are cut, or built again."""
        return ()

    def mark(self, written: int, synced: int) -> None:
        """Set the physical offsets up to which the files are known to hold everything."""
        self._written, self._synced = written, synced

    @property
    def ends(self) -> tuple[int, int]:
        """(written, synced): everything below is in the files, and on stable storage."""
        return self._written, self._synced

    def replayed(self) -> None:
        """Nothing is kept for recovery."""

    def flush(self, sync: bool) -> None:
        """With `sync`, bring every queue that was written to stable storage."""
        if not sync:
            return
        with self._lock:
            written, dirty = self._written, self._dirty
            self._dirty = set()
        self._flush(dirty)
        self._synced = max(self._synced, written)

    def flush_due(self, least_pages: int) -> int:
        """Sync the queues that have at least so many dirty pages; returns how many.

        No mark moves: what the others have is not on stable storage. OSError passes through.
        """
        with self._lock:
            due = [queue for queue in self._dirty if queue.dirty_pages >= least_pages]
            self._dirty.difference_update(due)
        self._flush(due)
        return len(due)

    def _note(self, touched: Collection[Q]) -> None:
        """Take down queues, after they were written: a sync in between has not seen it."""
        with self._lock:
            self._dirty.update(touched)

    def _flush(self, queues: Collection[Q]) -> None:
        """Sync queues; those that could not be stay dirty."""
        left = set(queues)
        try:
            for queue in queues:
                queue.flush()
                left.remove(queue)
        finally:
            self._note(left)
