"""What queues and index need of a split of the log, in two small files: a part.

    <work>/parts/<number>-<random>/units.rows   a row a queue unit, by queue, then as in the log
                                   items.rows   a row a key to be indexed, as in the log
                                   runs.json    the units of each queue, in stretches of the split

A row of a queue has what a unit of either kind is made of, and its extension. A part is some
sixty bytes a message; a task that builds a queue or an index file from it reads only the rows of
that file. It is not synced, since a task would wait for the disk for a fifth of its time: a run
that takes up another run's files compares the digest first.

A stretch ends at a region that holds no records: from then on, missing queue offsets are given
units that point to that region. Before the first one it is the last region of earlier splits.

Nothing here imports Spark.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from rocketcompat.commitlog.batch import batch_of_records
from rocketcompat.commitlog.walk import ENDS, Gap
from rocketcompat.formats import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    BLANK,
    CONSUME_QUEUE_DIRECTORY,
    CQ_UNIT,
    MAGIC_BLANK,
)
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.messages import DispatchBatch
from rocketcompat.queues.units import RecordUnits, units_of
from tubestore.core.kernels import stable_order
from tubestore.core.vfs import OsVfs, Vfs

Array = np.ndarray[Any, Any]
#: A unit's bytes and where it goes, its record's store time, and how many messages that holds.
#: (As bytes: numpy turns numbers into native ones on its way.)
UNIT_ROW = np.dtype(
    [
        ("queue_offset", np.int64),
        ("unit", f"V{CQ_UNIT.size}"),
        ("store_timestamp", np.int64),
        ("messages", np.int32),
    ]
)
ITEM_ROW = np.dtype(
    [("key_hash", np.int32), ("physical_offset", np.int64), ("store_timestamp", np.int64)]
)
_FILES = _UNITS, _ITEMS, _RUNS = "units.rows", "items.rows", "runs.json"
_READ_BYTES = 1 << 20
#: A region that holds no records: physical offset, bytes.
Damaged = tuple[int, int]
#: The directory of its kind of queues, topic, queue id.
Queue = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Run:
    """Units of one queue: rows [first, first + count) of the part's units."""

    kind: str
    topic: str
    queue_id: int
    first: int
    count: int

    @property
    def queue(self) -> Queue:
        """Return the queue that they belong to."""
        return self.kind, self.topic, self.queue_id


@dataclass(slots=True)
class PartSummary:
    """What the driver has to know of a part."""

    #: Behind the last record, or its placeholder.
    end: int
    records: int = 0
    items: int = 0
    #: Physical offset of the last record with a key, and of the last record; -1 without one.
    last_item: int = -1
    last_record: int = -1
    #: Store time of the youngest record, ms.
    last_timestamp: int = 0
    regions: list[Gap] = field(default_factory=list)
    #: True if the log ends in it, whatever bytes follow.
    ends: bool = False


class PartWriter:
    """Takes the log of a split as batches, in order, and writes its part."""

    def __init__(self, start: int, batch_topics: frozenset[str] = frozenset()) -> None:
        self.summary = PartSummary(start)
        self._batch_topics = batch_topics
        self._items: list[Array] = []
        self._units: list[Array] = []
        self._stretches: list[dict[str, Any]] = []
        self._placed = 0
        self._begin(None)

    def _begin(self, damaged: Damaged | None) -> None:
        """Begin a stretch."""
        self._damaged, self._keys = damaged, dict[Queue, int]()
        self._held: list[tuple[Array, Array]] = []

    def add(self, batch: DispatchBatch) -> None:
        """Take records."""
        keys = self._keys
        for kind in (CONSUME_QUEUE_DIRECTORY, BATCH_CONSUME_QUEUE_DIRECTORY):
            of_batches = kind == BATCH_CONSUME_QUEUE_DIRECTORY
            if of_batches and not self._batch_topics:
                continue
            found = units_of(batch, self._batch_topics, of_batches=of_batches)
            used = [key for key, _, _ in found.runs()] if of_batches else batch.queue_keys
            table = {key: keys.setdefault((kind, *key), len(keys)) for key in used}
            numbers = np.array([table.get(key, -1) for key in batch.queue_keys], np.int32)
            self._held.append((numbers[found.codes], _unit_rows(found)))
        items = np.empty(len(batch.key_rows), ITEM_ROW)
        items["key_hash"] = batch.key_hashes
        items["physical_offset"] = batch.physical_offsets[batch.key_rows]
        items["store_timestamp"] = batch.store_timestamps[batch.key_rows]
        self._items.append(items)
        summary = self.summary
        summary.records += len(batch)
        summary.items += len(items)
        summary.end = batch.end
        summary.last_record = int(batch.physical_offsets[-1])
        summary.last_timestamp = max(summary.last_timestamp, int(batch.store_timestamps.max()))
        if len(items):
            summary.last_item = int(items["physical_offset"][-1])

    def add_region(self, region: Gap) -> None:
        """Take a part of the log that holds no records."""
        self.summary.regions.append(region)
        if region.state in ENDS:
            self.summary.ends = True
            return
        self.summary.end = region.end
        self._end_stretch()
        self._begin((region.start, region.end - region.start))

    def _end_stretch(self) -> None:
        """Put the units of a stretch together, queue by queue."""
        codes = np.concatenate([c for c, _ in self._held] or [np.empty(0, np.int32)])
        units = np.concatenate([u for _, u in self._held] or [np.empty(0, UNIT_ROW)])
        order = stable_order(codes, len(self._keys))
        counts = np.bincount(codes, minlength=len(self._keys)).tolist()
        runs = []
        for queue, count in zip(self._keys, counts, strict=True):
            if count:
                runs.append([*queue, self._placed, count])
            self._placed += count
        self._units.append(units[order])
        self._stretches.append({"damaged": self._damaged, "runs": runs})

    def write(self, vfs: Vfs, parts: str, number: int) -> tuple[str, str]:
        """Write the part, not synced; returns its directory, and the digest of its files."""
        self._end_stretch()
        path = os.path.join(parts, f"{number}-{uuid.uuid4().hex[:12]}")
        vfs.make_directories(path)
        digest = xxhash.xxh3_64()
        runs = json.dumps(self._stretches).encode()
        contents: Sequence[Sequence[Any]] = (self._units, self._items, [runs])
        for name, pieces in zip(_FILES, contents, strict=True):
            file, at = vfs.open(os.path.join(path, name), create=True), 0
            for piece in pieces:
                raw = memoryview(piece).cast("B") if len(piece) else b""
                digest.update(raw)
                file.pwrite(raw, at)
                at += len(raw)
            file.close()
        return path, digest.hexdigest()


