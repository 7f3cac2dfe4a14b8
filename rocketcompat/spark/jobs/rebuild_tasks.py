"""Tasks that build queues and index in Spark: parts of the log, and what is made of them.

A task makes a file or a directory of its own, so one that runs twice does no harm; its row names
it, and the driver takes what the rows name (`rebuild.py`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rocketcompat.formats import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    CQ_UNIT,
    INDEX_DIRECTORY,
)
from rocketcompat.index.index_file import IndexFile
from rocketcompat.index.items import IndexGeometry
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.queues.files import queue_names
from rocketcompat.queues.table import BatchQueueTable, ConsumeQueueTable
from rocketcompat.queues.units import Units, batch_units
from rocketcompat.spark.jobs.log_parts import (
    Array,
    Damaged,
    Queue,
    is_whole,
    items_in,
    runs_of,
    units_in,
    write_part,
)
from tubestore.core.vfs import OsVfs
from tubestore.spark.kit.running import Row, digest_of

_PARTS, _BUILT = "parts", "built"


@dataclass(frozen=True, slots=True)
class ScanSplit:
    """Physical offsets [start, end), and when the files that hold them were changed, ms."""

    start: int
    end: int
    changed: tuple[int, ...]


@dataclass(frozen=True)
class ScanJob:
    """Writes the parts of splits of the log."""

    root: str
    options: Mapping[str, Any]
    work_directory: str
    name: str = "rebuild: scan"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that identify this job."""
        return {"root": self.root, "options": digest_of(self)}

    def work(self, number: int, split: ScanSplit) -> Row:
        """Write one part."""
        directory = StoreDirectory(self.root, self.options)
        parts = os.path.join(self.work_directory, _PARTS)
        path, digest, summary = write_part(directory, split.start, split.end, parts, number)
        size = split.end - split.start
        return {"split": number, "path": path, "digest": digest, "bytes": size, **asdict(summary)}

    def holds(self, row: Row) -> bool:
        """True if the part of an earlier run is whole."""
        return is_whole(row["path"], row.get("digest", ""))


@dataclass(frozen=True, slots=True)
class PartOrder:
    """A part in the order of the log."""

    path: str
    #: The last region without records before it …
    damaged: Damaged | None
    #: … of which its own first region is the rest: the split was cut within it.
    goes_on: bool


@dataclass(frozen=True, slots=True)
class QueueSplit:
    """Some queues, and the parts that may have units of them."""

    queues: tuple[Queue, ...]
    parts: tuple[PartOrder, ...]


@dataclass(frozen=True, slots=True)
class IndexSplit:
    """One index file: its name, and which items of which parts it has."""

    file_name: str
    items: tuple[tuple[str, int, int], ...]
    #: Physical offset and time of the last item of the file before.
    end_of_last: tuple[int, int]


@dataclass(frozen=True, slots=True)
class QueueSizes:
    """How the files of queues are, in bytes."""

    size: int
    #: Of an extension's; None without extensions.
    ext_size: int | None
    #: Of those of queues of inner batches, and the topics that have such.
    batch_size: int
    batch_topics: frozenset[str]


@dataclass(frozen=True)
class BuildJob:
    """Builds queues and index files from parts."""

    work_directory: str
    queue_files: QueueSizes
    geometry: IndexGeometry
    name: str = "rebuild: build"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that identify this job."""
        return {"options": digest_of(self)}

    def work(self, number: int, split: QueueSplit | IndexSplit) -> Row:
        """Build into a directory of this attempt."""
        home = os.path.join(self.work_directory, _BUILT, f"{number}-{uuid.uuid4().hex[:12]}")
        if isinstance(split, QueueSplit):
            made = _build_queues(home, split, self.queue_files)
        else:
            made = _build_index(home, split, self.geometry)
        return {"split": number, "path": home, "made": made}

    def holds(self, row: Row) -> bool:
        """True if what an earlier run built is there; it was synced."""
        return all(os.path.exists(os.path.join(row["path"], name)) for name in row["made"])


def _build_queues(home: str, split: QueueSplit, files: QueueSizes) -> list[str]:
    """Build queues; returns their directories below `home`, and those of their extensions."""
    os.makedirs(home)
    vfs, wanted = OsVfs(), set(split.queues)
    path, batch_path = (
        os.path.join(home, kind)
        for kind in (CONSUME_QUEUE_DIRECTORY, BATCH_CONSUME_QUEUE_DIRECTORY)
    )
    table = ConsumeQueueTable(vfs, path, files.size, ext_file_size=files.ext_size)
    batches = BatchQueueTable(vfs, batch_path, files.batch_size, files.batch_topics)
    try:
        for kind, topic, queue_id, rows, damaged in runs_in(split.parts, wanted):
            if kind == BATCH_CONSUME_QUEUE_DIRECTORY:
                batches.put_run(topic, queue_id, batch_units_in(rows))
            else:
                offsets, times = rows["queue_offset"], rows["store_timestamp"]
                table.put_run(topic, queue_id, offsets, plain_units_in(rows), times, damaged)
        table.flush(sync=True)
        batches.flush(sync=True)
    finally:
        table.close()
        batches.close()
    kinds = (
        CONSUME_QUEUE_DIRECTORY, CONSUME_QUEUE_EXT_DIRECTORY, BATCH_CONSUME_QUEUE_DIRECTORY,
    )  # fmt: skip
    return [
        os.path.join(kind, topic, str(queue_id))
        for kind in kinds
        for topic, queue_id in queue_names(vfs, os.path.join(home, kind))
    ]


def plain_units_in(rows: Array) -> Units:
    """Return rows of a part as units of an ordinary queue."""
    return np.ascontiguousarray(rows["unit"]).view(CQ_UNIT.dtype)


def batch_units_in(rows: Array) -> Units:
    """Return rows of a part as units of a queue of inner batches."""
    units = plain_units_in(rows)
    return batch_units(
        units["physical_offset"], units["size"], units["tags_code"],
        rows["store_timestamp"], rows["queue_offset"], rows["messages"],
    )  # fmt: skip


def runs_in(
    parts: Sequence[PartOrder], wanted: Collection[Queue]
) -> Iterator[tuple[str, str, int, Array, Damaged | None]]:
    """Go through the units of queues as in the log: the queue, rows, the region before them."""
    for part in parts:
        units = units_in(part.path)
        for number, (damaged, runs) in enumerate(runs_of(part.path)):
            if number == 0 or (number == 1 and part.goes_on):
                damaged = part.damaged
            for one in runs:
                if one.queue in wanted:
                    yield *one.queue, units[one.first : one.first + one.count], damaged


def _build_index(home: str, split: IndexSplit, geometry: IndexGeometry) -> list[str]:
    """Build an index file; returns its name below `home`."""
    name = os.path.join(INDEX_DIRECTORY, split.file_name)
    vfs = OsVfs()
    os.makedirs(os.path.join(home, INDEX_DIRECTORY))
    file = IndexFile.create(vfs, os.path.join(home, name), geometry, split.end_of_last)
    for part, first, count in split.items:
        rows = items_in(part)[first : first + count]
        file.put_keys(rows["key_hash"], rows["physical_offset"], rows["store_timestamp"])
    file.flush()
    file.sync()
    file.close()
    return [name]
