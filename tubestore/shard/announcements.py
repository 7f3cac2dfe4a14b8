"""A condition that also makes calls: one waiter can wait for many shards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import WeakSet


class Announcements(threading.Condition):
    """Wakes the threads that wait, and makes the calls that were asked for, each once."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self._calls: WeakSet[Callable[[], None]] = WeakSet()

    def call_once(self, call: Callable[[], None]) -> None:
        """Call at the next `notify_all`, under the lock: it must be quick, and take no other one.

        Once, also if it was asked for twice. The caller keeps `call`: it is not made after it is
        dropped. Under the lock itself.
        """
        self._calls.add(call)
        # Every append calls `notify_all`: without calls to be made it is the condition's own.
        self.notify_all = self._notify_and_call  # type: ignore[method-assign]

    def _notify_and_call(self) -> None:
        del self.notify_all
        calls, self._calls = self._calls, WeakSet()
        self.notify_all()
        for call in calls:
            call()
