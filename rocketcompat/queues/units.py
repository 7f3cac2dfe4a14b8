"""Units of 20 bytes as columns, and where they end in a queue's files.

A unit is a physical offset, a size and a tag hash (spec §2). Nothing in the files says how many
there are. In a closed queue they are followed by zeros only; after a crash the end is behind the
last one that can be right: units rise by physical offset, and stale ones do not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.formats import BATCH_CQ_UNIT, CQ_PRE_FILL_SIZE, CQ_UNIT
from rocketcompat.messages import DispatchBatch
from tubestore.core.kernels import Int64s, stable_order
from tubestore.core.layout import Layout

Units = np.ndarray[Any, Any]
QueueKey = tuple[str, int]
_UNIT = CQ_UNIT.struct
_SIZE = CQ_UNIT.size
#: A queue offset further ahead than this many units is damage, not a gap: its unit is refused.
GAP_UNITS_MAX = 10_000_000
QUEUE_OFFSET_MAX = 1 << 40
#: Recovery reads this many units at first, then twice as many each time.
_RECOVER_UNITS = 1024
_RECOVER_UNITS_MAX = 65_536


@dataclass(slots=True)
class LogMinimum:
    """The CommitLog's first physical offset, shared by all queues: units below it are expired."""

    value: int = 0
    #: Where a reader's log ends, beside which a writer may have put units of later records; None
    #: for a writer.
    end: int | None = None

    def seen(self, first: int, end: int, offset_at: Callable[[int], int]) -> int:
        """Return the place behind the last of the units [first, end) whose record is seen.

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
    """Mask of the units that stand for no message: pre-fill and places of damaged records."""
    return units["size"] == CQ_PRE_FILL_SIZE


def is_unit(units: Units) -> Any:
    """Mask of what can be a unit: a zero or negative size, or a negative offset, is none."""
    return (units["size"] > 0) & (units["physical_offset"] >= 0)


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


def found_end(files: tuple[MappedFile, ...]) -> int:
    """Return the unit behind the last of a closed queue, by binary search; 0 without any."""
    for file in reversed(files):
        low, high = 0, file.file_size // _SIZE
        while low < high:
            middle = (low + high) // 2
            offset, size, _ = _UNIT.unpack(file.read(middle * _SIZE, _SIZE))
            if size > 0 and offset >= 0:
                low = middle + 1
            else:
                high = middle
        if low:
            return file.file_from_offset // _SIZE + low
    return 0


def recovered_end(files: tuple[MappedFile, ...], keep_below: int) -> int | None:
    """Return the byte offset of the first unit that is not kept; None if none is.

    That is the first that cannot be right or whose record is at or above the physical offset
    `keep_below`.
    """
    while files and not _starts_well(files, keep_below):
        files = files[:-1]
    return _end_in(files[-1], keep_below) if files else None


def _starts_well(files: tuple[MappedFile, ...], keep_below: int) -> bool:
    """Whether the cut is in the last of these files or behind it."""
    first = np.frombuffer(files[-1].read(0, _SIZE), CQ_UNIT.dtype)
    if len(first) == 0 or not is_unit(first)[0] or first["physical_offset"][0] >= keep_below:
        return False
    if len(files) == 1:
        return True
    before = files[-2]
    raw = before.read(before.file_size - _SIZE, _SIZE)
    whole = len(raw) == _SIZE and is_unit(np.frombuffer(raw, CQ_UNIT.dtype))[0]
    joined = before.file_from_offset + before.file_size == files[-1].file_from_offset
    return bool(whole or not joined)


def _end_in(file: MappedFile, keep_below: int) -> int:
    """Return the byte offset of the first unit of a file that is not kept."""
    position, last, count = 0, -1, _RECOVER_UNITS
    while position < file.file_size:
        units = np.frombuffer(file.read(position, count * _SIZE), CQ_UNIT.dtype)
        offsets = units["physical_offset"].astype(np.int64)
        good = is_unit(units) & (offsets < keep_below)
        # Units at damaged records share their offset; all others rise.
        good &= offsets >= np.concatenate(([last], offsets[:-1]))
        if not good.all():
            return file.file_from_offset + position + int(good.argmin()) * _SIZE
        last = int(offsets[-1])
        position += len(units) * _SIZE
        count = min(2 * count, _RECOVER_UNITS_MAX)
    return file.file_from_offset + file.file_size
