"""The messages of one queue between their pull and their commit (RocketMQ's `ProcessQueue`).

A consumer commits the first offset that is not consumed yet: messages may end in any order, and
after a kill those behind the first unconsumed one come again. In ordered consuming messages are
taken, and then committed or put back.

What each call returns is decided by RocketMQ's class (`tests/compat/interop`). All calls are
thread-safe. `consume_lock` is held while a listener consumes in order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace

from sortedcontainers import SortedDict

from rocketcompat.messages import MessageRecord
from tubestore.clock import Clock

#: Without a pull for so long a queue is given up and begun again; so long a lock counts here.
PULL_IDLE_MS, LOCK_LIVES_MS = 120_000, 30_000


class ProcessQueue:
    """The messages of a queue that were pulled and are not committed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self.consume_lock = threading.Lock()
        self._waiting: SortedDict[int, MessageRecord] = SortedDict()
        #: Taken for ordered consuming.
        self._taken: SortedDict[int, MessageRecord] = SortedDict()
        self._count = self._size = self._last = 0
        self._consuming = False
        #: When the listener got a message, by offset; ms.
        self._started: dict[int, int] = {}
        self._dropped = False
        self.locked_ms = self.pulled_ms = clock.now_ms()

    # -- the queue itself

    @property
    def dropped(self) -> bool:
        """True once another member has the queue: nothing is consumed or committed any more."""
        return self._dropped

    def drop(self) -> None:
        """Give the queue up; a commit under way ends first."""
        with self._lock:
            self._dropped = True

    def committing(self) -> AbstractContextManager[object]:
        """Return a context in which the queue is not dropped, so that no commit comes later."""
        return self._lock

    @property
    def holds_lock(self) -> bool:
        """True while the broker's lock on the queue counts."""
        return self._clock.now_ms() - self.locked_ms <= LOCK_LIVES_MS

    @property
    def is_idle(self) -> bool:
        """True if the queue has not been pulled from for too long."""
        return self._clock.now_ms() - self.pulled_ms > PULL_IDLE_MS

    # -- its messages

    @property
    def count(self) -> int:
        """Messages that are not committed."""
        return self._count

    @property
    def size(self) -> int:
        """Bytes of their bodies."""
        return self._size

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of the messages that wait, ascending."""
        with self._lock:
            return list(self._waiting)

    @property
    def span(self) -> int:
        """How far apart the first and the last message are that wait."""
        with self._lock:
            keys = self._waiting.keys()
            return int(keys[-1] - keys[0]) if keys else 0

    def put(self, messages: Iterable[MessageRecord]) -> bool:
        """Take pulled messages; returns True if ordered consuming is to be started."""
        with self._lock:
            for message in messages:
                offset = message.queue_offset
                if offset not in self._waiting:
                    self._count += 1
                    self._size += len(message.body)
                    self._last = offset
                self._waiting[offset] = message
            starts = bool(self._waiting) and not self._consuming
            self._consuming = self._consuming or starts
            return starts

    def start(self, messages: Iterable[MessageRecord]) -> None:
        """Note that a listener gets messages now."""
        now = self._clock.now_ms()
        with self._lock:
            self._started.update((message.queue_offset, now) for message in messages)

    def first_late(self, timeout_ms: int) -> MessageRecord | None:
        """Return the first message if a listener has had it for longer than `timeout_ms`."""
        with self._lock:
            if not self._waiting:
                return None
            offset, message = self._waiting.peekitem(0)
            since = self._started.get(offset)
            late = since is not None and self._clock.now_ms() - since > timeout_ms
            return message if late else None

    def remove(self, messages: Iterable[MessageRecord]) -> int:
        """Take consumed messages out; returns the offset to commit, -1 if there is none."""
        with self._lock:
            if not self._waiting:
                return -1
            for message in messages:
                gone = self._waiting.pop(message.queue_offset, None)
                self._started.pop(message.queue_offset, None)
                if gone is not None:
                    self._forget(gone)
            return int(self._waiting.peekitem(0)[0]) if self._waiting else self._last + 1

    def take(self, count: int) -> list[MessageRecord]:
        """Take the first messages, for ordered consuming; none ends it until the next `put`."""
        with self._lock:
            found: list[MessageRecord] = []
            while self._waiting and len(found) < count:
                offset, message = self._waiting.popitem(0)
                self._taken[offset] = message
                found.append(message)
            if not found:
                self._consuming = False
            return found

    def commit(self) -> int:
        """Let go of what was taken; returns the offset to commit, -1 if nothing was taken."""
        with self._lock:
            if not self._taken:
                return -1
            offset = self._taken.peekitem(-1)[0]
            for message in self._taken.values():
                self._forget(message)
            self._taken.clear()
            return int(offset + 1)

    def rollback(self) -> None:
        """Put everything that was taken back."""
        with self._lock:
            self._waiting.update(self._taken)
            self._taken.clear()

    def again(self, messages: Iterable[MessageRecord], *, counted: bool = False) -> None:
        """Put messages that were taken back; `counted` adds a round to each."""
        with self._lock:
            for message in messages:
                self._taken.pop(message.queue_offset, None)
                more = replace(message, reconsume_times=message.reconsume_times + 1)
                self._waiting[message.queue_offset] = more if counted else message

    def clear(self) -> None:
        """Forget all messages."""
        with self._lock:
            self._waiting.clear()
            self._taken.clear()
            self._started.clear()
            self._count = self._size = self._last = 0

    def _forget(self, message: MessageRecord) -> None:
        self._count -= 1
        self._size = self._size - len(message.body) if self._count else 0
