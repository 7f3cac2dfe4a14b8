"""The queues that a correct recovery would show, computed from the log, beside those on disk.

Each unit of a queue gets a state (`UNIT_STATES`), from a comparison of three things: the log's
records (topic, queue, queue offset), the queue's files, and what the log has no records for any
more.

One scan of the log gives the units of all queues asked for, 28 bytes each in memory; the
queues' files are read one queue at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rocketcompat.commitlog.walk import Gap
from rocketcompat.formats import (
    CONSUME_QUEUE_EXT_DIRECTORY,
    CQ_PRE_FILL_SIZE,
    CQ_UNIT,
)
from rocketcompat.inspect.batch_queues import BatchComparison, BatchQueueView
from rocketcompat.inspect.comparison import ComparedQueue, QueueComparison
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import (
    LogUnits,
    QueueKey,
    ScannedEnd,
    ScannedUnits,
    WantedQueues,
)
from rocketcompat.inspect.queue_units import QueueUnits, states_of
from rocketcompat.queues.extension import ConsumeQueueExt, is_address
from rocketcompat.queues.files import OF_BATCHES, PLAIN, UnitKind
from rocketcompat.queues.units import GAP_UNITS_MAX, Units, is_fill, is_unit
from rocketcompat.record.properties import SCHEDULE_TOPIC
from tubestore.core.kernels import Int64s

#: In place of a unit that is missing.
_FILL = np.zeros(1, CQ_UNIT.dtype)
_FILL["size"] = CQ_PRE_FILL_SIZE
#: The states of a unit; "ok" comes first, the rest are findings of `check`.
UNIT_STATES = {
    "ok": "The file has what the log has.",
    "missing": "Not in the file; computed from the log.",
    "wrong": "The file has something else here; this is from the log.",
    "surplus": "In the file, but the log has no such record.",
    "damaged": "Its record in the log is damaged or missing.",
    "fill": "Of no message.",
    "unchecked": "As in the file, not compared with the log.",
}


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue: units from `first` on, each with its state; `min_offset` … `max_offset` are real.

    Units from `max_offset` on are surplus. It can be pulled from as a queue of a store.
    """

    kind: ClassVar[UnitKind] = PLAIN

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    units: Units
    states: np.ndarray[Any, Any]
    units_per_file: int
    #: Leads from the addresses in tag fields to the hashes.
    ext: ConsumeQueueExt | None = None

    @property
    def first_place(self) -> int:
        """The number of the first unit in the files, counted from offset 0 on."""
        return self.min_offset

    @property
    def message_count(self) -> int:
        """How many messages the queue has, damaged ones included."""
        return int((self.states[: self.max_offset - self.min_offset] != "fill").sum())

    @property
    def record_offsets(self) -> Int64s:
        """Physical offsets of the records that should be readable, in the queue's order."""
        states = self.states[: self.max_offset - self.min_offset]
        kept = (states != "fill") & (states != "damaged")
        found: Int64s = self.units["physical_offset"][: len(states)][kept].astype(np.int64)
        return found

    def record_offset(self, offset: int) -> int:
        """Return the physical offset of the record with a message between the bounds."""
        return int(self.units["physical_offset"][offset - self.min_offset])

    def units_in_file(self, start: int, count: int) -> Units:
        """Return units of one file, as `ConsumeQueue` does."""
        end = min(start + count, self.next_file_offset(start), self.max_offset)
        return self.units[max(start - self.min_offset, 0) : max(end - self.min_offset, 0)]

    def spans(self, start: int, count: int) -> tuple[Units, Sequence[int]]:
        """As `units_in_file`, with the queue offset of each, and the one behind the last."""
        units = self._resolved(self.units_in_file(start, count))
        return units, range(start, start + len(units) + 1)

    def addresses(self) -> Iterator[tuple[Int64s, Int64s]]:
        """Yield queue offsets of units with the address of an extension, and these addresses."""
        real = self.units[: self.max_offset - self.min_offset]
        codes = real["tags_code"].astype(np.int64)
        places = np.flatnonzero(is_address(codes) & ~is_fill(real))
        if len(places):
            yield self.min_offset + places, codes[places]

    def _resolved(self, units: Units) -> Units:
        """Return units with the tag hashes that their addresses lead to."""
        if self.ext is None or not is_address(units["tags_code"]).any():
            return units
        units = units.copy()
        units["tags_code"] = self.ext.resolve(units["tags_code"].astype(np.int64))
        return units

    def next_file_offset(self, offset: int) -> int:
        """Return the first queue offset of the next file."""
        return offset - offset % self.units_per_file + self.units_per_file


AnyQueueView = QueueView | BatchQueueView


