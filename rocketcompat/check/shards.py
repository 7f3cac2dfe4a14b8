"""Shards compared with the log, in bounded memory.

A shard's message has the physical offset of its record for an id, so both sides are sets of ids.
They are not held: of each range of ids (a cell) both sides have a number of ids and the sum of
their mixtures, which are the same for equal sets, but for one chance in 2^64. Only the ids of
cells that differ are read again and compared one by one, a limited number at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow.compute as pc

import tubestore
from rocketcompat.check.findings import Finding, finding
from rocketcompat.check.index import among
from rocketcompat.commitlog.walk import ENDS, Gap
from rocketcompat.formats import TUBE_DIRECTORY
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import ScannedEnd
from rocketcompat.inspect.queue_units import Ranges
from rocketcompat.record.columns import RecordColumns
from rocketcompat.shards.record import fits
from tubestore.core.kernels import Int64s
from tubestore.core.vfs import Vfs
from tubestore.errors import TubeStoreError
from tubestore.messages import STATE_OK
from tubestore.offline.check import check as check_shards
from tubestore.reading.view import ShardView
from tubestore.record.columns import Columns, columns_for
from tubestore.record.decode import decode
from tubestore.record.locate import Data
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.listing import list_shard
from tubestore.segments.shard_bytes import ShardBytes
from tubestore.store.topic import shards_of

#: Cells of all topics together; beyond that each two become one. 300 bytes each.
CELLS_MAX = 1 << 15
#: Ids that are held and compared together, of both sides; 8 bytes each, and 16 of a shard.
HELD_IDS_MAX = 1 << 19
#: Low bits of an id that do not count for its cell's number, at first and at most.
CELL_BITS = 20
_BITS_MAX = 62
#: So many bits fewer have the parts of a cell that has too many ids to hold.
_PART_BITS = 8
#: So many ids wait at least before they are counted.
_COUNTED_IDS = 1 << 14
_NEVER = (1 << 63) - 1
_WORD = (1 << 64) - 1
_ID = columns_for(("msg_id",))
_SOUND_ID = columns_for(("msg_id", "state"), verify=True)


@dataclass(slots=True)
class Cell:
    """A range of ids, on both sides."""

    wanted: int = 0
    there: int = 0
    #: The sum of the mixtures of the wanted ids less that of the ids that are there.
    difference: int = 0
    #: The least wanted id.
    first: int = _NEVER

    @property
    def differs(self) -> bool:
        """True if the two sides are different."""
        return self.wanted != self.there or self.difference != 0

    def add(self, other: Cell) -> None:
        """Add the ids of another cell."""
        self.wanted, self.there = self.wanted + other.wanted, self.there + other.there
        self.difference = (self.difference + other.difference) & _WORD
        self.first = min(self.first, other.first)


class Cells:
    """The cells of one topic, by their number: the upper bits of their ids."""

    def __init__(self, bits: int) -> None:
        #: How many low bits of an id do not count.
        self.bits = bits
        self.by_number: dict[int, Cell] = {}

    def want(self, ids: Int64s) -> None:
        """Add ids that the shards should have."""
        self._add(ids, wanted=True)

    def find(self, ids: Int64s) -> None:
        """Add ids that the shards have."""
        self._add(ids, wanted=False)

    def widen(self) -> None:
        """Join each two neighbours to one cell."""
        self.bits += 1
        cells, self.by_number = self.by_number, {}
        for number, cell in cells.items():
            known = self.by_number.setdefault(number // 2, cell)
            if known is not cell:
                known.add(cell)

    def _add(self, ids: Int64s, *, wanted: bool) -> None:
        if not len(ids):
            return
        numbers = ids >> self.bits
        if not (numbers[1:] >= numbers[:-1]).all():
            order = np.argsort(numbers, kind="stable")
            ids, numbers = ids[order], numbers[order]
        firsts = np.concatenate(([0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1))
        sums = np.add.reduceat(_mixed(ids), firsts).tolist()
        counts = np.diff(np.append(firsts, len(ids))).tolist()
        least = np.minimum.reduceat(ids, firsts).tolist()
        for number, count, total, first in zip(
            numbers[firsts].tolist(), counts, sums, least, strict=True
        ):
            cell = self.by_number.setdefault(number, Cell())
            cell.add(Cell(count, 0, total, first) if wanted else Cell(0, count, -total))


def _mixed(ids: Int64s) -> Any:
    """Mix the bits of each id (SplitMix64), so that different sets have different sums."""
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(slots=True)
class _Compared:
    """What differs between a topic's records in the log and its shards."""

    surplus: int = 0
    twice: int = 0
    missing: int = 0
    first_missing: int = _NEVER
    #: The greatest id that is there; -1 without any.
    last_there: int = -1
    #: Sound records of the shards at places that are damaged in the log, and the first such place.
    sound: int = 0
    first_sound: int = _NEVER