def _unit_rows(found: RecordUnits) -> Array:
    """Return units as rows of a part, in their order."""
    units = np.empty(len(found.rows), UNIT_ROW)
    units["queue_offset"] = found.offsets
    units["unit"] = found.plain().view(UNIT_ROW["unit"])
    units["store_timestamp"] = found.store_timestamps
    units["messages"] = found.counts
    return units


def write_part(
    directory: StoreDirectory, start: int, end: int, parts: str, number: int
) -> tuple[str, str, PartSummary]:
    """Write the part of [start, end) of the log, places of its chain; as `PartWriter.write`."""
    writer = PartWriter(start, directory.config.batch_topics)
    delays = directory.config.delay_levels_ms
    for piece in directory.scan_log(start, end, chained=True, exact=True):
        if isinstance(piece, Gap):
            writer.add_region(piece)
            continue
        behind = piece.records_end
        writer.add(batch_of_records(piece, writer.summary.end, behind, delays))
    summary = writer.summary
    summary.ends = summary.ends or (summary.end < end and not _ends_a_file(directory, summary.end))
    return *writer.write(OsVfs(), parts, number), summary


def _ends_a_file(directory: StoreDirectory, position: int) -> bool:
    """True if the chain goes on in the next file: a blank record, or no room for one."""
    raw = directory.log.read(position, BLANK.size)
    return len(raw) < BLANK.size or BLANK.unpack_from(raw).magic_code == MAGIC_BLANK


def is_whole(path: str, digest: str) -> bool:
    """True if a part is there as it was written, after whatever happened since."""
    found = xxhash.xxh3_64()
    try:
        for name in _FILES:
            with open(os.path.join(path, name), "rb") as file:
                while raw := file.read(_READ_BYTES):
                    found.update(raw)
    except FileNotFoundError:
        return False
    return bool(found.hexdigest() == digest)


# -- reading --------------------------------------------------------------------------------------


def runs_of(path: str) -> Iterator[tuple[Damaged | None, list[Run]]]:
    """Go through the stretches of a part: the region before it, and the runs of its units."""
    with open(os.path.join(path, _RUNS), encoding="utf-8") as file:
        stretches = json.load(file)
    for stretch in stretches:
        damaged = stretch["damaged"]
        yield None if damaged is None else tuple(damaged), [Run(*run) for run in stretch["runs"]]


def units_in(path: str) -> Array:
    """Return the units of a part, mapped."""
    return _mapped(os.path.join(path, _UNITS), UNIT_ROW)


def items_in(path: str) -> Array:
    """Return the items of a part, mapped."""
    return _mapped(os.path.join(path, _ITEMS), ITEM_ROW)


def _mapped(path: str, kind: np.dtype[Any]) -> Array:
    """Map adjacent rows that have no head to be parsed."""
    return np.memmap(path, kind, "r") if os.path.getsize(path) else np.empty(0, kind)


def counts_of(paths: Iterable[str], kinds: Collection[str]) -> dict[Queue, int]:
    """Count the units of each queue of some kinds in parts."""
    counts: dict[Queue, int] = {}
    for path in paths:
        for _, runs in runs_of(path):
            for run in runs:
                if run.kind in kinds:
                    counts[run.queue] = counts.get(run.queue, 0) + run.count
    return counts


def shared_out(counts: dict[Queue, int], groups: int) -> Sequence[tuple[Queue, ...]]:
    """Share queues out to groups with about the same number of units, none empty."""
    held: list[list[Queue]] = [[] for _ in range(max(1, groups))]
    sizes = [0] * len(held)
    for key in sorted(counts, key=lambda key: (-counts[key], key)):
        least = sizes.index(min(sizes))
        held[least].append(key)
        sizes[least] += counts[key]
    return [tuple(sorted(keys)) for keys in held if keys]
