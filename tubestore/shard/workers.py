"""The few threads of a store: flushes, syncs, and work that is due by time (D8).

Requested syncs are gathered for a moment: at full speed a thousand messages come in a
millisecond, and a thread that is woken for each would keep the interpreter from appending.

Guards: `_wanted`, `_syncs` and `_busy` are guarded by `_lock`; a shard is worked on by one
thread at a time.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial

from tubestore.core.doors import logger
from tubestore.errors import StoreClosed, StoreFailed, TubeStoreError
from tubestore.shard.message_store import MessageStore

log = logger(__name__)

MAINTENANCE_INTERVAL_S = 0.5
#: How long the first of the syncs that are asked for waits for others.
SYNC_DELAY_S = 0.05
_FLUSH, _SYNC = 1, 2


class Workers:
    """A pool of flush workers and one timer, for all shards of a store."""

    def __init__(
        self,
        threads: int,
        due_shards: Callable[[], Iterable[MessageStore] | None],
        keep_house: Callable[[Callable[[float], bool]], None],
        note_problem: Callable[[TubeStoreError], None],
    ) -> None:
        """Start the threads. The three methods do not keep the store alive that they belong to.

        `due_shards` returns the shards to be maintained, None once the store's lock is lost;
        `keep_house` makes a pass of retention if it is time for one, and ends it when its argument
        returns True; `note_problem` keeps an error that no caller waits for.
        """
        self._due_shards = weakref.WeakMethod(due_shards)
        self._keep_house = weakref.WeakMethod(keep_house)
        self._note_problem = weakref.WeakMethod(note_problem)
        self._lock = threading.RLock()
        #: Used under `with _lock`, which an interrupt cannot split: appends request work.
        self._changed = threading.Condition(self._lock)
        #: Requested work by shard, in the order of the requests.
        self._wanted: dict[MessageStore, int] = {}
        #: Shards to be synced when `_sync_at` (monotonic seconds) has come.
        self._syncs: dict[MessageStore, None] = {}
        self._sync_at = 0.0
        self._busy: set[MessageStore] = set()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._flushers = threads
        self.start()

    def start(self) -> None:
        """Start the threads; also after a stop."""
        self._stopped = False
        self._stopping.clear()
        self._threads = [
            threading.Thread(target=self._work, name=f"tubestore-flush-{n}", daemon=True)
            for n in range(self._flushers)
        ]
        self._threads.append(
            threading.Thread(target=self._tick, name="tubestore-timer", daemon=True)
        )
        # A thread of its own: a pass may take long, and due buffers do not wait for it.
        self._threads.append(
            threading.Thread(target=self._tidy, name="tubestore-retention", daemon=True)
        )
        for thread in self._threads:
            thread.start()

    # -- requests ----------------------------------------------------------------------------

    def flush_soon(self, shard: MessageStore) -> None:
        """Have a worker write the shard's buffers."""
        with self._lock:
            self._wanted[shard] = self._wanted.get(shard, 0) | _FLUSH
            self._changed.notify()

    def sync_soon(self, shard: MessageStore) -> None:
        """Have a worker sync the shard's files within some hundredths of a second."""
        if shard in self._syncs:  # without the lock: requested, and not begun
            return
        with self._lock:
            if not self._syncs:
                self._sync_at = time.monotonic() + SYNC_DELAY_S
                self._changed.notify()
            self._syncs[shard] = None

    # -- the workers -------------------------------------------------------------------------

    def _next(self) -> tuple[MessageStore, int] | None:
        with self._lock:
            while not self._stopped:
                left = self._sync_at - time.monotonic() if self._syncs else None
                if left is not None and left <= 0:
                    for shard in self._syncs:
                        self._wanted[shard] = self._wanted.get(shard, 0) | _SYNC
                    self._syncs.clear()
                    left = None
                    if len(self._wanted) > 1:  # a needless wake-up costs the appending thread
                        self._changed.notify_all()
                for shard in self._wanted:
                    if shard not in self._busy:
                        self._busy.add(shard)
                        return shard, self._wanted.pop(shard)
                self._changed.wait(left)
        return None

    def _work(self) -> None:
        while (task := self._next()) is not None:
            shard, what = task
            try:
                self._guarded(shard, partial(self._flush_and_sync, shard, what))
            finally:
                with self._lock:
                    self._busy.discard(shard)
                    if self._wanted:
                        self._changed.notify()

    @staticmethod
    def _flush_and_sync(shard: MessageStore, what: int) -> None:
        if what & _FLUSH:
            shard.flush()
        if what & _SYNC:
            shard.sync_files()

    def _guarded(self, shard: MessageStore, work: Callable[[], None]) -> None:
        """Do a shard's work; an unforeseen error fails the shard and is a problem."""
        try:
            work()
            return
        except StoreClosed:
            return  # its topic was deleted meanwhile
        except TubeStoreError as error:  # the shard has logged it, and refuses appends
            problem = error
        except Exception as error:
            log.exception("%s: not foreseen", shard.name)
            problem = shard.fail(f"{type(error).__name__}: {error}")
        note_problem = self._note_problem()
        if note_problem is not None and isinstance(problem, StoreFailed):
            note_problem(problem)

    # -- the timer ---------------------------------------------------------------------------

    def _tick(self) -> None:
        # On an event of its own: the `notify` of a request must wake a worker.
        while not self._stopping.wait(MAINTENANCE_INTERVAL_S):
            if not self._maintain_all():
                return

    def _tidy(self) -> None:
        while not self._stopping.wait(MAINTENANCE_INTERVAL_S):
            keep_house = self._keep_house()
            if keep_house is None:
                return
            keep_house(self._stopping.wait)
            del keep_house

    def _maintain_all(self) -> bool:
        """Maintain every shard; False when the store is gone (nothing here keeps it alive)."""
        due_shards = self._due_shards()
        shards = due_shards() if due_shards is not None else None
        del due_shards
        if shards is None:
            return False
        for shard in shards:
            self._guarded(shard, shard.maintain)
        return True

    def stop(self) -> None:
        """End the threads; drops requests that were not begun: `close` does them."""
        with self._lock:
            self._stopped = True
            self._changed.notify_all()
        self._stopping.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
