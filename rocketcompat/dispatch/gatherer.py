"""Batches over many queues that wait for more, so that a queue is written once for several.

A *dense* batch has many records a queue: it is passed on at once. A sparse one waits for others,
until enough has come together or the dispatcher's rest is over. Pure: no thread, no lock, no file.

Always true:
- batches come out in the order in which they went in;
- what comes out together has no damaged region and no follower's beginning inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rocketcompat.commitlog.batch import merged
from rocketcompat.messages import DispatchBatch

#: Records a queue from which on a batch is dense, and the most that is held.
_DENSE_ROWS = 16
_BYTES_MAX = 256 << 20
_ROWS_MAX = 1 << 18


class Gatherer:
    """Holds sparse batches; `starts` are the physical offsets where followers begin."""

    def __init__(self, starts: Sequence[int], *, passes_all: bool) -> None:
        #: True while no batch is held: a follower needs the records themselves.
        self._passes_all = passes_all
        self._starts = tuple(starts)
        self._held: list[DispatchBatch] = []

    def __len__(self) -> int:
        """Return how many batches are held."""
        return len(self._held)

    def take(self, batch: DispatchBatch) -> list[DispatchBatch]:
        """Take the next batch; returns those to be handed over now, in order."""
        if self._passes_all or len(batch) >= _DENSE_ROWS * len(batch.queue_keys):
            return [*self.release(), batch]
        ready = self.release() if self._must_part(batch) else []
        self._held.append(replace(batch, records=None))
        return ready + (self.release() if self._is_full() else [])

    def release(self) -> list[DispatchBatch]:
        """Return what is held as one batch; nothing is held then."""
        held, self._held = self._held, []
        return [merged(held)] if len(held) > 1 else held

    def _must_part(self, batch: DispatchBatch) -> bool:
        """Return whether what is held and a batch cannot come out together."""
        if not self._held:
            return False
        first = self._held[0]
        if batch.damaged != first.damaged:  # a batch has one region before it
            return True
        return any(first.start < start <= batch.start for start in self._starts)

    def _is_full(self) -> bool:
        """Return whether what is held is worth a write for each queue."""
        if self._held[-1].end - self._held[0].start >= _BYTES_MAX:
            return True
        return sum(map(len, self._held)) >= _ROWS_MAX
