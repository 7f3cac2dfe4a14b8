"""The log from end to end, and the index against its keys.

Next to read: `check.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocketcompat.columns import RecordColumns
from rocketcompat.directory import ENDS, Region, StoreDirectory
from rocketcompat.findings import PER_FILE_MAX, Finding, finding
from rocketcompat.formats import ABORT_FILE, INDEX_DIRECTORY, INDEX_ITEM
from rocketcompat.index_file import IndexFile
from rocketcompat.index_geometry import geometry_of
from rocketcompat.index_items import IndexGeometry, link_chains
from rocketcompat.messages import has_index_items
from rocketcompat.scanned_end import ScannedEnd
from tubestore.errors import CorruptRecord, InvalidMessage
from tubestore.kernels import Int64s


@dataclass(slots=True)
class Keys:
    """Keys of the log, for the index."""

    #: One entry a key, by physical offset and in the order of the keys.
    hashes: Any
    offsets: Int64s
    #: Physical offset of the log's first record with a key; None without any.
    begin: int | None
    end: ScannedEnd
    #: Store time of the youngest record, ms.
    last_timestamp: int = 0


class LogKeys(Keys):
    """One pass over the log: what is wrong in it, and its keys for the index."""

    def __init__(
        self, directory: StoreDirectory, pieces: Iterable[RecordColumns | Region] | None = None
    ) -> None:
        """`pieces` are a scan of the whole log that is under way; without, one is made."""
        self.findings: list[Finding] = []
        hashes: list[Any] = [np.empty(0, np.int32)]
        offsets: list[Int64s] = [np.empty(0, np.int64)]
        end, last_timestamp = directory.log.min_offset, 0
        for piece in directory.scan_log() if pieces is None else pieces:
            if isinstance(piece, Region):
                self.findings.append(region_finding(directory, piece))
                if piece.state not in ENDS:
                    end = piece.end
                continue
            youngest = int(piece.column("store_timestamp").max())
            last_timestamp = max(last_timestamp, youngest)
            rows, found = self._keys(piece)
            hashes.append(found)
            offsets.append(piece.starts[rows] + piece.base)
            end = piece.records_end
        known = np.concatenate(offsets)
        begin = int(known[0]) if len(known) else None
        scanned = ScannedEnd(directory, end)
        super().__init__(np.concatenate(hashes), known, begin, scanned, last_timestamp)

    @staticmethod
    def _keys(piece: RecordColumns) -> tuple[Int64s, Any]:
        rows, hashes = piece.index_keys()
        wanted = has_index_items(piece.column("sys_flag"))[rows]
        return rows[wanted], hashes[wanted]


def region_finding(directory: StoreDirectory, region: Region) -> Finding:
    """Say what it means that a part of the log holds no records."""
    size = region.end - region.start
    where = f"physical offset {region.start}, {size} bytes: {region.reason}"
    if region.state == "missing":
        return finding(region.path, region.start, "file_missing", where, "error")
    crashed = directory.vfs.exists(directory.path(ABORT_FILE))
    mended = region.state == "stale" or (region.state == "torn" and crashed)
    severity = "warning" if mended else "error"
    return finding(region.path, region.position, region.state, where, severity)


def check_index(directory: StoreDirectory, log: LogKeys) -> Iterator[Finding]:
    """Compare headers, chains and items of the index with each other and with the log's keys."""
    paths = directory.index_paths()
    if not paths:
        yield from no_index(directory, len(log.offsets), log.begin)
        return
    geometry, unknown = known_geometry(directory)
    yield from unknown
    if geometry is None:
        return
    seen = np.zeros(len(log.hashes), bool)
    for path in paths:
        try:
            file = IndexFile.load(directory.vfs, path, geometry, writable=False)
        except CorruptRecord as error:
            yield finding(path, error.position, "size", error.reason, "error")
            continue
        yield from check_index_file(file, log, seen)
        file.release()
    yield from _missing_items(paths, log, seen)


def no_index(directory: StoreDirectory, keys: int, first: int | None) -> Iterator[Finding]:
    """Say that there are no files for so many keys, the first of the record at `first`."""
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

    Marks the keys of the log that its items stand for.
    """
    count = file.index_count - 1
    if count <= 0:
        return
    items = file.items()
    slots = items["key_hash"].astype(np.int64) % file.geometry.slots
    chains = link_chains(np.zeros(file.geometry.slots, np.int32), slots, 1)
    offsets = items["physical_offset"].astype(np.int64)
    header = file.header
    ends = (header.begin_physical_offset, header.end_physical_offset)
    if ends != (int(offsets[0]), int(offsets[-1])):
        message = f"begins and ends at {ends}, its items at {offsets[0]} and {offsets[-1]}"
        yield finding(file.path, 0, "index_header", message, "error")
    broken = np.flatnonzero(chains.previous != items["previous"])
    yield from _listed(file, broken, "index_chain", "item {} has a wrong predecessor", "error")
    stray = _strays(items["key_hash"].astype(np.int64), offsets, log, seen)
    yield from _listed(file, stray, "item_surplus", "item {}: no record has this key", "warning")


def _strays(hashes: Int64s, offsets: Int64s, log: Keys, seen: Any) -> Int64s:
    """Return the places of items without a record, expired ones aside; marks the keys found."""
    if log.begin is None:
        return np.flatnonzero((offsets >= log.end.offset) & ~log.end.is_later(offsets))
    # Both sides as one number a pair: a record's keys are few, and its offset is far below 2^32
    # times the record size least; equal pairs of one side are equal keys of one message.
    ours = _pairs(log.hashes.astype(np.int64), log.offsets)
    theirs = _pairs(hashes, offsets)
    seen |= among(ours, np.sort(theirs))
    unknown = ~among(theirs, np.sort(ours)) & (offsets >= log.begin)
    return np.flatnonzero(unknown & ~log.end.is_later(offsets))


def among(values: Any, ascending: Any) -> Any:
    """Mask of the values that are in an ascending column; numpy's own sorts and hashes first."""
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


def _listed(
    file: IndexFile, places: Int64s, reason: str, text: str, severity: str
) -> Iterator[Finding]:
    """Yield a finding for each place (item number - 1), the first of them one by one."""
    for place in places[:PER_FILE_MAX].tolist():
        position = file.geometry.item_position(place + 1)
        yield finding(file.path, position, reason, text.format(place + 1), severity)
    if len(places) > PER_FILE_MAX:
        more = f"{len(places) - PER_FILE_MAX} more of these"
        yield finding(file.path, 0, reason, more, severity)


def _missing_items(paths: list[str], log: LogKeys, seen: Any) -> Iterator[Finding]:
    """One finding for the keys without an item: from the first of them on, how many."""
    missing = np.flatnonzero(~seen)
    if len(missing):
        first = int(log.offsets[missing[0]])
        message = f"{len(missing)} keys have no item, the first is of the record at {first}"
        yield finding(paths[-1], INDEX_ITEM.size, "item_missing", message, "warning")
