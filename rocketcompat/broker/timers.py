"""Calls that are due at a time: the background of a broker and its consumers, without threads.

`Timers` keeps the calls, and `run_due` makes those that are due by the clock: a test sets a manual
clock and steps. `TimerThread` is the thread at the edge, which does the same as time passes.

Guards: `_condition` guards the calls; no call is made while it is held.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from copy import copy

from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.errors import StoreClosed, TubeStoreError

_log = logger(__name__)
_JOIN_SECONDS = 60.0


class Timer:
    """A call that is to be made; `cancel` takes it back."""

    __slots__ = ("call", "every", "name")

    def __init__(self, name: str, call: Callable[[], object], every: float | None) -> None:
        self.name, self.every = name, every
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Make the call no more; one that runs goes on to its end."""
        self.call = None


class Timers:
    """The calls of a broker, in the order in which they are due; times are seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._condition = threading.Condition()
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._woken = False
        #: What calls raised, for the broker's list; each text once.
        self.problems: list[TubeStoreError] = []

    def after(self, seconds: float, name: str, call: Callable[[], object]) -> Timer:
        """Make a call once, in so many seconds; 0 for as soon as possible."""
        return self._add(seconds, Timer(name, call, None))

    def every(
        self, seconds: float, name: str, call: Callable[[], object], first: float | None = None
    ) -> Timer:
        """Make a call again and again, the first time in `first` seconds."""
        return self._add(seconds if first is None else first, Timer(name, call, seconds))

    def _add(self, seconds: float, timer: Timer) -> Timer:
        due = self._clock.monotonic() + seconds
        with self._condition:
            heapq.heappush(self._heap, (due, next(self._numbers), timer))
            self._condition.notify_all()
        return timer

    def wake(self) -> None:
        """Let `wait` return: a queue beside the timers has got work."""
        with self._condition:
            self._woken = True
            self._condition.notify_all()

    def run_due(self) -> int:
        """Make every call that is due now, in order; returns how many.

        A call that was added meanwhile, and is due, is made too. An error of a call is logged and
        kept in `problems`; a call that is repeated goes on.
        """
        count = 0
        while (timer := self._pop()) is not None:
            self._make(timer)
            count += 1
        return count

    def seconds_left(self) -> float | None:
        """Return the seconds until a call is due; None without any."""
        with self._condition:
            return self._left()

    def wait(self) -> None:
        """Wait, in the machine's time, until a call is due or `wake` was called."""
        with self._condition:
            while not self._woken:
                left = self._left()
                if left is not None and left <= 0:
                    break
                self._condition.wait(left)
            self._woken = False

    def _left(self) -> float | None:
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] - self._clock.monotonic() if self._heap else None

    def _pop(self) -> Timer | None:
        now = self._clock.monotonic()
        with self._condition:
            left = self._left()
            if left is None or self._heap[0][0] > now:
                return None
            return heapq.heappop(self._heap)[2]

    def _make(self, timer: Timer) -> None:
        call = timer.call
        if call is None:
            return
        try:
            call()
        except StoreClosed:
            return  # nothing is left to do, now or later
        except Exception as error:
            self.report(timer.name, error)
        if timer.every is not None and timer.call is not None:
            self._add(timer.every, timer)

    def report(self, name: str, error: Exception) -> None:
        """Log an error of a call and keep it; the same one only once."""
        is_usual = isinstance(error, (TubeStoreError, OSError))
        text = f"{name}: {error}" if is_usual else f"{name}: {error!r}"
        if any(str(known) == text for known in self.problems):
            return
        _log.error("%s", text, exc_info=None if is_usual else copy(error))
        self.problems.append(TubeStoreError(text))


class TimerThread:
    """A thread that runs a round whenever a call is due, until it is stopped."""

    def __init__(self, timers: Timers, work: Callable[[], object], name: str) -> None:
        self._timers, self._work = timers, work
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self._work()
            self._timers.wait()

    def stop(self) -> None:
        """End the thread; a round under way ends first. Harmless when repeated."""
        self._stopping = True
        self._timers.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)
