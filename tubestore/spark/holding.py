"""The lease of a running stream: what it has not read yet is left alone by retention.

Held from the start of the batch that comes next, renewed by a thread of its own, since a batch may
take longer than a lease lasts. When a query ends, Spark terminates the process that holds its lease
(SIGTERM) and calls nothing first, so the lease is given up in the signal's handler. When the
process is killed the lease runs out by itself.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from types import FrameType

from tubestore.clock import Clock, SystemClock
from tubestore.core.vfs import Vfs
from tubestore.store.leases import Lease

TTL_MS = 120_000
#: How long a process that is terminated waits for its lease to be given up.
_RELEASE_SECONDS = 5.0


class StreamLease:
    """Holds shards of a store from some offsets on; of no effect where nothing can be written."""

    def __init__(
        self, vfs: Vfs, root: str, note: Callable[[str], None], clock: Clock | None = None
    ) -> None:
        self._vfs, self._root, self._note = vfs, root, note
        self._clock = clock or SystemClock()
        self._lease: Lease | None = None
        self._refused = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, offsets: Mapping[str, int]) -> None:
        """Hold everything from these offsets on, by `<topic>-<store id>`."""
        if self._refused:
            return
        try:
            if self._lease is None:
                self._lease = Lease(
                    self._vfs,
                    self._root,
                    offsets,
                    holder=f"spark {socket.gethostname()}:{os.getpid()}",
                    ttl_ms=TTL_MS,
                    clock=self._clock,
                    check=lambda _: None,  # what is gone is noticed where it is read
                )
                self._thread = threading.Thread(target=self._keep, daemon=True)
                self._thread.start()
                self._end_with_process()
            elif any(self._lease.offsets.get(k) != v for k, v in offsets.items()):
                self._lease.offsets |= offsets  # written when it is renewed: later is safer
                if self._due(TTL_MS // 4):
                    self._lease.renew()
        except OSError as error:
            self._refused = True
            self._note(f"{self._root}: no lease can be held, retention may be quicker: {error}")

    def _end_with_process(self) -> None:
        """Give the lease up when this process is terminated, unless it has a handler of its own."""
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number: int, _frame: FrameType | None) -> None:
        # In a thread of its own: this one may be in the middle of a renewal, and hold its lock.
        released = threading.Thread(target=self.release, daemon=True)
        released.start()
        released.join(_RELEASE_SECONDS)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _due(self, after_ms: int) -> bool:
        assert self._lease is not None
        return self._clock.now_ms() >= self._lease.expires_ms - TTL_MS + after_ms

    def _keep(self) -> None:
        while not self._ended.wait(TTL_MS / 4000):
            self.renew()

    def renew(self) -> None:
        """Hold it for longer, if a part of the time has passed."""
        lease = self._lease
        if lease is not None and self._due(TTL_MS // 4):
            try:
                lease.renew()
            except OSError as error:
                self._note(f"{self._root}: the lease could not be renewed: {error}")

    def release(self) -> None:
        """Give it up; harmless when repeated."""
        self._ended.set()
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) == self._terminated
        ):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