class _CountedIds:
    """Ids, ascending, and how often each was added."""

    def __init__(self) -> None:
        self._ids, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._added: list[Int64s] = []
        self._pending = 0

    def add(self, ids: Int64s) -> None:
        """Add ids; those that wait are never more than those that were counted."""
        self._added.append(ids)
        self._pending += len(ids)
        if self._pending > max(len(self._ids), _COUNTED_IDS):
            self.joined()

    def joined(self) -> tuple[Int64s, Int64s]:
        """Return the ids and their numbers."""
        ids = np.concatenate([self._ids, *self._added])
        counts = np.concatenate([self._counts, np.ones(self._pending, np.int64)])
        self._ids, places = np.unique(ids, return_inverse=True)
        self._counts = np.bincount(places, counts, len(self._ids)).astype(np.int64)
        self._added, self._pending = [], 0
        return self._ids, self._counts


class ShardComparison:
    """Takes a scan of the log, and then compares the shards with it.

    Nothing is kept for a store without shards.
    """

    def __init__(
        self, directory: StoreDirectory, *, held_max: int = HELD_IDS_MAX,
        cells_max: int = CELLS_MAX, bits: int = CELL_BITS,
    ) -> None:  # fmt: skip
        self._directory, self._path = directory, directory.path(TUBE_DIRECTORY)
        self._are_there = directory.vfs.exists(self._path)
        self._held_max, self._cells_max, self._bits = held_max, cells_max, bits
        self._topics: dict[str, Cells] = {}
        #: The parts of the log that are damaged or missing.
        self._damaged = Ranges()

    def take(self, piece: RecordColumns | Gap) -> None:
        """Take the next piece of the scan."""
        if not self._are_there:
            return
        if isinstance(piece, Gap):
            if piece.state not in ENDS:
                self._damaged.add(piece.start, piece.end)
            return
        for name, ids in _wanted_ids(piece):
            self._cells_of(name).want(ids)
        self._widen()

    def findings(self, end: ScannedEnd) -> Iterator[Finding]:
        """Compare each topic's shards: exactly the log's messages, exactly once (D2)."""
        vfs = self._directory.vfs
        with tubestore.open(self._path, mode="r", vfs=vfs, on_damage="isolate") as store:
            for name in sorted({*store.topics(), *self._topics}):
                views = shards_of(store.topic(name)).views() if name in store.topics() else []
                topic = _TopicComparison(
                    self._directory, self._path, name, views, end, self._damaged
                )
                found = topic.compare(self._cells_of(name), self._widen, self._held_max)
                yield from _findings_of_shard(os.path.join(self._path, f"{name}-0"), found)
                del self._topics[name]

    def _cells_of(self, name: str) -> Cells:
        cells = self._topics.get(name)
        if cells is None:
            cells = self._topics[name] = Cells(self._bits)
        return cells

    def _widen(self) -> None:
        """Join cells until they are few enough; one or two a topic stay."""
        while (
            sum(len(cells.by_number) for cells in self._topics.values()) > self._cells_max
            and self._bits < _BITS_MAX
        ):  # fmt: skip
            self._bits += 1
            for cells in self._topics.values():
                cells.widen()


