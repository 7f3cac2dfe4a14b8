"""A background service: does a round, waits, does the next; RocketMQ's `ServiceThread`.

What goes wrong in a round is a problem of the store, never a thread that is silently gone.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from copy import copy

from tubestore.core.doors import logger
from tubestore.errors import StoreFailed, TubeStoreError

_log = logger(__name__)
_JOIN_SECONDS = 60.0


class ServiceThread(ABC):
    """A service of an open store; works without a thread too, when its calls are made by hand."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: What went wrong, for the store's list.
        self.problems: list[TubeStoreError] = []
        #: Why the thread ended by itself.
        self.stopped: Exception | None = None
        #: What fails at present: what it is about, and the text that was logged.
        self._trouble: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def work(self) -> float:
        """Do one round; returns the seconds until the next. StoreFailed ends the service."""

    def after_error(self) -> float:
        """Return the seconds until the next round after one that raised."""
        return 10.0

    def after_success(self) -> None:
        """Take note of a round that did not raise."""
        self.works()

    @property
    def is_running(self) -> bool:
        """True if the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, first: float = 0.0) -> None:
        """Start the thread; its first round comes in `first` seconds."""
        self._thread = threading.Thread(
            target=self._run, args=(first,), name=self.name, daemon=True
        )
        self._thread.start()

    def shutdown(self) -> None:
        """Stop the thread; a round under way ends first. Harmless without one."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join(_JOIN_SECONDS)

    def report(self, problem: TubeStoreError, about: str = "") -> None:
        """Log a problem and keep it; the same one again is passed over until `works`.

        `about` names what fails, if a round does several things.
        """
        if self._trouble.get(about) == str(problem):
            return
        self._trouble[about] = str(problem)
        _log.error("%s: %s", self.name, problem)
        if not self.problems or str(self.problems[-1]) != str(problem):
            self.problems.append(copy(problem))  # without its traceback and what that refers to

    def works(self, about: str = "") -> None:
        """Log that what was reported about this is over; nothing if nothing was."""
        if self._trouble.pop(about, None) is not None:
            _log.warning("%s: %s works again", self.name, about or "the service")

    def do_round(self) -> float | None:
        """Do a round as the thread does; returns the seconds until the next, None at the end."""
        try:
            wait = self.work()
            self.after_success()
            return wait
        except StoreFailed as error:
            self.stopped = copy(error)
            self.report(error)
        except (OSError, TubeStoreError) as error:
            self.report(TubeStoreError(f"{self.name}: {error}"))
            return self.after_error()
        except Exception as error:
            _log.exception("%s: stopped", self.name)
            self.stopped = copy(error)
            self.problems.append(TubeStoreError(f"{self.name}: stopped: {error!r}"))
        return None

    def _run(self, first: float) -> None:
        wait: float | None = first
        while wait is not None and not self._stop.wait(wait):
            wait = self.do_round()
