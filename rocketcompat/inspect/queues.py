"""The queues that a correct recovery would show, computed from the log, beside those on disk.

Each unit of a queue gets a state (`UNIT_STATES`), from a comparison of three things: the log's
records (topic, queue, queue offset), the queue's files, and what the log has no records for any
more.

One scan of the log gives the units of all queues asked for, 28 bytes each in memory; the
queues' files are read one queue at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocketcompat.formats import (
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    CQ_PRE_FILL_SIZE,
    CQ_UNIT,
    INT32_MAX,
    parse_offset_name,
)
from rocketcompat.inspect.directory import Region, StoreDirectory
from rocketcompat.inspect.log_units import LogUnits, QueueKey, ScannedUnits, WantedQueues
from rocketcompat.inspect.scan import ScannedEnd
from rocketcompat.queues.extension import ConsumeQueueExt, is_address
from rocketcompat.queues.units import GAP_UNITS_MAX, Units, is_fill, is_unit
from rocketcompat.record.properties import SCHEDULE_TOPIC
from tubestore.core.kernels import Int64s
from tubestore.core.vfs import VfsFile

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
    def kind(self) -> str:
        """The directory of queues of this kind."""
        return CONSUME_QUEUE_DIRECTORY

    @property
    def unit_size(self) -> int:
        """Bytes of a unit."""
        return CQ_UNIT.size

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


class QueueViews:
    """The queues of a directory; `find` makes it the table of queues for `reads.get_message`."""

    def __init__(
        self, directory: StoreDirectory, *, only: QueueKey | None = None, topic: str | None = None,
        trust: bool = False, scanned: ScannedUnits | None = None,
    ) -> None:  # fmt: skip
        """With `trust` the files count as they are; with `scanned` the log is not read here."""
        self._directory, self._wanted = directory, WantedQueues(only, topic)
        self._trust = trust
        self._units_per_file = directory.config.consume_queue_file_size // CQ_UNIT.size
        self.regions: list[Region] = []
        self.log_end = directory.log.max_offset if trust else directory.log.min_offset
        self._computed: dict[QueueKey, tuple[Int64s, Units]] = {}
        self._batch_topics = directory.config.batch_topics  # see `batch_queues.py`
        self._on_disk = {key for key in directory.queue_names() if key[0] not in self._batch_topics}
        if scanned is not None:
            self._take(scanned)
        elif not trust:
            self._take(LogUnits(directory, self._wanted).scan().plain())
        self._end = ScannedEnd(directory, self.log_end)

    def keys(self) -> list[QueueKey]:
        """Return the queues on disk and in the log, sorted."""
        return sorted({*filter(self._wanted.__contains__, self._on_disk), *self._computed})

    def find(self, topic: str, queue_id: int) -> QueueView | None:
        """Return a queue's view, None if it is neither on disk nor in the log."""
        key = (topic, queue_id)
        if key not in self._computed and key not in self._on_disk:
            return None
        return self.view(key)

    def computed(self, key: QueueKey) -> tuple[Int64s, Units]:
        """Return a queue by the log: queue offsets, ascending, and their units."""
        none = np.empty(0, np.int64)
        return self._computed.get(key, (none, np.empty(0, CQ_UNIT.dtype)))

    def __iter__(self) -> Iterator[QueueView]:
        return (self.view(key) for key in self.keys())

    def view(self, key: QueueKey) -> QueueView:
        """Compare a queue's files with the log."""
        first, units = read_queue_files(self._directory, key)
        if self._trust:
            return self._trusted(key, first, units)
        units = units[: leading(~self._end.is_later(units["physical_offset"]))]
        if key in self._computed:
            return self._compared(key, first, units, *self._computed[key])
        return self._compared(key, first, units, np.empty(0, np.int64), units[:0])

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

    def _compared(
        self, key: QueueKey, first: int, units: Units, offsets: Int64s, computed: Units
    ) -> QueueView:
        """Put the log's units over those of the files, and give each unit its state."""
        log_min = self._directory.log.min_offset
        stored = is_unit(units)
        expired = stored & (units["physical_offset"] < log_min)
        # Expired units come first; what is like them further on is stale.
        before = 0 if expired.all() and len(expired) == 0 else leading(expired | is_fill(units))
        expired_end = first + before
        damaged = self._points_into_damage(units)
        known_damage = first + np.flatnonzero(damaged)
        if len(offsets):
            low, high = int(offsets[0]), int(offsets[-1]) + 1
            if len(known_damage):
                low = min(low, int(known_damage[0]))
        elif len(known_damage):
            low, high = int(known_damage[0]), int(known_damage[0])
        else:
            low = high = expired_end if stored.any() and expired[:before].any() else 0
        kept = np.flatnonzero(stored & ~expired & ~is_fill(units))
        if len(offsets) and len(kept):  # the first record's number may be what is wrong
            low = min(low, first + int(kept[0]))
        if len(known_damage):  # a damaged last record keeps its place
            joined = known_damage[known_damage >= high]
            high += leading(joined == high + np.arange(len(joined)))
        end = max(high, first + _trailing_end(stored & ~is_fill(units)))
        shown = np.zeros(max(end - low, 0), CQ_UNIT.dtype)
        shown["size"] = CQ_PRE_FILL_SIZE
        states = np.full(len(shown), "fill", dtype="U9")
        self._lay_stored(shown, states, low, first, units, high)
        self._lay_computed(shown, states, low, offsets, computed, key[0] == SCHEDULE_TOPIC)
        return self._made(key, low, high, shown, states)

    def _made(self, key: QueueKey, low: int, high: int, units: Units, states: Any) -> QueueView:
        path = self._directory.queue_path(*key, CONSUME_QUEUE_EXT_DIRECTORY)
        size = self._directory.config.mapped_file_size_consume_queue_ext
        ext = None
        if self._directory.vfs.exists(path):
            ext = ConsumeQueueExt(self._directory.vfs, path, size, writable=False)
        return QueueView(*key, low, high, units, states, self._units_per_file, ext)

    def _lay_stored(
        self, shown: Units, states: Any, low: int, first: int, units: Units, high: int
    ) -> None:
        """Lay what the files hold from `low` on."""
        start = max(low, first)
        there = units[start - first : low + len(shown) - first]
        at = slice(start - low, start - low + len(there))
        real = is_unit(there) & ~is_fill(there)
        view, names = shown[at], states[at]
        view[real] = there[real]
        names[real] = "surplus"
        inside = start + np.arange(len(there)) < high
        names[real & self._points_into_damage(there) & inside] = "damaged"

    def _lay_computed(
        self, shown: Units, states: Any, low: int, offsets: Int64s, computed: Units, keep_tags: bool
    ) -> None:
        """Put the log's units over it."""
        places = offsets - low
        there = shown[places]
        # The unit of a scheduled message holds the time of its delivery, and one of a queue with an
        # extension an address (spec §1.9, §2.8): these are not in the log, and taken as they are.
        kept = (there["tags_code"] < -(INT32_MAX + 1)) | keep_tags
        kept &= there["physical_offset"] == computed["physical_offset"]
        if kept.any():
            computed = computed.copy()
            computed["tags_code"][kept] = there["tags_code"][kept]
        absent = states[places] == "fill"
        states[places] = np.where(absent, "missing", np.where(there == computed, "ok", "wrong"))
        shown[places] = computed

    def _points_into_damage(self, units: Units) -> np.ndarray[Any, np.dtype[np.bool_]]:
        inside = np.zeros(len(units), bool)
        offsets = units["physical_offset"].astype(np.int64)
        for region in self.regions:
            inside |= (offsets >= region.start) & (offsets < region.end)
        found: np.ndarray[Any, np.dtype[np.bool_]] = inside & is_unit(units) & ~is_fill(units)
        return found


