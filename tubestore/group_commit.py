"""Syncs of one stream (a shard, a log): one at a time, each shared by all who wait for it.

Invariants:
- never two syncs of a stream at once: the kernel reports a write error to one of them only,
  and the other would acknowledge what was lost;
- a sync covers what was written before it began;
- after a failed one nobody is told that anything is safe, now and until it is reopened.

Guards: `_changed` guards everything here; no other lock is taken under it.

Next to read: `message_store.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tubestore.errors import StoreFailed


class GroupCommit:
    """How far a stream is on stable storage, and who is bringing it further."""

    def __init__(self, end: int) -> None:
        self.end = end
        self._changed = threading.Condition()
        self._running = False
        self._failure: StoreFailed | None = None

    def reach(
        self, end: int, sync: Callable[[], int], left: Callable[[], float] | None = None
    ) -> bool:
        """Return when everything below `end` is safe; raises what a failed sync raised.

        `sync` brings everything written so far to stable storage and returns how far that is.
        One waiter calls it for all: those who come meanwhile share the next call. False if
        somebody else's sync took longer than the seconds that `left` says are left.
        """
        while self.end < end:
            if not self._turn(end, sync, left):
                return False
        return True

    def reach_without(self, end: int) -> None:
        """Take it that everything below `end` is safe, by other means."""
        with self._changed:
            self.end = max(self.end, end)
            self._changed.notify_all()

    def run(self, sync: Callable[[], int]) -> None:
        """Call `sync`, whatever is safe already, with no other one running."""
        self._turn(None, sync)

    def _turn(
        self, end: int | None, sync: Callable[[], int], left: Callable[[], float] | None = None
    ) -> bool:
        """Wait for the sync under way, then run one if it is needed; False if time is up."""
        with self._changed:
            while self._running and (end is None or self.end < end):
                seconds = None if left is None else left()
                if seconds is not None and seconds <= 0:
                    return False
                self._changed.wait(seconds)
            if self._failure is not None:
                raise self._failure
            if end is not None and self.end >= end:
                return True
            self._running = True
        try:
            reached = sync()
        except StoreFailed as error:  # others, a full disk for one, may be tried again
            with self._changed:
                self._failure = error
            raise
        else:
            with self._changed:
                self.end = max(self.end, reached)
        finally:
            with self._changed:
                self._running = False
                self._changed.notify_all()
        return True

    def lower(self, end: int) -> None:
        """Take back what was cut away."""
        with self._changed:
            self.end = min(self.end, end)
