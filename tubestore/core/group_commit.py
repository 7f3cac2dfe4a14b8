"""Syncs of one stream (a shard, a log): one at a time, each shared by all threads that wait for it.

Invariants:
- never two syncs of a stream at once: the kernel reports a write error to one of them only, and the
  other would acknowledge what was lost;
- a sync covers what was written before it began;
- after a failed sync nothing more is acknowledged as safe, until the stream is reopened.

The end of a sync wakes the threads that it covers, and one of the others, which does the next sync.
To wake all costs a change of threads each, and that is what sixteen threads spend most on.

A thread that runs or prepares a sync is noted by its mark (`_runner`, `_preparer`), which it alone
takes away, without a lock and without a call: a thread that an interrupt ends leaves no mark.

Guards: `_lock` guards everything here; no other lock is taken under it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from enum import Enum

from tubestore.errors import StoreFailed, again

#: A waiting thread checks again after so long: the thread that should wake it may be interrupted.
_LOOK_AGAIN_SECONDS = 1.0


class _State(Enum):
    """The result of waiting: the next step is this thread's; everything is safe; time is up."""

    MINE = 0
    SAFE = 1
    LATE = 2


class _Waiting:
    """A thread that waits until everything below `end` is safe (None: for its turn)."""

    __slots__ = ("end", "woken")

    def __init__(self, end: int | None) -> None:
        self.end, self.woken = end, threading.Lock()
        self.woken.acquire()


class GroupCommit:
    """How far a stream is on stable storage; runs the syncs that bring it further."""

    def __init__(self, end: int) -> None:
        self.end = end
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        #: The marks of the thread that syncs, and of one that writes what the next sync will cover.
        self._runner: object | None = None
        self._preparer: object | None = None
        self._failure: StoreFailed | None = None

    @property
    def is_busy(self) -> bool:
        """True while a sync is under way or about to be: a new waiter shares the next one."""
        return self._runner is not None or self._preparer is not None

    def reach(
        self,
        end: int,
        sync: Callable[[], int],
        left: Callable[[], float] | None = None,
        *,
        prepare: Callable[[], None] | None = None,
    ) -> bool:
        """Return when everything below `end` is safe; raises what a failed sync raised.

        `sync` brings everything written so far to stable storage and returns how far that is. One
        waiting thread calls it for all: threads that come meanwhile share the next call. `prepare`
        is called before it, once for all of them, to write what it will cover; other syncs go on
        meanwhile. Returns False if the sync of another thread took longer than the seconds that
        `left` returns.
        """
        while self.end < end:
            if not self._turn(end, sync, left, prepare):
                return False
        return True

    def reach_without(self, end: int) -> None:
        """Record that everything below `end` is safe by other means."""
        with self._lock:
            self.end = max(self.end, end)
            self._wake()

    def run(self, sync: Callable[[], int]) -> None:
        """Call `sync` in any case, while no other sync runs."""
        self._turn(None, sync)

    def _turn(
        self,
        end: int | None,
        sync: Callable[[], int],
        left: Callable[[], float] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> bool:
        """Wait for the sync under way, then run one if it is needed; False if time is up."""
        mark = object()
        try:
            state = self._wait(mark, end, left, preparing=prepare is not None)
            if prepare is not None and state is _State.MINE:
                prepare()
                # The sync under way may cover it, too.
                state = self._wait(mark, end, None, prepared=True)
            if state is not _State.MINE:
                return state is _State.SAFE
            reached = sync()
            with self._lock:
                self.end, self._runner = max(self.end, reached), None
                self._wake()
            return True
        except StoreFailed as error:  # a full disk, for one, may be tried again
            with self._lock:
                if self._runner is mark:
                    self._failure, self._runner = copy.copy(error), None
                    self._wake()
            raise
        finally:
            # Without a call up to the lock: an interrupt cannot come between.
            is_marked = self._runner is mark or self._preparer is mark
            if self._runner is mark:
                self._runner = None
            if self._preparer is mark:
                self._preparer = None
            if is_marked:
                with self._lock:
                    self._wake()

    def _wait(
        self,
        mark: object,
        end: int | None,
        left: Callable[[], float] | None,
        *,
        preparing: bool = False,
        prepared: bool = False,
    ) -> _State:
        """Wait for other threads; then it is the turn of `mark` to prepare, or to sync."""
        while True:
            with self._lock:
                safe = end is not None and self.end >= end
                others_prepare = self._preparer is not None and end is not None and not prepared
                busy = self._runner is not None or others_prepare
                if safe or not busy:
                    if self._failure is not None:
                        raise again(self._failure)
                    if safe:
                        return _State.SAFE
                    if preparing:
                        self._preparer = mark
                    else:
                        self._runner = mark
                        if prepared:
                            self._preparer = None
                    return _State.MINE
                seconds = _LOOK_AGAIN_SECONDS if left is None else left()
                if seconds <= 0:
                    self._wake()  # it may have been this thread's turn
                    return _State.LATE
                # A thread that has prepared goes on as soon as it can, as one that waits for no
                # end.
                waiting = _Waiting(None if prepared else end)
                self._waiting.append(waiting)
            try:
                waiting.woken.acquire(timeout=min(seconds, _LOOK_AGAIN_SECONDS))
            finally:
                with self._lock:
                    if waiting in self._waiting:
                        self._waiting.remove(waiting)

    def _wake(self) -> None:
        """Wake the threads that have what they wait for, and one that does the next sync."""
        kept, woken, has_next = [], [], self.is_busy
        for waiting in self._waiting:
            if waiting.end is None or waiting.end <= self.end or self._failure is not None:
                woken.append(waiting)
            elif not has_next:
                has_next = True
                woken.append(waiting)
            else:
                kept.append(waiting)
        self._waiting = kept  # before they are woken: no thread is woken twice
        for waiting in woken:
            waiting.woken.release()

    def lower(self, end: int) -> None:
        """Lower the safe end: the rest was cut away."""
        with self._lock:
            self.end = min(self.end, end)

    def check_invariants(self) -> None:
        """Raise AssertionError if the fields contradict each other; for tests."""
        with self._lock:
            for waiting in self._waiting:
                assert waiting.woken.locked(), "a woken waiter is still listed"
                if waiting.end is None:
                    assert self._runner, "a prepared sync waits, and none is under way"
                else:
                    assert waiting.end > self.end, "a waiter was not woken although its end is safe"
            if self._failure is not None:
                assert not self._runner, "a sync runs after one has failed"
                assert not self._waiting or self._preparer, "waiters were not woken by a failure"
