"""Units of queues as columns, of both kinds: made from records, read from files.

A unit is a physical offset, a size and a tag hash, 20 bytes. One of an inner batch has
46: the queue offset of its first message and their number, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.formats import BATCH_CQ_UNIT, CQ_PRE_FILL_SIZE, CQ_UNIT
from rocketcompat.messages import DispatchBatch
from tubestore.core.kernels import Int64s, stable_order
from tubestore.core.layout import Layout

Units = np.ndarray[Any, Any]
QueueKey = tuple[str, int]
#: A queue offset further ahead than this many units is damage, not a gap: its unit is refused.
GAP_UNITS_MAX = 10_000_000
QUEUE_OFFSET_MAX = 1 << 40


@dataclass(slots=True)
class LogMinimum:
    """The CommitLog's first physical offset, shared by all queues: units below it are expired."""

    value: int = 0
    #: The end of a reader's log: a writer may have put units of later records. None for a writer.
    end: int | None = None

    def seen(self, first: int, end: int, offset_at: Callable[[int], int]) -> int:
        """Return the place behind the last of the units [first, end) that have a seen record.

        `offset_at` returns the physical offset in a unit; they rise.
        """
        if self.end is None or end <= first or offset_at(end - 1) < self.end:
            return end
        return bisect_left(range(end), self.end, first, key=offset_at)


def plain_units(physical_offsets: Any, sizes: Any, tags_codes: Any) -> Units:
    """Return columns as units, in the bytes of the file."""
    units = np.empty(len(physical_offsets), CQ_UNIT.dtype)
    units["physical_offset"] = physical_offsets
    units["size"] = sizes
    units["tags_code"] = tags_codes
    return units


def batch_units(
    physical_offsets: Int64s, sizes: Any, tags_codes: Any, store_timestamps: Any,
    base_offsets: Any, counts: Any,
) -> Units:  # fmt: skip
    """Return columns as units of a queue of inner batches, in the bytes of the file."""
    units = np.zeros(len(physical_offsets), BATCH_CQ_UNIT.dtype)
    units["physical_offset"], units["size"] = physical_offsets, sizes
    units["tags_code"], units["store_timestamp"] = tags_codes, store_timestamps
    units["base_offset"], units["batch_size"] = base_offsets, counts
    units["compacted_offset"] = -1
    return units


@dataclass(frozen=True, slots=True)
class RecordUnits:
    """The units of a batch's records, by queue and then in the order of the log: columns.

    `codes` are each unit's queue, a place in `batch.queue_keys`; `rows` its record; `offsets` its
    queue offset, that of the first message of an inner batch.
    """

    batch: DispatchBatch
    codes: Any
    rows: Int64s
    offsets: Int64s

    def plain(self) -> Units:
        """Return them as units of ordinary queues."""
        batch, rows = self.batch, self.rows
        return plain_units(batch.physical_offsets[rows], batch.sizes[rows], batch.tags_codes[rows])

    def of_batches(self) -> Units:
        """Return them as units of queues of inner batches."""
        batch, rows = self.batch, self.rows
        return batch_units(
            batch.physical_offsets[rows], batch.sizes[rows], batch.tags_codes[rows],
            self.store_timestamps, self.offsets, self.counts,
        )  # fmt: skip

    @property
    def store_timestamps(self) -> Int64s:
        """The store time of each record."""
        return self.batch.store_timestamps[self.rows]

    @property
    def counts(self) -> Any:
        """How many messages each record holds; 1 if all are plain ones."""
        counts = self.batch.message_counts
        return 1 if counts is None else counts[self.rows]

    def runs(self) -> Iterator[tuple[QueueKey, int, int]]:
        """Go over the queues: (queue, first unit, end of its units)."""
        if not len(self.codes):
            return
        starts = [0, *(np.flatnonzero(self.codes[1:] != self.codes[:-1]) + 1).tolist()]
        ends = [*starts[1:], len(self.codes)]
        for code, start, end in zip(self.codes[starts].tolist(), starts, ends, strict=True):
            yield self.batch.queue_keys[code], start, end


def units_of(
    batch: DispatchBatch, batch_topics: frozenset[str] = frozenset(), *, of_batches: bool = False
) -> RecordUnits:
    """Return the units of a batch's records in ordinary queues, or in queues of inner batches.

    `batch_topics` have queues of inner batches only. Units of multi-dispatch are among the
    ordinary ones.
    """
    wanted = batch.queue_rows
    if of_batches:
        wanted = wanted & (batch.queue_offsets >= 0)
    if of_batches or batch_topics:
        chosen = [(topic in batch_topics) == of_batches and (not of_batches or queue_id >= 0)
                  for topic, queue_id in batch.queue_keys]  # fmt: skip
        wanted = wanted & np.array(chosen, bool)[batch.queue_codes]
    rows = np.flatnonzero(wanted)
    codes, offsets = batch.queue_codes[rows], batch.queue_offsets[rows]
    if len(batch.copy_rows) and not of_batches:
        rows = np.concatenate((rows, batch.copy_rows))
        codes = np.concatenate((codes, batch.copy_codes))
        offsets = np.concatenate((offsets, batch.copy_offsets))
        order = np.lexsort((rows, codes))
    else:
        order = stable_order(codes, len(batch.queue_keys))
    return RecordUnits(batch, codes[order], rows[order], offsets[order])


def is_fill(units: Units) -> Any:
    """Return a mask of the units of no message: pre-fill, and places of damaged records."""
    return units["size"] == CQ_PRE_FILL_SIZE


def is_unit(units: Units) -> Any:
    """Return a mask of possible units: a zero or negative size, or a negative offset, is not."""
    return (units["size"] > 0) & (units["physical_offset"] >= 0)


def is_batch_unit(units: Units) -> Any:
    """Return a mask of possible units of inner batches: a zero or negative size or count is not."""
    return (units["size"] > 0) & (units["batch_size"] > 0)


def end_of(unit: Any) -> int:
    """Return the queue offset behind the last message of a unit of an inner batch."""
    return int(unit.base_offset) + int(unit.batch_size)


def read_units(files: MappedFileQueue, start: int, end: int, layout: Layout) -> Units:
    """Return units [start, end), counted from byte 0, over files; fewer behind a hole."""
    parts = []
    while start < end:
        raw = files.read(start * layout.size, (end - start) * layout.size)
        if len(raw) < layout.size:
            break
        parts.append(raw)
        start += len(raw) // layout.size
    return np.frombuffer(b"".join(parts), layout.dtype)
