"""One waiter for all shards that a reader in another process than the writer waits for.

A thread sleeps until the kernel reports a change in one of the watched directories, and makes the
calls that were asked for. Where the system has no watches it makes them every `LOOK_SECONDS`.

The store's own directory has what concerns many shards: the journal, and published jobs. After a
change there the journal is read once, and only the calls for shards that it changes are made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from tubestore.core.doors import logger
from tubestore.core.vfs import Vfs, VfsWatch
from tubestore.journal.root_journal import JournalPart
from tubestore.shard.reader import ShardReader

log = logger(__name__)
#: How often the callers look again where nothing reports a change.
LOOK_SECONDS = 0.01
_SLEEP_SECONDS = 3600.0


class Seen(NamedTuple):
    """The store's own directory: the last published job, and a shard's parts of the journal."""

    finished: int
    parts: Callable[[str], Sequence[JournalPart]]
    #: True if there may be a ring; to be asked after the parts.
    has_ring: Callable[[], bool]


class FileWaiter:
    """Calls back when files change; it has a thread from its first call on.

    The caller keeps a call: it is not made after it is dropped, nor after `close`.
    """

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs
        self._lock = threading.Lock()
        #: By directory; a call that is asked for twice is made once.
        self._calls: dict[str, WeakSet[Callable[[], None]]] = {}
        #: Calls for directories that cannot be watched.
        self._blind: WeakSet[Callable[[], None]] = WeakSet()
        self._watch: VfsWatch | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def call_once(
        self, directories: Iterable[str], call: Callable[[], None], *, unreported: bool = False
    ) -> None:
        """Call when something changes in one of the directories.

        `unreported`: something may change without a report, as a file does that another process
        writes to through a map. It then calls, at the earliest `LOOK_SECONDS` after the last time.
        The call may come more than once. The caller looks once more after this: a change between
        its last look and this is not reported.
        """
        with self._lock:
            if self._ended.is_set():
                return
            if self._thread is None:
                self._begin()
            for directory in directories:
                if not unreported and self._watch is not None and self._watch.add(directory):
                    self._calls.setdefault(directory, WeakSet()).add(call)
                else:
                    self._blind.add(call)
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
        watch, looked = self._watch, float("-inf")
        while not self._ended.is_set():
            # A call that is asked for again and again is still made once in LOOK_SECONDS.
            due = looked + LOOK_SECONDS - monotonic()
            seconds = max(due, 0) if watch is None or self._blind else _SLEEP_SECONDS
            changed: set[str] = set()
            if watch is None:
                self._ended.wait(seconds)
            else:
                changed = watch.wait(seconds)
            with self._lock:
                calls: list[Callable[[], None]] = []
                if monotonic() >= looked + LOOK_SECONDS:
                    calls += self._blind
                    self._blind.clear()
                    looked = monotonic()
                for directory in changed:
                    calls += self._calls.pop(directory, ())
            for call in dict.fromkeys(calls):
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


class ReaderWaiter:
    """Calls back when readers of shards may have more to show."""

    def __init__(self, vfs: Vfs, own: str, see: Callable[[], Seen]) -> None:
        """`own`: the store's own directory; `see` reads it, and may raise anything."""
        self._files, self._own, self._see = FileWaiter(vfs), own, see
        self._lock = threading.Lock()
        #: Calls that wait for the journal or for jobs: a shard's name and its reader.
        self._asked: WeakKeyDictionary[Callable[[], None], tuple[str, ShardReader]] = (
            WeakKeyDictionary()
        )
        self._finished: int | None = None
        #: False if there was no ring at the last look: the first segment is reported. Frames enter
        #: it through a map, without a report.
        self._has_ring = True
        self._look_again = self._look  # one object: a call is referred to weakly

    def call_once(
        self, key: str, directory: str, shard: ShardReader, call: Callable[[], None]
    ) -> None:
        """Call when a shard's files or its part of the journal change, or a job is published.

        The call may come more than once. The caller refreshes the reader after this.
        """
        with self._lock:
            self._asked[call] = key, shard
        self._wait_for_own()
        self._files.call_once([directory], call)

    def _wait_for_own(self) -> None:
        """Have `_look` called when the store's own directory may have changed."""
        self._files.call_once([self._own], self._look_again, unreported=self._has_ring)

    def _look(self) -> None:
        """Make the calls for shards that the journal or a job changes; in the waiter's thread."""
        with self._lock:
            asked = dict(self._asked)
        if not asked:
            return
        had_ring = self._has_ring
        self._wait_for_own()  # before it looks: else a change is lost
        changed = self._changed(asked)
        if self._has_ring and not had_ring:
            self._wait_for_own()  # what comes next is not reported
        for call in changed:
            with self._lock:
                self._asked.pop(call, None)
            call()

    def _changed(
        self, asked: Mapping[Callable[[], None], tuple[str, ShardReader]]
    ) -> list[Callable[[], None]]:
        """Return the calls to be made; all of them after a job, and where it cannot be seen."""
        try:
            seen = self._see()
            now = [call for call, (key, shard) in asked.items() if not shard.shows(seen.parts(key))]
            self._has_ring = seen.has_ring()
            if seen.finished == self._finished:
                return now
            self._finished = seen.finished
        except Exception as error:  # the thread goes on, and the callers meet it
            log.warning("waiting for a writer: %s", error)
            self._has_ring = True
        return list(asked)

    def close(self) -> None:
        """End the thread and make all calls: the callers meet the closed store."""
        self._files.close()
        with self._lock:
            left = list(self._asked)
        for call in left:
            call()
