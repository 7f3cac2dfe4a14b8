"""The log from end to end, and the index against its keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rocketcompat.check.findings import PER_FILE_MAX, Finding, finding
from rocketcompat.commitlog.walk import ENDS, Gap
from rocketcompat.formats import ABORT_FILE, INDEX_DIRECTORY, INDEX_ITEM
from rocketcompat.index.index_file import IndexFile
from rocketcompat.index.items import IndexGeometry, link_chains
from rocketcompat.inspect.decode import decode_record
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.index_geometry import geometry_of
from rocketcompat.inspect.log_units import ScannedEnd
from rocketcompat.messages import has_index_items
from rocketcompat.record.columns import RecordColumns
from tubestore.core.kernels import Int64s
from tubestore.errors import CorruptRecord, InvalidMessage

#: Keys of the log that wait for their comparison: 12 bytes each.
HELD_KEYS_MAX = 1 << 18
#: Items of a file that are compared together, and of which the chains are followed together.
PIECE_ITEMS = 1 << 16
CHAINED_ITEMS = 1 << 17
#: So many messages of a damaged part are named.
_NAMED_MAX = 5
_STRAY = ("item_surplus", "item {}: no record has this key", "warning")
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


@dataclass(slots=True)
class Keys:
    """Keys of the log, for the index."""

    #: One entry a key, by physical offset and in the order of the keys.
    hashes: Any
    offsets: Int64s
    #: Physical offset of the log's first record with a key; None without any.
    begin: int | None
    end: ScannedEnd


class LogKeys:
    """One pass over the log: what is wrong in it, and its keys compared with the index.

    Of the keys a limited number is held. Beyond that the older half is compared with the items
    of its part of the log, and forgotten; the younger half waits, since a writer may not have
    indexed it yet.
    """

    def __init__(self, directory: StoreDirectory, held_max: int = HELD_KEYS_MAX) -> None:
        self._directory = directory
        self.last_timestamp = 0
        self.index = IndexComparison(directory, held_max)
        #: Where the scan ended.
        self.end = ScannedEnd(directory, directory.log.min_offset)

    def scan(self, pieces: Iterable[RecordColumns | Gap]) -> Iterator[Finding]:
        """Take the pieces of a scan of the whole log; yield what is wrong in it as it comes."""
        end = self.end.offset
        for piece in pieces:
            if isinstance(piece, Gap):
                yield region_finding(self._directory, piece)
                if piece.state not in ENDS:
                    end = piece.end
                continue
            youngest = int(piece.column("store_timestamp").max())
            self.last_timestamp = max(self.last_timestamp, youngest)
            rows, found = self._keys(piece)
            self.index.take(found, piece.starts[rows] + piece.base)
            end = piece.records_end
        self.end = ScannedEnd(self._directory, end)

    @staticmethod
    def _keys(piece: RecordColumns) -> tuple[Int64s, Any]:
        rows, hashes = piece.index_keys()
        wanted = has_index_items(piece.column("sys_flag"))[rows]
        return rows[wanted], hashes[wanted]


class IndexComparison:
    """Compares keys of the log, taken in the log's order, with the items of the index."""

    def __init__(self, directory: StoreDirectory, held_max: int = HELD_KEYS_MAX) -> None:
        self._directory, self._held_max = directory, held_max
        self._hashes: list[Any] = [np.empty(0, np.int32)]
        self._offsets: list[Int64s] = [np.empty(0, np.int64)]
        self._held = 0
        #: Keys taken so far, and the physical offset of the first record with one.
        self.count = 0
        self.begin: int | None = None
        self._missing = 0
        self._first_missing: int | None = None
        self._strays: dict[str, _Listed] = {}
        #: The physical offset up to which items were compared.
        self._low = _LEAST
        #: Least and greatest physical offset of the items in the full pieces of the files.
        self._bounds: dict[tuple[str, int], tuple[int, int]] = {}
        self._geometry: IndexGeometry | None = None

    def take(self, hashes: Any, offsets: Int64s) -> None:
        """Take the next keys, an entry each: hash, and physical offset of the record."""
        if not len(hashes):
            return
        if self.begin is None:
            self.begin = int(offsets[0])
        self.count += len(hashes)
        self._held += len(hashes)
        self._hashes.append(hashes)
        self._offsets.append(offsets)
        if self._held > self._held_max:
            self._compare_older()

    def finish(self, end: ScannedEnd, geometry: IndexGeometry) -> None:
        """Compare the keys that are left, and the items of records that the log does not have."""
        self._geometry = geometry
        hashes, offsets = np.concatenate(self._hashes), np.concatenate(self._offsets)
        self._compare(Keys(hashes, offsets, self.begin, end), self._low, _GREATEST)
        self._hashes, self._offsets, self._held = [], [], 0

    def strays(self, file: IndexFile) -> Iterator[Finding]:
        """Yield the items of a file that no record has."""
        if file.path in self._strays:
            yield from self._strays[file.path].findings(file, *_STRAY)

    def missing(self, path: str) -> Iterator[Finding]:
        """Yield one finding for the keys without an item: the first of them, and their number."""
        if self._missing:
            first = self._first_missing
            message = f"{self._missing} keys have no item, the first is of the record at {first}"
            yield finding(path, INDEX_ITEM.size, "item_missing", message, "warning")

    def _compare_older(self) -> None:
        hashes, offsets = np.concatenate(self._hashes), np.concatenate(self._offsets)
        self._hashes, self._offsets = [hashes], [offsets]
        end = int(offsets[len(offsets) // 2])  # the keys of one record stay together
        count = int(np.searchsorted(offsets, end))
        if self._geometry is None:
            self._geometry, _ = known_geometry(self._directory)
        self._compare(
            Keys(hashes[:count], offsets[:count], self.begin, ScannedEnd(self._directory, end)),
            self._low, end,
        )  # fmt: skip
        self._hashes, self._offsets = [hashes[count:].copy()], [offsets[count:].copy()]
        self._held, self._low = len(hashes) - count, end

    def _compare(self, keys: Keys, low: int, high: int) -> None:
        """Compare keys with all items of records in [low, high)."""
        seen = np.zeros(len(keys.hashes), bool)
        for path in self._directory.index_paths() if self._geometry is not None else ():
            assert self._geometry is not None
            try:
                file = IndexFile.load(self._directory.vfs, path, self._geometry, writable=False)
            except (CorruptRecord, FileNotFoundError):
                continue  # the first is reported; the second went away meanwhile
            for number, items in self._pieces(file, low, high):
                stray = number + _strays(items, keys, seen, low, high)
                if len(stray):
                    self._strays.setdefault(path, _Listed()).add(stray)
            file.release()
        lost = np.flatnonzero(~seen)
        if len(lost):
            self._missing += len(lost)
            if self._first_missing is None:
                self._first_missing = int(keys.offsets[lost[0]])

    def _pieces(self, file: IndexFile, low: int, high: int) -> Iterator[tuple[int, Any]]:
        """Yield the pieces of a file that have items of records in [low, high)."""
        for number in range(1, file.index_count, PIECE_ITEMS):
            least, greatest = self._bounds.get((file.path, number), (_LEAST, _GREATEST))
            if greatest < low or least >= high:
                continue
            items = file.read_items(number, PIECE_ITEMS)
            if len(items) == PIECE_ITEMS:
                offsets = items["physical_offset"]
                self._bounds[file.path, number] = int(offsets.min()), int(offsets.max())
            yield number, items


def region_finding(directory: StoreDirectory, region: Gap) -> Finding:
    """Return a finding for a part of the log without records."""
    size = region.end - region.start
    where = f"physical offset {region.start}, {size} bytes: {region.reason}"
    if region.state == "damaged":
        where += _messages_of(directory, region)
    if region.state == "missing":
        return finding(region.path, region.start, "file_missing", where, "error")
    crashed = directory.vfs.exists(directory.path(ABORT_FILE))
    mended = region.state == "stale" or (region.state == "torn" and crashed)
    severity = "warning" if mended else "error"
    return finding(region.path, region.position, region.state, where, severity)


def _messages_of(directory: StoreDirectory, region: Gap) -> str:
    """Return which messages a damaged part had, by their own heads; empty if none is legible.

    A record of another place is none of them: what this part had is not known by it.
    """
    raw = directory.log.read(region.start, min(region.size, directory.config.record_size_max))
    names: list[str] = []
    at = 0
    while at < len(raw) and len(names) < _NAMED_MAX:
        own = decode_record(raw[at:], physical_offset=region.start + at)
        size = own["total_size"]
        if own["properties"] is None or not 0 < size <= len(raw) - at:
            break
        if own["physical_offset"] != region.start + at:
            break
        place = f"{own['topic']}/{own['queue_id']}@{own['queue_offset']}"
        names.append(f"{place} (stored at {own['store_timestamp']} ms)")
        at += size
    more = ", and more" if at < len(raw) else ""
    return f"; by their heads {', '.join(names)}{more}" if names else ""


def check_index(directory: StoreDirectory, log: LogKeys) -> Iterator[Finding]:
    """Compare headers, chains and items of the index with each other and with the log's keys."""
    paths = directory.index_paths()
    if not paths:
        yield from no_index(directory, log.index.count, log.index.begin)
        return
    geometry, unknown = known_geometry(directory)
    yield from unknown
    if geometry is None:
        return
    log.index.finish(log.end, geometry)
    for path in paths:
        try:
            file = IndexFile.load(directory.vfs, path, geometry, writable=False)
        except CorruptRecord as error:
            yield finding(path, error.position, "size", error.reason, "error")
            continue
        yield from _check_chains(file)
        yield from log.index.strays(file)
        file.release()
    yield from log.index.missing(paths[-1])


def no_index(directory: StoreDirectory, keys: int, first: int | None) -> Iterator[Finding]:
    """Yield a finding if so many keys have no index files, the first key at `first`."""
    if first is not None and directory.config.message_index_enable:
        message = f"no index: {keys} keys, the first of the record at {first}"
        path = directory.path(INDEX_DIRECTORY)
        yield finding(path, 0, "item_missing", message, "warning")


def known_geometry(directory: StoreDirectory) -> tuple[IndexGeometry | None, list[Finding]]:
    """Return the form of the index files, None without any; a finding if it is not known."""
    paths = directory.index_paths()
    try:
        return (geometry_of(directory) if paths else None), []
    except InvalidMessage as error:
        return None, [finding(paths[0], 0, "index_geometry", str(error), "warning")]


def check_index_file(file: IndexFile, log: Keys, seen: Any) -> Iterator[Finding]:
    """Check one file, with the keys of its part of the log at least.

    Marks the keys of the log that its items have.
    """
    yield from _check_chains(file)
    listed = _Listed()
    for number in range(1, file.index_count, PIECE_ITEMS):
        items = file.read_items(number, PIECE_ITEMS)
        listed.add(number + _strays(items, log, seen, _LEAST, _GREATEST))
    yield from listed.findings(file, *_STRAY)


def _check_chains(file: IndexFile) -> Iterator[Finding]:
    """Compare the header with the first and the last item, and each item's predecessor."""
    if file.index_count <= 1:
        return
    header, last = file.header, file.read_items(file.index_count - 1, 1)
    first = int(file.read_items(1, 1)["physical_offset"][0])
    real = first, int(last["physical_offset"][0])
    if real != (header.begin_physical_offset, header.end_physical_offset):
        ends = (header.begin_physical_offset, header.end_physical_offset)
        message = f"begins and ends at {ends}, its items at {real[0]} and {real[1]}"
        yield finding(file.path, 0, "index_header", message, "error")
    table, broken = np.zeros(file.geometry.slots, np.int32), _Listed()
    for number in range(1, file.index_count, CHAINED_ITEMS):
        items = file.read_items(number, CHAINED_ITEMS)
        slots = items["key_hash"].astype(np.int64) % file.geometry.slots
        chains = link_chains(table, slots, number)
        table[chains.slots] = chains.newest
        broken.add(number + np.flatnonzero(chains.previous != items["previous"]))
    what = "item {} has a wrong predecessor"
    yield from broken.findings(file, "index_chain", what, "error")


def _strays(items: Any, log: Keys, seen: Any, low: int, high: int) -> Int64s:
    """Return the places of items in [low, high) without a record, expired ones aside.

    Marks the keys that were found.
    """
    offsets = items["physical_offset"].astype(np.int64)
    inside = (offsets >= low) & (offsets < high)
    if log.begin is None:
        return np.flatnonzero(inside & (offsets >= log.end.offset) & ~log.end.is_later(offsets))
    rows = np.flatnonzero(inside)
    if not len(rows):
        return rows
    hashes, offsets = items["key_hash"].astype(np.int64)[rows], offsets[rows]
    first = int(np.searchsorted(log.offsets, offsets.min()))
    end = int(np.searchsorted(log.offsets, offsets.max(), "right"))
    known, places = log.hashes[first:end], log.offsets[first:end]
    if np.array_equal(places, offsets) and np.array_equal(known, hashes):
        seen[first:end] = True
        return rows[:0]
    # Both sides as one number a pair: a record's keys are few, and its offset is far below 2^32
    # times the record size least; equal pairs of one side are equal keys of one message.
    known_pairs, file_pairs = _pairs(known.astype(np.int64), places), _pairs(hashes, offsets)
    seen[first:end] |= among(known_pairs, np.sort(file_pairs))
    unknown = ~among(file_pairs, np.sort(known_pairs)) & (offsets >= log.begin)
    kept: Int64s = rows[unknown & ~log.end.is_later(offsets)]
    return kept


def among(values: Any, ascending: Any) -> Any:
    """Return a mask of the values that are in an ascending column; numpy's own is slower."""
    if not len(ascending):
        return np.zeros(len(values), bool)
    places = np.searchsorted(ascending, values)
    return ascending[np.minimum(places, len(ascending) - 1)] == values


def _pairs(hashes: Int64s, offsets: Int64s) -> Any:
    pairs = np.empty(len(hashes), [("offset", np.int64), ("hash", np.int64)])
    pairs["offset"], pairs["hash"] = offsets, hashes
    # A mixture with an odd factor: equal only for equal pairs, but for one chance in 2^64.
    return pairs["offset"].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ (
        pairs["hash"].astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    )


@dataclass(slots=True)
class _Listed:
    """Numbers of items of one file: the first few, and how many there are."""

    numbers: list[int] = field(default_factory=list)
    count: int = 0

    def add(self, numbers: Int64s) -> None:
        """Take numbers in, each once."""
        self.count += len(numbers)
        lowest = np.sort(numbers)[:PER_FILE_MAX].tolist()
        self.numbers = sorted([*self.numbers, *lowest])[:PER_FILE_MAX]

    def findings(self, file: IndexFile, reason: str, text: str, severity: str) -> Iterator[Finding]:
        """Yield a finding for each number, the first of them one by one."""
        for number in self.numbers:
            position = file.geometry.item_position(number)
            yield finding(file.path, position, reason, text.format(number), severity)
        if self.count > PER_FILE_MAX:
            more = f"{self.count - PER_FILE_MAX} more of these"
            yield finding(file.path, 0, reason, more, severity)