class _TopicComparison:
    """Compares one topic's shards with the log."""

    def __init__(
        self, directory: StoreDirectory, root: str, name: str, views: list[ShardView],
        end: ScannedEnd, damaged: Ranges,
    ) -> None:  # fmt: skip
        self._directory, self._root, self._name, self._views = directory, root, name, views
        #: Parts of the log with which no copy can be compared; whether shards have ids in them.
        self._damaged, self._has_damaged = damaged, False
        self._end, self._found = end, _Compared()
        # Shards may be kept for longer than the log.
        self._low = directory.log.min_offset

    def compare(self, cells: Cells, watch: Callable[[], None], held_max: int) -> _Compared:
        """Add the ids of the shards to the topic's cells, and compare those that differ."""
        for ids in self._ids():
            self._found.last_there = max(self._found.last_there, int(ids.max()))
            cells.find(ids)
            watch()
        self._refine(cells, held_max)
        if self._has_damaged:
            self._count_sound()
        return self._found

    def _count_sound(self) -> None:
        """Count the records that are sound here, by their checksums, and damaged in the log."""
        for view in self._views:
            for ids in _stored_ids(self._directory.vfs, self._root, view, _SOUND_ID):
                inside = ids[self._damaged.contain(ids)]
                if len(inside):
                    self._found.sound += len(inside)
                    self._found.first_sound = min(self._found.first_sound, int(inside.min()))

    def _refine(self, cells: Cells, held_max: int) -> None:
        """Compare the ids of the cells that differ, as many together as can be held."""
        batch: dict[int, Cell] = {}
        count = 0
        for number, cell in sorted(cells.by_number.items()):
            if not cell.differs:
                continue
            size = cell.wanted + cell.there
            if not cell.there and cell.first >= self._low:
                self._note_missing(cell.wanted, cell.first)
                continue
            if size > held_max and cells.bits:
                self._refine(self._split(cells, number), held_max)
                continue
            if batch and count + size > held_max:
                self._compare_ids(cells.bits, batch)
                batch, count = {}, 0
            batch[number] = cell
            count += size
        if batch:
            self._compare_ids(cells.bits, batch)

    def _split(self, cells: Cells, number: int) -> Cells:
        """Return a cell in parts, after a second reading of both sides."""
        bits = cells.bits
        parts = Cells(max(bits - _PART_BITS, 0))
        for ids in self._wanted(bits, {number: cells.by_number[number]}):
            parts.want(ids)
        for ids in self._ids():
            parts.find(ids[ids >> bits == number])
        return parts

    def _compare_ids(self, bits: int, batch: dict[int, Cell]) -> None:
        """Compare the ids of some cells one by one."""
        numbers, there = np.array(list(batch), np.int64), _CountedIds()
        for ids in self._ids():
            there.add(ids[among(ids >> bits, numbers)])
        ids, counts = there.joined()
        parts = [np.empty(0, np.int64), *self._wanted(bits, batch)]
        wanted = np.concatenate(parts)
        self._found.twice += int(counts.sum()) - len(counts)
        self._found.surplus += int(counts[~among(ids, wanted)].sum())
        missing = wanted[~among(wanted, ids)]
        if len(missing):
            self._note_missing(len(missing), int(missing[0]))

    def _note_missing(self, count: int, first: int) -> None:
        self._found.missing += count
        self._found.first_missing = min(self._found.first_missing, first)

    def _wanted(self, bits: int, batch: dict[int, Cell]) -> Iterator[Int64s]:
        """Yield the topic's ids in some cells, ascending, after a second reading of the log."""
        for first, last in _together(sorted(n for n, cell in batch.items() if cell.wanted)):
            start, end = batch[first].first, min((last + 1) << bits, self._end.offset)
            for piece in self._directory.scan_log(start, end, chained=True):
                for name, ids in () if isinstance(piece, Gap) else _wanted_ids(piece):
                    if name == self._name:
                        yield ids[ids < end]

    def _ids(self) -> Iterator[Int64s]:
        """Yield the ids of the topic's messages that the log should have."""
        for view in self._views:
            for ids in _stored_ids(self._directory.vfs, self._root, view):
                damaged = self._damaged.contain(ids)
                self._has_damaged |= bool(damaged.any())
                kept = ids[(ids >= self._low) & ~damaged & ~self._end.is_later(ids)]
                if len(kept):
                    yield kept


