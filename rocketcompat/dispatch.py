"""The dispatcher: follows the CommitLog and builds everything else from it (D2).

RocketMQ's `ReputMessageService`, in batches: a piece of the log is decoded once into columns,
and every structure that is switched on (`Follower`) gets the same `DispatchBatch`. The puts
hand over where their records begin; where they did not (after an open, or when too many are
pending) the chain is followed record by record.

Always true:
- batches are handed over in log order, without gaps but for damaged regions; a follower that
  begins later than others never gets a row from before its beginning;
- a follower that raised is marked failed and gets nothing more until the store is reopened:
  the others go on, and its progress stays where it was;
- `position` is only moved on when every follower has had the batch.

Guards: `_dispatch_lock` is held by whoever dispatches (the thread, or a caller of
`dispatch_pending`); `_condition` guards `position`, and is what readers wait on.

Next to read: `recovery.py`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rocketcompat.columns import RecordColumns, decode_columns, queue_columns
from rocketcompat.commit_log import CommitLog
from rocketcompat.formats import PROPERTY_DELAY, SCHEDULE_TOPIC
from rocketcompat.log_scan import Damage, Piece, find_record, scan
from rocketcompat.messages import DispatchBatch, has_index_items
from tubestore.clock import Clock
from tubestore.errors import CorruptRecord, TubeStoreError
from tubestore.kernels import Int64s

_log = logging.getLogger(__name__)
#: After it was woken the thread lets puts come together this long, unless somebody waits.
LINGER_SECONDS = 0.02
_JOIN_SECONDS = 60.0


class Follower(Protocol):
    """A structure that is built from the log: queues, index, shards of the tube layout.

    All offsets are physical. `put_batch` and `recover` are called by one thread at a time,
    the rest by any.
    """

    name: str

    def recover(self, log_end: int, trusted: int | None) -> int:
        """Bring the files back to what some prefix of the log gives, durably.

        `trusted` is the progress mark that counts (see `progress.py`), None without one: then
        nothing in the files is to be believed that the log does not say. Nothing of records
        at or above `log_end` may stay. Returns the offset from which the log has to be handed
        over again: `log_end` at most. May be repeated after a crash at any point of it.
        """

    def mark(self, written: int, synced: int) -> None:
        """Say up to where the files are known to hold everything (after recovery or open)."""

    def put_batch(self, batch: DispatchBatch) -> None:
        """Take in the records of a batch; it begins where the batch before ended."""

    def flush(self, sync: bool) -> None:
        """Write out what is in memory; with `sync`, bring all that is written to stable storage."""

    def progress(self) -> tuple[int, int]:
        """Return (written, synced): below it everything is in the page cache / on stable storage.

        Never ahead of what is true: a kill, or a power cut, right now must leave it true.
        """

    def close(self) -> None:
        """Give the descriptors back."""


@dataclass(slots=True)
class _Feed:
    """A follower, where it begins, and why it stopped."""

    follower: Follower
    start: int
    failed: Exception | None = None


class ReputMessageService:
    """Feeds the followers; inline (`dispatch_pending`) or as a thread (`start`)."""

    def __init__(
        self, log: CommitLog, followers: Sequence[Follower], clock: Clock,
        *, position: int, starts: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self._log, self._clock = log, clock
        begin = starts or [position] * len(followers)
        self._feeds = [_Feed(f, s) for f, s in zip(followers, begin, strict=True)]
        self._dispatch_lock = threading.Lock()
        self._condition = threading.Condition()
        self._position = position
        self._bytes_max = log.config.dispatch_batch_bytes_max
        self._inline_bytes = log.config.dispatch_inline_bytes or 1 << 63
        #: Record starts that were handed over and not dispatched, and where they end.
        self._starts: Int64s = np.empty(0, np.int64)
        self._starts_end = position
        self._damaged: tuple[int, int] | None = None
        self._delays = log.config.delay_levels_ms
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._urgent = threading.Event()
        self._sleeping = False
        self._stopping = False
        #: What went wrong, for the store's list.
        self.problems: list[TubeStoreError] = []

    @property
    def position(self) -> int:
        """Everything below this physical offset has been handed over."""
        return self._position

    @property
    def behind(self) -> int:
        """Bytes of the log that have not been handed over (RocketMQ's dispatchBehindBytes)."""
        return max(0, self._log.max_offset - self._position)

    @property
    def failed(self) -> dict[str, Exception]:
        """The followers that stopped, and why."""
        return {feed.follower.name: feed.failed for feed in self._feeds if feed.failed}

    def dispatch_pending(self) -> int:
        """Hand over everything that is in the log now; returns the number of records."""
        with self._dispatch_lock:
            return self._drain()

    def _drain(self) -> int:
        count = 0
        while (piece := self._next_piece()) is not None:
            count += self._dispatch(piece)
        return count

    def wait_dispatched(self, offset: int, timeout: float) -> bool:
        """Wait until everything up to and with the record at `offset` was handed over.

        False if `timeout` seconds passed before. Without a thread it dispatches itself.
        """
        if self._position > offset:
            return True
        if self._thread is None:
            self.dispatch_pending()
            return self._position > offset
        deadline = self._clock.monotonic() + timeout
        self._urgent.set()
        self._wake.set()
        with self._condition:
            while self._position <= offset:
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._stopping:
                    return False
                self._urgent.set()
                self._condition.wait(min(left, 0.1))
        return True

    def wake(self) -> None:
        """Say that the log was put to; cheap."""
        if self._sleeping:
            self._sleeping = False
            self._wake.set()

    def wake_or_help(self, log_end: int) -> None:
        """As `wake`, of a single put up to `log_end`; with a lot pending hand it over here.

        Two threads that pass the interpreter back and forth at every write of a record are
        slower than one that does both; columns are long enough to overlap.
        """
        if log_end - self._position <= self._inline_bytes or self._thread is None:
            self.wake()
        elif self._dispatch_lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._dispatch_lock.release()

    def drop(self, follower: Follower) -> None:
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
        """Stop the thread as soon as it can, whatever is pending (a store that failed)."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping = True
            self._urgent.set()
            self._wake.set()
            thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.dispatch_pending()
            except Exception as error:  # a defect of ours: say so, and do not spin
                _log.exception("dispatch stopped")
                self.problems.append(TubeStoreError(f"dispatch stopped: {error!r}"))
                return
            self._wake.clear()
            self._sleeping = True
            # A put or a stop between the last look and the lines above has not woken anybody.
            if self._log.max_offset <= self._position and not self._stopping:
                self._wake.wait()
            self._sleeping = False
            if not self._stopping and not self._urgent.is_set():
                self._urgent.wait(LINGER_SECONDS)
            self._urgent.clear()

    def _next_piece(self) -> Piece | None:
        """Read the next piece of the log, over damage; None when nothing is left."""
        taken, end, complete = self._log.take_starts()
        if not complete:  # some are missing between those that are held and these
            self._starts = np.empty(0, np.int64)
        elif taken:
            self._starts = np.append(self._starts, np.array(taken, np.int64))
        self._starts_end = end
        if self._position >= end:
            return None
        if len(self._starts) and self._starts[0] == self._position:
            return self._told_piece()
        limit = int(self._starts[0]) if len(self._starts) else end
        return self._walked_piece(min(limit, end))

    def _told_piece(self) -> Piece:
        """Read records whose starts are known, of one file and one batch."""
        first = self._position
        file_size = self._log.queue.file_size
        limit = min(first + self._bytes_max, first - first % file_size + file_size)
        limit = min(limit, self._next_begin(first))
        starts = self._starts
        count = int(np.searchsorted(starts, limit))
        if count < len(starts) and starts[count] // file_size == first // file_size:
            end = int(starts[count])
        elif count < len(starts):
            end = int(starts[count])  # the next file's first record: a blank lies between
        else:
            end = self._starts_end
        if end - first > self._bytes_max and count > 1 and end // file_size == first // file_size:
            count -= 1  # the last one crosses the limit
            end = int(starts[count])
        size = min(end, first - first % file_size + file_size) - first
        data = self._log.read_at(first, size)
        self._starts = starts[count:]
        return Piece(data, first, starts[:count] - first, end)

    def _walked_piece(self, limit: int) -> Piece:
        """Follow the chain for one batch; damage moves the position on."""
        while True:
            begin = self._position
            damage = self._log.damage_at(begin)
            if damage is None:
                piece = self._scanned(begin, min(limit, self._damage_after(begin)))
                if piece.fault is None or len(piece.starts):
                    return self._trimmed(piece)
                damage = self._damage_found(piece, limit)
            self._damaged = (damage.start, damage.size)
            self._position = damage.end
            if damage.end >= limit:
                return Piece(b"", damage.end, np.empty(0, np.int64), damage.end)

    def _scanned(self, begin: int, limit: int) -> Piece:
        """Follow the chain for one piece; one that does not move on is a fault."""
        pieces = scan(self._log.queue, begin, limit, check_crc=False, bytes_max=self._bytes_max)
        piece = next(pieces, None)
        if piece is None or (piece.end == begin and piece.fault is None):
            return Piece(b"", begin, np.empty(0, np.int64), begin, "the log has no bytes here")
        return piece

    def _trimmed(self, piece: Piece) -> Piece:
        """Cut a piece where the next follower begins."""
        count = int(np.searchsorted(piece.starts + piece.base, self._next_begin(piece.base)))
        if count == len(piece.starts):
            return piece
        return Piece(piece.data, piece.base, piece.starts[:count],
                     piece.base + int(piece.starts[count]))  # fmt: skip

    def _damage_found(self, piece: Piece, limit: int) -> Damage:
        """Take down damage that recovery had no reason to look at."""
        end = find_record(self._log.queue, piece.end + 1, limit)
        file = self._log.queue.find(piece.end)
        path = file.path if file else self._log.queue.directory
        position = piece.end - (file.file_from_offset if file else 0)
        damage = Damage(piece.end, end or limit, path, position, piece.fault or "")
        self._log.note_damage(damage)
        self.problems.append(damage.error())
        return damage

    def _damage_after(self, offset: int) -> int:
        """Where the next known damage begins."""
        return min((d.start for d in self._log.damages if d.start > offset), default=1 << 63)

    def _next_begin(self, offset: int) -> int:
        """Where the next follower begins: batches are cut there."""
        return min((feed.start for feed in self._feeds if feed.start > offset), default=1 << 63)

    def _dispatch(self, piece: Piece) -> int:
        """Hand a piece over to every follower that is to have it, then move on."""
        count = len(piece.starts)
        if count:
            try:
                batch = self._batch(piece)
            except CorruptRecord as error:
                # Told by a put, and not there any more: have the chain followed instead.
                self._starts = np.empty(0, np.int64)
                self.problems.append(error)
                return 0
            for feed in self._feeds:
                if feed.failed is None and piece.base >= feed.start:
                    self._feed(feed, batch)
        with self._condition:
            self._position = piece.end
            self._condition.notify_all()
        return count

    def _feed(self, feed: _Feed, batch: DispatchBatch) -> None:
        try:
            feed.follower.put_batch(batch)
        except Exception as error:
            _log.exception("%s stopped", feed.follower.name)
            feed.failed = error
            self.problems.append(
                TubeStoreError(f"{feed.follower.name} stopped at {batch.start}: {error!r}")
            )

    def _batch(self, piece: Piece) -> DispatchBatch:
        """Decode a piece into the columns that the followers need."""
        records = decode_columns(piece.data, piece.starts, piece.base)
        keys, codes = queue_columns(records)
        sys_flags = records.column("sys_flag")
        key_rows, key_hashes = records.index_keys()
        wanted = has_index_items(sys_flags)[key_rows]
        return DispatchBatch(
            start=piece.base,
            end=piece.end,
            physical_offsets=piece.starts + piece.base,
            sizes=records.column("total_size"),
            queue_keys=keys,
            queue_codes=codes,
            queue_offsets=records.column("queue_offset"),
            tags_codes=self._tags_codes(records),
            store_timestamps=records.column("store_timestamp"),
            sys_flags=sys_flags,
            key_rows=key_rows[wanted],
            key_hashes=key_hashes[wanted],
            records=records,
            damaged=self._damaged,
        )

    def _tags_codes(self, records: RecordColumns) -> Int64s:
        """Hashes of the tags; of a scheduled message the time of its delivery (spec §1.9)."""
        codes = records.tags_codes()
        if SCHEDULE_TOPIC not in records.topic_names:
            return codes
        topic = records.topic_names.index(SCHEDULE_TOPIC)
        rows, starts, ends = records.property_values(PROPERTY_DELAY)
        raw, times = records.property_bytes, records.column("store_timestamp")
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
            text = raw[start:end].tobytes()
            if records.topic_codes[row] == topic and text.isdigit() and int(text) > 0:
                level = min(int(text), len(self._delays))
                codes[row] = times[row] + self._delays[level - 1]
        return codes
