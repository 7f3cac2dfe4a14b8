"""The calls that are made when a shard has news: one thread can wait for many shards.

Guards: all calls come under the shard's append lock, except `AnnouncementWait.wait`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import WeakSet


class AnnouncementWait:
    """A thread's wait for the next announcement; it is a call."""

    def __init__(self) -> None:
        self._woken = threading.Lock()
        self._woken.acquire()

    def __call__(self) -> None:
        """Wake the thread; may be repeated."""
        if self._woken.locked():
            self._woken.release()

    def wait(self, seconds: float) -> None:
        """Wait so long at most; with no lock held."""
        self._woken.acquire(timeout=seconds)


class Announcements:
    """Makes the calls that were asked for, each at the next announcement."""

    def __init__(self) -> None:
        #: None without calls: most appends announce themselves.
        self._calls: WeakSet[Callable[[], object]] | None = None

    def call_once(self, call: Callable[[], object]) -> None:
        """Call at the next `announce`, under the lock: it must be quick, and take no other one.

        Once, also if it was asked for twice; after an interrupt it may come once more. The caller
        keeps `call`: it is not made after it is dropped.
        """
        if self._calls is None:
            self._calls = WeakSet()
        self._calls.add(call)

    def waiting(self) -> AnnouncementWait:
        """Return a wait that ends at the next `announce`."""
        waiting = AnnouncementWait()
        self.call_once(waiting)
        return waiting

    def announce(self) -> None:
        """Make the calls."""
        calls, self._calls = self._calls, None
        if calls is None:
            return
        try:
            for call in calls:
                call()
        except BaseException:  # an interrupt: those that were not made are made next time
            self._calls = calls if self._calls is None else calls | self._calls
            raise
