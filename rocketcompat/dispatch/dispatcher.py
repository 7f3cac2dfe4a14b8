"""The dispatcher: follows the CommitLog and builds everything else from it (D2).

RocketMQ's `ReputMessageService`, in batches: `LogFeed` makes them, `Gatherer` puts small ones
together, and every structure that is switched on (`Follower`) gets the same `DispatchBatch`.

Always true:
- batches are handed over in log order, without gaps but for damaged regions; a follower that
  begins later than others never gets a row from before its beginning;
- a follower that raised is marked failed and gets nothing more until the store is reopened:
  the others go on, and its progress stays where it was;
- one that finds no room on the disk is not failed: it gets the batch again, and all wait for it;
- `position` is only moved on when every follower has had the batch.

An interrupt (an exception out of a signal's handler) may end a call that dispatches: the next one
begins behind what every follower has. A follower that was at work then counts as one that raised.

Guards: `_dispatch_lock` is held by the thread that dispatches (the service's, or a caller of
`dispatch_pending`); `_position_lock` guards `position`, of which `_moved` reports changes.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

from rocketcompat.commitlog.appended import Appended
from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.dispatch.feed import LogFeed
from rocketcompat.dispatch.gatherer import Gatherer
from rocketcompat.dispatch.protocols import Receiver
from rocketcompat.files.mapped_file import has_no_room
from rocketcompat.messages import DispatchBatch
from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.errors import StoreFailed, TubeStoreError

_log = logger(__name__)
#: A batch that found no room on the disk, or no sound read, is tried again after so long.
_RETRY_SECONDS = 1.0
_JOIN_SECONDS = 60.0
#: After a handing over the dispatcher rests, so that what comes meanwhile goes together: so many
#: times as long as that took, the most after many records. A stream of puts spends a tenth of its
#: time on it, and after a few puts the next one is handed over within two milliseconds.
_REST_LEAST, _REST_MOST = 3, 10
_REST_RECORDS = 8
#: The thread leaves gathered batches to the puts while they come so soon.
_QUIET_SECONDS = 0.02


@dataclass(slots=True)
class _Feed:
    """A follower, where it begins, and why it stopped."""

    follower: Receiver
    start: int
    #: Everything below this physical offset was handed over to it.
    end: int
    failed: Exception | None = None


class ReputMessageService:
    """Feeds the followers; inline (`dispatch_pending`) or as a thread (`start`)."""

    def __init__(
        self, log: CommitLog, appended: Appended, followers: Sequence[Receiver], clock: Clock,
        *, position: int, starts: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.name = "ReputMessageService"
        self._log, self._appended, self._clock = log, appended, clock
        begin = starts or [position] * len(followers)
        self._feeds = [_Feed(f, s, s) for f, s in zip(followers, begin, strict=True)]
        self._dispatch_lock = threading.Lock()
        self._position_lock = threading.RLock()
        self._moved = threading.Condition(self._position_lock)
        #: What went wrong, for the store's list.
        self.problems: list[TubeStoreError] = []
        self._position = position
        self._begin_source()
        self._inline_bytes = log.config.dispatch_inline_bytes or 1 << 63
        self._rest_max = log.config.dispatch_linger / 1000
        #: Until when the dispatcher rests.
        self._rests_until = 0.0
        #: What is handed over next: batches, and ends of stretches without records.
        self._ready: deque[DispatchBatch | int] = deque()
        #: Why the first of them is not handed over, if the disk has no room for it.
        self.full: OSError | None = None
        #: Called with each batch that every follower has got.
        self.arrived: Callable[[DispatchBatch], None] | None = None
        #: Why nothing is handed over any more, until the store is opened again.
        self.stopped: Exception | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._urgent = threading.Event()
        self._sleeping = False
        self._stopping = False

    def _begin_source(self) -> None:
        """Read the log from `position` on, in batches that no follower has a part of."""
        stops = [stop for feed in self._feeds for stop in (feed.start, feed.end)]
        self._source = LogFeed(self._log, self._appended, self._position, stops, self.problems)
        self._gatherer = Gatherer(stops, passes_all=not self._appended.keeps_columns)

    @property
    def position(self) -> int:
        """Everything below this physical offset has been handed over."""
        return self._position

    @property
    def behind(self) -> int:
        """Bytes of the log that have not been handed over (RocketMQ's dispatchBehindBytes).

        Of the structure that is furthest behind: a structure that stopped stays where it was.
        """
        return max(0, self._log.max_offset - min(self.ends.values(), default=self._position))

    @property
    def ends(self) -> dict[str, int]:
        """Up to which physical offset each structure was handed everything."""
        position = self._position
        return {
            feed.follower.name: min(feed.end, position) if feed.failed else position
            for feed in self._feeds
        }

    @property
    def is_running(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def failed(self) -> dict[str, Exception]:
        """The followers that stopped, and why."""
        return {feed.follower.name: feed.failed for feed in self._feeds if feed.failed}

    def dispatch_pending(self) -> int:
        """Hand over everything that is in the log now; returns the number of records.

        OSError if the log cannot be read; then it can be called again.
        """
        with self._dispatch_lock:
            count = self._drain()
        return count

    def _drain(self, *, everything: bool = True) -> int:
        """Hand over what is in the log now; nothing any more after a defect of this package."""
        if self.stopped is not None:
            return 0
        try:
            return self._drained(everything=everything)
        except (OSError, TubeStoreError):
            raise
        except Exception as error:  # what was taken from the source may be lost
            _log.exception("dispatch stopped")
            self.stopped = copy(error)
            self.problems.append(TubeStoreError(f"dispatch stopped: {error!r}"))
            return 0
        except BaseException:  # what is on its way is read from the log again
            damaged = self._source.damaged
            self._ready.clear()
            self._begin_source()
            if damaged is not None and damaged[0] < self._position:
                self._source.damaged = damaged
            raise

    def _drained(self, *, everything: bool) -> int:
        """Hand over what is in the log now, not what is put meanwhile; returns the records.

        Draining while one thread puts single messages would dispatch tiny batches at full cost.
        Gathered rows wait for the end of the rest, unless `everything` is wanted.
        """
        count, last, began = 0, self._log.max_offset, self._clock.monotonic()
        self._feed_ready()
        while self._source.position < last and self.full is None:
            found = self._source.next_batch()
            if found is None:
                break
            if isinstance(found, DispatchBatch):
                count += self._hand_over(self._gatherer.take(found))
            else:
                count += self._hand_over(self._gatherer.release())
                self._ready.append(found)
                self._feed_ready()
        if (everything or began >= self._rests_until) and self.full is None:
            count += self._hand_over(self._gatherer.release())
        if count:
            ended = self._clock.monotonic()
            times = min(max(count / _REST_RECORDS, _REST_LEAST), _REST_MOST)
            self._rests_until = ended + min(times * (ended - began), self._rest_max)
        return count

    def _hand_over(self, batches: Sequence[DispatchBatch]) -> int:
        """Hand batches over to every follower that lacks them; returns their records."""
        if batches:
            self._ready += batches
            self._feed_ready()
        return sum(map(len, batches))

    def refuse_stopped(self, root: str, offset: int) -> None:
        """Raise StoreFailed if a structure stopped before it got the record at `offset`."""
        for feed in self._feeds:
            if feed.failed is not None and feed.end <= offset:
                reason = f"{feed.follower.name} stopped at {feed.end}: {feed.failed!r}"
                raise StoreFailed(root, reason)
        if self.stopped is not None and self._position <= offset:
            raise StoreFailed(root, f"dispatch stopped: {self.stopped!r}")

    def wait_dispatched(self, offset: int, timeout: float) -> bool:
        """Wait until everything up to and with the record at `offset` was handed over.

        Structures that stopped are not waited for: see `refuse_stopped`. False if `timeout`
        seconds passed before, or once dispatch has stopped. Without a thread it dispatches itself.
        """
        if self._position > offset:
            return True
        if self._thread is None:
            self.dispatch_pending()
            return self._position > offset
        deadline = self._clock.monotonic() + timeout
        self._urgent.set()
        self._wake.set()
        with self._position_lock:
            while self._position <= offset:
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._stopping or self.stopped is not None:
                    return False
                self._urgent.set()
                self._moved.wait(min(left, 0.1))
        return True

    def wake(self) -> None:
        """Wake the thread after a put; cheap."""
        if self._sleeping:
            self._sleeping = False
            self._wake.set()

    def wake_or_help(self, log_end: int) -> None:
        """As `wake`, after a single put up to `log_end`; with a lot pending hand it over here.

        Two threads that pass the interpreter back and forth at every write of a record are slower
        than one that does both; columns are long enough to overlap.
        """
        if log_end - self._source.position <= self._inline_bytes or self._thread is None:
            self.wake()
        else:
            self._help()

    def help_with_columns(self) -> None:
        """As `wake`, after a put of columns: they are at hand, so dispatch them here.

        The thread would have to read and decode them again, and contend for the interpreter.
        """
        if self._thread is not None and self._appended.keeps_columns:
            self._help()
        else:
            self.wake()

    def _help(self) -> None:
        """Hand over what is in the log, unless another thread does.

        The thread does what is left, and reports failures.
        """
        taken: list[bool] = []
        try:
            if self.full is None:
                # In one step: an interrupt finds the lock taken and this list filled, or neither.
                taken += map(self._dispatch_lock.acquire, (False,))
            if any(taken):
                with contextlib.suppress(OSError, TubeStoreError):
                    self._drain(everything=False)
        finally:
            if True in taken:
                self._dispatch_lock.release()
        if self._log.max_offset > self._position:
            self.wake()

    def drop(self, follower: Receiver) -> None:
        """Feed a follower no longer."""
        with self._dispatch_lock:
            self._feeds = [feed for feed in self._feeds if feed.follower is not follower]

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="ReputMessageService", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Stop the thread, having handed over what is in the log; then, or without one, inline."""
        thread = self._thread
        if thread is not None:
            self._stopping = True
            self._urgent.set()
            self._wake.set()
            thread.join(_JOIN_SECONDS)
            self._thread = None
        self.dispatch_pending()

    def abandon(self) -> None:
        """Stop the thread as soon as possible, whatever is pending (for a store that failed)."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping = True
            self._urgent.set()
            self._wake.set()
            thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopping:
            pause = self._round()
            if self.stopped is not None:
                return
            self._wake.clear()
            self._sleeping = True
            # A put or a stop between the last check and the lines above has woken no thread.
            if pause:
                self._urgent.wait(pause)
            elif self._log.max_offset <= self._position and not self._stopping:
                self._wake.wait()
            self._sleeping = False
            if not self._stopping and not self._urgent.is_set():
                self._rest()
            self._urgent.clear()

    def _round(self) -> float:
        """Hand over what is there; returns the seconds after which to try again what failed."""
        try:
            self.dispatch_pending()
        except (OSError, TubeStoreError) as error:
            problem = TubeStoreError(f"dispatch: {error}")
            if not self.problems or str(self.problems[-1]) != str(problem):
                _log.error("%s", problem)
                self.problems.append(problem)
            return _RETRY_SECONDS
        return _RETRY_SECONDS if self.full is not None else 0

    def _rest(self) -> None:
        """Let puts gather until the rest is over, and for as long as they hand over themselves."""
        while True:
            count = len(self._gatherer)
            seconds = self._rests_until - self._clock.monotonic()
            if count:
                seconds = max(seconds, 0.0) + _QUIET_SECONDS
            if seconds <= 0 or self._urgent.wait(seconds) or self._stopping:
                return
            if count == len(self._gatherer):
                return

    def _feed_ready(self) -> None:
        """Hand over what is ready, in order, as far as there is room for it on the disk."""
        while self._ready:
            first = self._ready[0]
            if isinstance(first, DispatchBatch) and not self._put_to_followers(first):
                return
            self._move_on(first.end if isinstance(first, DispatchBatch) else first)
            self._ready.popleft()
            if self.arrived is not None and isinstance(first, DispatchBatch):
                self._report_arrival(self.arrived, first)

    def _report_arrival(
        self, listener: Callable[[DispatchBatch], None], batch: DispatchBatch
    ) -> None:
        """Call the listener; its error is no reason to stop a structure."""
        try:
            listener(batch)
        except Exception as error:
            problem = TubeStoreError(f"arrival listener: {error!r}")
            if not self.problems or str(self.problems[-1]) != str(problem):
                _log.exception("arrival listener")
                self.problems.append(problem)

    def _move_on(self, position: int) -> None:
        with self._position_lock:
            self._position = position
            self._moved.notify_all()

    def _put_to_followers(self, batch: DispatchBatch) -> bool:
        """Hand a batch over to the followers that lack it; False if one found no room for it."""
        full: OSError | None = None
        for feed in self._feeds:
            if feed.failed is not None or batch.start < feed.start or batch.end <= feed.end:
                continue
            try:
                feed.follower.put(batch)
                feed.end = batch.end
            except BaseException as error:
                if isinstance(error, OSError) and has_no_room(error):
                    full = error
                    continue
                # Also after an interrupt: it may have a part of the batch.
                interrupt = StoreFailed(feed.follower.name, "an interrupt ended a call of it")
                feed.failed = copy(error) if isinstance(error, Exception) else interrupt
                _log.exception("%s stopped", feed.follower.name)
                problem = f"{feed.follower.name} stopped at {batch.start}: {error!r}"
                self.problems.append(TubeStoreError(problem))
                if feed.failed is interrupt:
                    raise
        if full is not None and self.full is None:
            _log.error("dispatch waits for room: %s", full)
        elif full is None and self.full is not None:
            _log.warning("dispatch goes on: there is room again")
        self.full = None if full is None else copy(full)
        return full is None
