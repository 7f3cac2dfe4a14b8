"""What puts leave for the dispatcher: where their records begin, and batches as columns.

A cache only: anything that is missing is read from the log. Opening makes it and gives it to the
log, which fills it, and to the dispatcher, which empties it.

Guards: `lock`, the log's put lock; the caller holds it.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from typing import Any, NamedTuple

import numpy as np

from rocketcompat.commitlog.queue_offsets import QueueKey
from rocketcompat.messages import ReadyBatches
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.encode import EncodedColumns
from tubestore.core.kernels import Int64s

#: Above this many the starts are forgotten and the dispatcher follows the chain itself.
_STARTS_MAX = 1 << 20
#: Batches that were not dispatched are kept up to so many bytes; then the log has to be read.
_COLUMNS_BYTES_MAX = 16 << 20
_NONE = np.empty(0, np.int64)


class Taken(NamedTuple):
    """What is known of the records of a stretch of the log."""

    #: Physical offsets at which they begin.
    starts: Int64s
    #: Up to where the stretch reaches.
    end: int
    #: True if all starts are there; there may have been too many to keep.
    complete: bool
    #: Some of the records, in log order; what of them is not here has to be read.
    columns: list[RecordColumns | ReadyBatches]


class Appended:
    """What was put and not yet taken by the dispatcher."""

    def __init__(self, *, keeps_columns: bool) -> None:
        self.lock = threading.Lock()
        #: True if the dispatcher gets batches as columns.
        self.keeps_columns = keeps_columns
        #: Those that wait for it.
        self.columns: list[RecordColumns | ReadyBatches] = []
        self.begin()

    def begin(self) -> None:
        """Know of no record, and miss none."""
        self._starts, self._complete = array("q"), True
        self.columns, self._columns_bytes = [], 0

    def add(self, start: int) -> None:
        """Take in where a record begins."""
        self._starts.append(start)
        if len(self._starts) > _STARTS_MAX:
            self.forget()

    def add_many(self, starts: Int64s) -> None:
        """Take in where records begin."""
        self._starts.frombytes(starts.tobytes())
        if len(self._starts) > _STARTS_MAX:
            self.forget()

    def forget(self) -> None:
        """Forget where records begin: some were not noted."""
        self._starts, self._complete = array("q"), False

    def add_ready(self, ready: ReadyBatches | None) -> None:
        """Take in the batches of a job that was published; None: it has none."""
        self.forget()
        if ready is not None and self.keeps_columns:
            self.columns.append(ready)

    def keep(
        self, encoded: EncodedColumns, base: int, queue_offsets: Int64s, now: int,
        queues: tuple[list[QueueKey], Any] | None,
    ) -> None:  # fmt: skip
        """Keep a batch that was put at `base` at once, unless many wait."""
        size = len(encoded.data)
        if self.keeps_columns and self._columns_bytes + size <= _COLUMNS_BYTES_MAX:
            records = encoded.records(base, queue_offsets, now)
            records.queues = queues
            self.columns.append(records)
            self._columns_bytes += size

    def take(self, end: int) -> Taken:
        """Hand over what is known below `end`, up to which readers see."""
        count = bisect_left(self._starts, end)
        starts, self._starts = self._starts[:count], self._starts[count:]
        complete, self._complete = self._complete, True
        columns, self.columns, self._columns_bytes = self.columns, [], 0
        found = np.frombuffer(starts, np.int64) if complete and count else _NONE
        return Taken(found, end, complete, columns)
