"""The few threads that do what nobody waits for: flushes, syncs, and what is due by time (D8).

Guards: `_wanted` is guarded by `_changed`; a shard is worked on by one thread at a time.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable

from tubestore.double_buffer import DoubleBuffer
from tubestore.errors import TubeStoreError
from tubestore.message_store import MessageStore

log = logging.getLogger(__name__)

MAINTENANCE_INTERVAL_S = 0.5
_FLUSH, _SYNC = 1, 2


class Workers:
    """A pool of flush workers and one timer, for all shards of a store."""

    def __init__(self, threads: int, shards: Callable[[], Iterable[MessageStore]]) -> None:
        self._shards = weakref.WeakMethod(shards)
        self._changed = threading.Condition()
        #: What is to be done to which shard, in order of asking.
        self._wanted: dict[DoubleBuffer, int] = {}
        self._busy: set[DoubleBuffer] = set()
        self._stopped = False
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"tubestore-flush-{n}", daemon=True)
            for n in range(threads)
        ]
        self._threads.append(
            threading.Thread(target=self._tick, name="tubestore-timer", daemon=True)
        )
        for thread in self._threads:
            thread.start()

    def flush_soon(self, shard: DoubleBuffer) -> None:
        """Have a worker write the shard's buffers."""
        self._want(shard, _FLUSH)

    def sync_soon(self, shard: DoubleBuffer) -> None:
        """Have a worker sync what is in the shard's files."""
        self._want(shard, _SYNC)

    def _want(self, shard: DoubleBuffer, what: int) -> None:
        with self._changed:
            self._wanted[shard] = self._wanted.get(shard, 0) | what
            self._changed.notify()

    def _next(self) -> tuple[DoubleBuffer, int] | None:
        with self._changed:
            while not self._stopped:
                for shard in self._wanted:
                    if shard not in self._busy:
                        self._busy.add(shard)
                        return shard, self._wanted.pop(shard)
                self._changed.wait()
        return None

    def _work(self) -> None:
        while (task := self._next()) is not None:
            shard, what = task
            try:
                if what & _FLUSH:
                    shard.flush()
                if what & _SYNC:
                    shard.sync_files()
            except TubeStoreError as error:  # appends of the shard are refused and say so
                log.warning("%s: %s", shard.name, error)
            finally:
                with self._changed:
                    self._busy.discard(shard)
                    self._changed.notify()

    def _tick(self) -> None:
        # On an event of its own: a request's `notify` wakes one thread, and that must be a worker.
        while not self._stopping.wait(MAINTENANCE_INTERVAL_S):
            if not self._maintain_all():
                return

    def _maintain_all(self) -> bool:
        """Maintain every shard; False when the store is gone (nothing here keeps it alive)."""
        shards = self._shards()
        if shards is None:
            return False
        for shard in list(shards()):
            self._maintain(shard)
        return True

    def _maintain(self, shard: MessageStore) -> None:
        try:
            shard.maintain()
        except TubeStoreError as error:
            log.warning("%s: %s", shard.name, error)

    def stop(self) -> None:
        """End the threads; what was asked for and not begun is dropped (close does it itself)."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._stopping.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
