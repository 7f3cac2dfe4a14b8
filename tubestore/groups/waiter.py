"""Waits for shards that may have something new: the one way to wait for messages.

Consumers, `Topic.follow` and `tubestore tail -f` wait with it. The source of a shard calls back
once: after the next append of this process, or after a change of the files by another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from tubestore.groups.assigned import Shard

#: How often a reader without a group looks for what no call reports: topics that come and go.
FIND_SECONDS = 1.0
#: Have a call made when a shard may have a message behind an offset; False if it has one now.
CallBeyond = Callable[[str, int, int, Callable[[], None]], bool]


class Waiter:
    """The shards that were announced; any thread announces them, one thread waits."""

    def __init__(self, call_beyond: CallBeyond) -> None:
        self._call_beyond = call_beyond
        #: Taken below a shard's append lock; nothing is taken below it.
        self._lock = threading.Lock()
        #: Used under `with _lock`, which an interrupt cannot split.
        self._changed = threading.Condition(self._lock)
        self._announced: dict[Shard, None] = {}
        self._interrupted = False
        #: The same call for a shard each time, so that it is asked for once. The sources refer
        #: to it weakly: it ends with this waiter.
        self._calls: dict[Shard, Callable[[], None]] = {}

    def ask(self, shard: Shard, offset: int) -> bool:
        """Announce a shard when it may have a message at an offset; False if it has one now."""
        call = self._calls.setdefault(shard, partial(self._announce, shard))
        return self._call_beyond(*shard, offset, call)

    def _announce(self, shard: Shard) -> None:
        with self._lock:
            self._announced[shard] = None
            self._changed.notify_all()

    def wait(self, seconds: float | None) -> bool:
        """Wait for a shard that is announced, None: without end; True after `interrupt`."""
        with self._lock:
            if not self._announced and not self._interrupted:
                self._changed.wait(seconds)
            interrupted, self._interrupted = self._interrupted, False
            return interrupted

    def interrupt(self) -> None:
        """Let `wait` return at once, or the next one."""
        with self._lock:
            self._interrupted = True
            self._changed.notify_all()

    def take(self) -> list[Shard]:
        """Return the shards that were announced since the last `take`."""
        with self._lock:
            announced, self._announced = self._announced, {}
        return list(announced)
