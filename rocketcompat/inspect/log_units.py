"""The units that follow from the log's records, collected in one scan: 28 bytes each in memory.

A caller that needs more of the same scan feeds a `LogUnits` piece by piece; `scanned` does it
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocketcompat.commitlog.batch import batch_of_records
from rocketcompat.commitlog.walk import ENDS, Gap
from rocketcompat.formats import BATCH_CQ_UNIT, CQ_UNIT
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.queues.units import RecordUnits, Units, units_of
from rocketcompat.record.columns import RecordColumns
from tubestore.core.kernels import Int64s

QueueKey = tuple[str, int]
#: Called with a queue, queue offsets and units, in the order of the log.
TakeUnits = Callable[[QueueKey, Int64s, Units], None]


@dataclass(frozen=True, slots=True)
class WantedQueues:
    """The queues that are wanted: one, those of one topic, or all."""

    only: QueueKey | None = None
    topic: str | None = None

    def __contains__(self, key: QueueKey) -> bool:
        if self.only is not None:
            return key == self.only
        return self.topic is None or key[0] == self.topic


@dataclass(frozen=True, slots=True)
class ScannedUnits:
    """The queues by a scan of the log: queue offsets of each, in the log's order, and units.

    `regions` are the parts of the log without records, `log_end` is behind its last one.
    """

    units: Mapping[QueueKey, tuple[Int64s, Units]]
    regions: Sequence[Gap]
    log_end: int


ALL_QUEUES = WantedQueues()


class LogUnits:
    """Takes pieces of the log, in order, and gives the units of the queues that are wanted.

    Queues of inner batches are kept apart. With `ordinary`, `batches` or `regions` the units of
    such queues and the parts of the log without records are handed on, and not kept.
    """

    def __init__(
        self, directory: StoreDirectory, wanted: WantedQueues = ALL_QUEUES,
        ordinary: TakeUnits | None = None,
        batches: Callable[[QueueKey, Units], None] | None = None,
        regions: Callable[[Gap], None] | None = None,
    ) -> None:  # fmt: skip
        self._directory, self._wanted = directory, wanted
        self._take_ordinary = ordinary or self._keep
        self._take_batches = batches
        self._batch_topics = directory.config.batch_topics
        #: The parts of the log without records, and the end of the last one with any.
        self.regions: list[Gap] = []
        self.log_end = directory.log.min_offset
        self._plain: dict[QueueKey, list[tuple[Int64s, Units]]] = {}
        self._batches: dict[QueueKey, list[tuple[Int64s, Units]]] = {}
        self._take_region = regions or self.regions.append

    def scan(self) -> LogUnits:
        """Take the whole log; returns itself."""
        for piece in self._directory.scan_log():
            self.take(piece)
        return self

    def take(self, piece: RecordColumns | Gap) -> None:
        """Take the next piece of a scan."""
        if not isinstance(piece, Gap):
            self._collect(piece)
            self.log_end = piece.records_end
        elif piece.state not in ENDS:
            self._take_region(piece)
            self.log_end = piece.end

    def plain(self) -> ScannedUnits:
        """Return the units of ordinary queues."""
        return self._joined(self._plain, CQ_UNIT.dtype)

    def of_batches(self) -> ScannedUnits:
        """Return the units of queues of inner batches."""
        return self._joined(self._batches, BATCH_CQ_UNIT.dtype)

    def _joined(
        self, parts: Mapping[QueueKey, list[tuple[Int64s, Units]]], dtype: np.dtype
    ) -> ScannedUnits:
        found = {
            key: (
                np.concatenate([offsets for offsets, _ in pieces]),
                np.frombuffer(b"".join(units.tobytes() for _, units in pieces), dtype),
            )
            for key, pieces in parts.items()
        }
        return ScannedUnits(found, self.regions, self.log_end)

    def _collect(self, records: RecordColumns) -> None:
        delays, topics = self._directory.config.delay_levels_ms, self._batch_topics
        batch = batch_of_records(records, records.base, records.base, delays, with_keys=False)
        found = units_of(batch, topics)
        self._hand_on(found, found.plain(), self._take_ordinary)
        if topics:
            found = units_of(batch, topics, of_batches=True)
            self._hand_on(found, found.of_batches(), self._keep_of_batches)

    def _hand_on(self, found: RecordUnits, units: Units, take: TakeUnits) -> None:
        """Hand on the units of the queues that are wanted, queue by queue."""
        for key, start, end in found.runs():
            if key not in self._wanted:
                continue
            offsets = found.offsets[start:end]
            good = offsets >= 0
            if good.any():  # copies: the units of other queues are not kept with them
                take(key, offsets[good], units[start:end][good])

    def _keep(self, key: QueueKey, offsets: Int64s, units: Units) -> None:
        self._plain.setdefault(key, []).append((offsets, units))

    def _keep_of_batches(self, key: QueueKey, offsets: Int64s, units: Units) -> None:
        if self._take_batches is not None:
            self._take_batches(key, units)
        else:
            self._batches.setdefault(key, []).append((offsets, units))


class ScannedEnd:
    """The physical offset behind the last record of a scan."""

    def __init__(self, directory: StoreDirectory, offset: int) -> None:
        self._directory, self.offset = directory, offset
        self._has_moved = False

    def has_moved(self) -> bool:
        """True if a writer has put a record there since; asked of the files until it is so."""
        if not self._has_moved:
            self._directory.log.refresh()
            following = self._directory.scan_log(self.offset, chained=True)
            self._has_moved = not isinstance(next(following, None), Gap | None)
        return self._has_moved

    def is_later(self, offsets: Int64s) -> Any:
        """Mask of the physical offsets, shape (n,), of records that came after the scan.

        Without a writer all are False: what lies behind the log is wrong.
        """
        later = np.asarray(offsets, np.int64) >= self.offset
        return later & (bool(later.any()) and self.has_moved())