def check_tube(
    directory: StoreDirectory, shards: ShardComparison, end: ScannedEnd
) -> Iterator[Finding]:
    """Check the shards: each sound by itself, with the log's messages exactly once (D2)."""
    path = directory.path(TUBE_DIRECTORY)
    if not directory.vfs.exists(path):
        return
    with directory.watching("shards") as watch:
        for one in check_shards(path, vfs=directory.vfs, is_written=end.has_moved, watch=watch):
            yield finding(one.path, one.position, str(one.reason), one.message, one.severity)
    try:
        yield from shards.findings(end)
    except (TubeStoreError, OSError) as error:
        what = f"the shards cannot be compared with the log: {error}"
        yield finding(path, 0, "shards_closed", what, "error")


def _findings_of_shard(path: str, found: _Compared) -> Iterator[Finding]:
    """Yield what differs as findings."""
    if found.sound:
        what = (
            f"{found.sound} records are whole here, by their checksums, and damaged in the log:"
            f" the first is that of physical offset {found.first_sound}"
        )
        yield finding(path, 0, "shard_only", what, "warning")
    if found.twice or found.surplus:
        what = f"{found.surplus} records that the log does not have, {found.twice} twice"
        yield finding(path, 0, "shard_surplus", what, "error")
    if found.missing:
        what = f"{found.missing} records are missing, from offset {found.first_missing} on"
        severity = "warning" if found.first_missing > found.last_there else "error"
        yield finding(path, 0, "shard_missing", what, severity)


def _together(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of numbers without a gap."""
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[start], numbers[at - 1]
            start = at


def _wanted_ids(piece: RecordColumns) -> Iterator[tuple[str, Int64s]]:
    """Yield topics and the physical offsets, ascending, of their records that a shard takes."""
    rows = np.flatnonzero(fits(piece))
    codes = piece.topic_codes[rows]
    order = np.argsort(codes, kind="stable")
    rows, codes = rows[order], codes[order]
    bounds = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(rows)]
    for first, end in pairwise(bounds):
        if first < end:
            yield piece.topic_names[codes[first]], piece.starts[rows[first:end]] + piece.base


def _stored_ids(vfs: Vfs, root: str, view: ShardView, columns: Columns = _ID) -> Iterator[Int64s]:
    """Yield the ids of a shard's messages, some thousands at a time, and map no file.

    Those of rows without a readable record are left out; with the column `state` also those of
    records that are not sound.
    """
    shard = list_shard(vfs, root, view.topic, view.store_id)
    bytes_, end = ShardBytes(vfs, shard), view.ends.index_end
    try:
        for offset, entries in bytes_.entries(view.index_start):
            entries = entries[: max(end - offset, 0) // ENTRY_SIZE]
            for window in bytes_.windows(entries):
                if window.data is not None:
                    data = Data(window.data, window.data_start)
                    yield _ids_in(view, entries[window.first : window.end], data, columns)
    finally:
        bytes_.close()
    for placed in view.memory:
        data = Data(placed.batch.data.data, placed.data_start)
        yield _ids_in(view, placed.batch.entries, data, columns)


def _ids_in(view: ShardView, entries: Any, data: Data, columns: Columns) -> Int64s:
    offsets = np.zeros(len(entries), np.int64)  # is not asked for
    batch, _ = decode(view.topic, view.store_id, offsets, entries, data, columns)
    if columns is _SOUND_ID:
        batch = batch.filter(pc.equal(batch.column(1), STATE_OK))
    found: Int64s = batch.column(0).drop_null().to_numpy()
    return found
