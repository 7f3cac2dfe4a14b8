"""One waiter for all shards that a reader in another process than the writer waits for.

A thread sleeps until the kernel reports a change in one of the watched directories, and makes the
calls that were asked for. Where the system has no watches it makes them every `LOOK_SECONDS`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from tubestore.core.vfs import Vfs, VfsWatch

#: How often the callers look again where nothing reports a change.
LOOK_SECONDS = 0.02
_SLEEP_SECONDS = 3600.0


class FileWaiter:
    """Calls back when files change; the thread runs while there are calls to be made."""

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs
        self._lock = threading.Lock()
        self._calls: dict[str, list[Callable[[], None]]] = {}
        #: Calls for directories that cannot be watched.
        self._blind: list[Callable[[], None]] = []
        self._watch: VfsWatch | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def call_once(self, directories: Iterable[str], call: Callable[[], None]) -> None:
        """Call when something changes in one of the directories.

        The call may come more than once. The caller looks once more after this: a change between
        its last look and this is not reported.
        """
        with self._lock:
            if self._thread is None:
                self._begin()
            for directory in directories:
                if self._watch is not None and self._watch.add(directory):
                    self._calls.setdefault(directory, []).append(call)
                else:
                    self._blind.append(call)
                    if self._watch is not None:
                        self._watch.interrupt()  # it may sleep for long

    def _begin(self) -> None:
        try:
            self._watch = self._vfs.watch()
        except OSError:
            self._watch = None
        self._thread = threading.Thread(target=self._run, name="tubestore-waiter", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        watch = self._watch
        while not self._ended.is_set():
            seconds = LOOK_SECONDS if watch is None or self._blind else _SLEEP_SECONDS
            changed: set[str] = set()
            if watch is None:
                self._ended.wait(seconds)
            else:
                changed = watch.wait(seconds)
            with self._lock:
                calls, self._blind = self._blind, []
                for directory in changed:
                    calls += self._calls.pop(directory, ())
            for call in calls:
                call()

    def close(self) -> None:
        """End the thread; harmless when repeated."""
        self._ended.set()
        if self._watch is not None:
            self._watch.interrupt()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._watch is not None:
            self._watch.close()