#: A multiple of the file system's blocks.
_BLOCK_SIZE = 64 << 10


def read_queue_files(directory: StoreDirectory, key: QueueKey) -> tuple[int, Units]:
    """Return the first queue offset of a queue's files, and all units from there on.

    Missing files are zeros; the zeros at the end are left out. A hole larger than the files
    together would be no queue: what is behind it is left out.
    """
    path, size = directory.queue_path(*key), directory.config.consume_queue_file_size
    rows = [(parse_offset_name(n), n) for n, is_dir, _ in directory.vfs.entries(path) if not is_dir]
    files = sorted((start, name) for start, name in rows if start is not None)
    if not files:
        return 0, np.empty(0, CQ_UNIT.dtype)
    first = files[0][0]
    parts: list[bytes] = []
    length = 0
    for start, name in files:
        hole = start - first - length
        if hole > size * len(files):
            break
        file = directory.vfs.open(os.path.join(path, name), writable=False)
        raw = _written(file, size)
        file.close()
        parts += [bytes(max(hole, 0)), raw]
        length += max(hole, 0) + len(raw)
    units = b"".join(parts)
    units = units[: len(units) - len(units) % CQ_UNIT.size]
    return first // CQ_UNIT.size, np.frombuffer(units, CQ_UNIT.dtype)


def _written(file: VfsFile, size: int) -> bytes:
    """Read a file up to the unit with its last byte that is not zero; holes are not read.

    Block by block: a queue's file has its full size from the start, and most are nearly empty.
    """
    parts: list[bytes] = []
    length = 0
    position = file.next_data(0)
    while position is not None and position < size:
        start = position - position % _BLOCK_SIZE
        block = file.pread(min(_BLOCK_SIZE, size - start), start)
        if np.frombuffer(block, np.uint8).any():
            parts += [bytes(start - length), block]
            length = start + len(block)
        position = file.next_data(start + _BLOCK_SIZE)
    if not parts:
        return b""
    used = length - len(parts[-1]) + len(parts[-1].rstrip(b"\0"))
    return b"".join(parts)[: -(-used // CQ_UNIT.size) * CQ_UNIT.size]


def leading(mask: Any) -> int:
    """Return how many elements from the first are true."""
    return len(mask) if mask.all() else int(mask.argmin())


def _trailing_end(mask: Any) -> int:
    """Return the place behind the last true element."""
    places = np.flatnonzero(mask)
    return int(places[-1]) + 1 if len(places) else 0
