"""The rest of the log as batches, whatever their source: the dispatcher's view of the CommitLog.

A batch has one of three sources:
- a job that was published left it ready made;
- a put left its records as columns;
- it is read from the log. Puts leave the places of their records. Where they did not (after an
  opening, or when too many were pending) the chain is followed record by record, over damage, which
  is noted.

Guards: none; the caller holds the dispatcher's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rocketcompat.commitlog.appended import Appended
from rocketcompat.commitlog.batch import batch_of, batch_of_records
from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.commitlog.walk import Gap, Piece, find_record, gap_of, walk
from rocketcompat.messages import DispatchBatch, ReadyBatches
from rocketcompat.record.columns import RecordColumns
from tubestore.core.doors import logger
from tubestore.core.kernels import Int64s
from tubestore.errors import CorruptRecord, InvalidMessage, TubeStoreError

_log = logger(__name__)


class LogFeed:
    """The rest of the log from `position` on; a batch never spans one of the `stops`."""

    def __init__(
        self, log: CommitLog, appended: Appended, position: int, stops: Sequence[int],
        problems: list[TubeStoreError] | None = None,
    ) -> None:  # fmt: skip
        self._log, self._appended, self._stops = log, appended, tuple(stops)
        #: Everything below this physical offset was returned, or is damaged.
        self.position = position
        #: (physical offset, bytes) of the last damaged region that was passed over.
        self.damaged: tuple[int, int] | None = None
        #: What could not be read is added here.
        self.problems: list[TubeStoreError] = [] if problems is None else problems
        self._bytes_max = log.config.dispatch_batch_bytes_max
        self._delays = log.config.delay_levels_ms
        #: Record starts that were handed over and not dispatched, and the end of the last record.
        self._starts: Int64s = np.empty(0, np.int64)
        self._starts_end = position
        #: Some of these records as columns, in log order.
        self._columns: deque[RecordColumns | ReadyBatches] = deque()

    def next_batch(self) -> DispatchBatch | int | None:
        """Return the next batch; an offset if there is no record before it; None at the log's end.

        OSError passes through; then the same batch can be asked for again.
        """
        while True:
            ready = self._next_columns()
            if isinstance(ready, DispatchBatch):
                return replace(ready, damaged=self.damaged)
            if ready is not None:
                return batch_of_records(ready, ready.base, ready.end, self._delays, self.damaged)
            piece = self._next_piece()
            if piece is None:
                return None
            self.position = piece.end
            if not len(piece.starts):
                return piece.end
            try:
                return batch_of(piece, self._delays, self.damaged)
            except CorruptRecord as error:
                # A put noted a record that is not in the log any more: follow the chain instead.
                self.position, self._starts = piece.base, np.empty(0, np.int64)
                self.problems.append(error)

    def _next_columns(self) -> RecordColumns | DispatchBatch | None:
        """Return the next records if a put or a job left them; None if they have to be read."""
        if not self._columns:
            self._take_appended()
        while self._columns and self._columns[0].base < self.position:
            self._columns.popleft()
        first = self._columns[0] if self._columns else None
        if first is None or first.base != self.position:
            return None
        if self._next_begin(self.position) < first.end:
            return None
        if isinstance(first, ReadyBatches):
            return self._next_ready(first)
        self._columns.popleft()
        self.position = first.end
        return first

    def _next_ready(self, ready: ReadyBatches) -> DispatchBatch | None:
        """Return the next batch of a job; None if its staged data have gone (the log has it)."""
        try:
            batch = next(ready.batches, None)
        except (OSError, InvalidMessage) as error:
            _log.warning("a published job is read from the log: %s", error)
            batch = None
        if batch is None or batch.end == ready.end:
            self._columns.popleft()
        if batch is not None:
            ready.base = self.position = batch.end
        return batch

    def _take_appended(self) -> None:
        """Take over what the puts left since the last call."""
        with self._appended.lock:
            taken, end, complete, columns = self._appended.take(self._log.max_offset)
        if not complete:  # some are missing between those that are held and these
            self._starts = np.empty(0, np.int64)
        elif len(taken):
            held = self._starts[np.searchsorted(self._starts, self.position) :]
            self._starts = np.concatenate((held, taken))
        self._starts_end = end
        self._columns += columns

    def _next_piece(self) -> Piece | None:
        """Read the next piece of the log, over damage; None when nothing is left."""
        self._take_appended()
        end = self._starts_end
        if self.position >= end:
            return None
        self._starts = self._starts[np.searchsorted(self._starts, self.position) :]
        if len(self._starts) and self._starts[0] == self.position:
            return self._piece_of_known_starts()
        limit = int(self._starts[0]) if len(self._starts) else end
        if self._columns:
            limit = min(limit, self._columns[0].base)
        return self._piece_of_the_walk(min(limit, end))

    def _piece_of_known_starts(self) -> Piece:
        """Read records with known starts, of one file and one batch."""
        first = self.position
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

    def _piece_of_the_walk(self, limit: int) -> Piece:
        """Follow the chain for one batch; gaps move the position on."""

        def gap_found(position: int, fault: str) -> Gap:
            """Note damage that recovery had no reason to verify."""
            log = self._log.queue
            end = find_record(log, position + 1, limit) or limit
            gap = gap_of(log, position, end, fault, "damaged")
            self._log.note_gap(gap)
            self.problems.append(gap.error())
            return gap

        for found in walk(
            self._log.queue, self.position, limit, on_fault=gap_found, known=self._log.gaps,
            bytes_max=self._bytes_max,
        ):  # fmt: skip
            if isinstance(found, Gap):
                self._pass_over(found)
            elif len(found.starts) or (found.fault is None and found.end > self.position):
                return self._trimmed(found)
        if self.position < limit:
            self._pass_over(gap_found(self.position, "the log has no bytes here"))
        return Piece(b"", self.position, np.empty(0, np.int64), self.position)

    def _pass_over(self, gap: Gap) -> None:
        self.damaged = (gap.start, gap.size)
        self.position = gap.end

    def _trimmed(self, piece: Piece) -> Piece:
        """Cut a piece where the next follower begins."""
        count = int(np.searchsorted(piece.starts + piece.base, self._next_begin(piece.base)))
        if count == len(piece.starts):
            return piece
        return Piece(piece.data, piece.base, piece.starts[:count],
                     piece.base + int(piece.starts[count]))  # fmt: skip

    def _next_begin(self, offset: int) -> int:
        """Return where the next follower begins: batches are cut there."""
        return min((stop for stop in self._stops if stop > offset), default=1 << 63)