class QueueViews:
    """The queues of a directory; `find` makes it the table of queues for `reads.get_message`.

    Those of topics of batches come behind the others.
    """

    def __init__(
        self, directory: StoreDirectory, *, only: QueueKey | None = None, topic: str | None = None,
        trust: bool = False,
    ) -> None:  # fmt: skip
        """`trust` takes the files of ordinary queues as they are: the log is not read for them."""
        self._directory, self._trust = directory, trust
        wanted = WantedQueues(only, topic)
        self._batch_topics = directory.config.batch_topics
        #: Regions of the log without records, and its end.
        self.regions: list[Gap] = []
        self.log_end = directory.log.max_offset if trust else directory.log.min_offset
        self._computed: dict[QueueKey, tuple[Int64s, Units]] = {}
        self._batches: dict[QueueKey, Units] = {}
        self._on_disk = {
            key
            for kind in (PLAIN, OF_BATCHES)
            for key in directory.queues_of(kind)
            if key in wanted
        }
        self._log_regions: Sequence[Gap] = ()
        self._batch_end = ScannedEnd(directory, self.log_end)
        name = topic if only is None else only[0]
        if not trust or (self._batch_topics if name is None else name in self._batch_topics):
            units = LogUnits(directory, wanted).scan()
            found = units.of_batches()
            self._log_regions = found.regions
            self._batches = {key: of_queue for key, (_, of_queue) in found.units.items()}
            self._batch_end = ScannedEnd(directory, found.log_end)
            if not trust:
                self._take(units.plain())
        self._end = ScannedEnd(directory, self.log_end)

    def keys(self) -> list[QueueKey]:
        """Return the queues on disk and in the log, sorted; those of batches last."""
        keys = {*self._on_disk, *self._computed, *self._batches}
        return sorted(keys, key=lambda key: (key[0] in self._batch_topics, key))

    def find(self, topic: str, queue_id: int) -> AnyQueueView | None:
        """Return a queue's view, None if it is neither on disk nor in the log."""
        key = (topic, queue_id)
        known = key in self._on_disk or key in self._computed or key in self._batches
        return self.view(key) if known else None

    def ordinary(self) -> Iterator[QueueView]:
        """Go over the ordinary queues."""
        return (view for view in self._views(PLAIN) if isinstance(view, QueueView))

    def of_batches(self) -> Iterator[BatchQueueView]:
        """Go over the queues of inner batches."""
        return (view for view in self._views(OF_BATCHES) if isinstance(view, BatchQueueView))

    def _views(self, kind: UnitKind) -> Iterator[AnyQueueView]:
        of_batches = kind is OF_BATCHES
        return (self.view(k) for k in self.keys() if (k[0] in self._batch_topics) == of_batches)

    def computed(self, key: QueueKey) -> tuple[Int64s, Units]:
        """Return a queue by the log: queue offsets, ascending, and their units."""
        none = np.empty(0, np.int64)
        return self._computed.get(key, (none, np.empty(0, CQ_UNIT.dtype)))

    def __iter__(self) -> Iterator[AnyQueueView]:
        return (self.view(key) for key in self.keys())

    def view(self, key: QueueKey) -> AnyQueueView:
        """Compare a queue's files with the log."""
        of_batches = key[0] in self._batch_topics
        if self._trust and not of_batches:
            files = QueueUnits(self._directory, key)
            return self._trusted(key, files.first, files.whole())
        if of_batches:
            comparison = BatchComparison(self._directory, keeps_units=True)
            self._prepare(comparison, self._batch_end)
            if key in self._batches:
                comparison.take(key, self._batches[key])
            return comparison.compared(key)
        ordinary = QueueComparison(self._directory)
        self._prepare(ordinary, self._end)
        if key in self._computed:
            ordinary.take(key, *self._computed[key])
        return self._view_of(key, ordinary.compared(key))

    def _prepare(self, comparison: QueueComparison | BatchComparison, end: ScannedEnd) -> None:
        comparison.end = end
        for region in self._log_regions:
            comparison.take_region(region)

    def _take(self, scanned: ScannedUnits) -> None:
        """Take what the log has, a unit a queue offset."""
        self.regions, self.log_end = list(scanned.regions), scanned.log_end
        for key, (offsets, units) in scanned.units.items():
            # One record a queue offset: the first stays, as in the store.
            offsets, places = np.unique(offsets, return_index=True)
            # What is far ahead of the rest is damage; the store refuses it, too.
            ahead = np.flatnonzero(np.diff(offsets) > GAP_UNITS_MAX)
            kept = int(ahead[0]) + 1 if len(ahead) else len(offsets)
            self._computed[key] = offsets[:kept], units[places[:kept]]

    def _trusted(self, key: QueueKey, first: int, units: Units) -> QueueView:
        """Take the files as they are, up to the first that is no unit of a record in the log."""
        good = is_unit(units) & (units["physical_offset"] < self.log_end)
        count = len(units) if good.all() else int(good.argmin())
        units = units[:count]
        kept = ~is_fill(units) & (units["physical_offset"] >= self._directory.log.min_offset)
        skipped = int(kept.argmax()) if kept.any() else count
        states = np.where(is_fill(units), "fill", "unchecked")[skipped:]
        low = first + skipped
        return self._made(key, low, first + count, units[skipped:], states)

    def _view_of(self, key: QueueKey, found: ComparedQueue) -> QueueView:
        """Put the log's units over those of the files."""
        states, units = states_of(found.runs), found.stored()
        units[states == "fill"] = _FILL
        offsets, computed = self.computed(key)
        places, computed = offsets - found.low, computed.copy()
        there = units[places]
        # The unit of a scheduled message holds the time of its delivery, and one of a queue with an
        # extension an address: these are not in the log, and taken as they are.
        kept = is_address(there["tags_code"]) | (key[0] == SCHEDULE_TOPIC)
        kept &= there["physical_offset"] == computed["physical_offset"]
        kept &= states[places] != "missing"
        computed["tags_code"][kept] = there["tags_code"][kept]
        units[places] = computed
        return self._made(key, found.low, found.high, units, states)

    def _made(self, key: QueueKey, low: int, high: int, units: Units, states: Any) -> QueueView:
        path = self._directory.queue_path(*key, CONSUME_QUEUE_EXT_DIRECTORY)
        size = self._directory.config.mapped_file_size_consume_queue_ext
        ext = None
        if self._directory.vfs.exists(path):
            ext = ConsumeQueueExt(self._directory.vfs, path, size, writable=False)
        return QueueView(
            *key,
            low,
            high,
            units,
            states,
            PLAIN.file_size(self._directory.config) // CQ_UNIT.size,
            ext,
        )
