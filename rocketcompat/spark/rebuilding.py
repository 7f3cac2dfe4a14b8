"""Queues and index of a log of any size, built in Spark: what one process builds, byte for byte.

1. A task a split of the log writes a part (`log_parts.py`): units and items, and nothing else.
2. A task a group of queues, and one an index file, build these from the parts, with the classes
   that the store itself uses. Which items are in which index file follows from their numbers.
3. The driver, which holds the store's lock all the time, puts what was built in the place of what
   was there: `rocketcompat.rebuild.install`, as the rebuild in one process does.

Everything up to 3 stands in `<root>/.tubestore/spark-rebuild/<job>/`, with the journals of both
waves: a job that was killed and is run again with its id does what is missing. A task writes into
a directory of its own, so one that runs twice disturbs nobody.

Index files are named by the store time of their first item (a broker's are named by the time at
which it made them), so a job that is taken up again gives them the same names.

Next to read: `log_parts.py`, `rocketcompat/rebuild.py`.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rocketcompat.consume_queue_table import ConsumeQueueTable
from rocketcompat.directory import ENDS, Region, StoreDirectory
from rocketcompat.formats import (
    CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_EXT_DIRECTORY,
    CQ_UNIT,
    INDEX_DIRECTORY,
    OWN_DIRECTORY,
)
from rocketcompat.index_file import IndexFile
from rocketcompat.index_geometry import geometry_of
from rocketcompat.index_items import IndexGeometry
from rocketcompat.index_service import IndexService, index_file_name
from rocketcompat.quarantine import Quarantine
from rocketcompat.rebuild import Built, install
from rocketcompat.spark.log_parts import (
    Damaged,
    counts_of,
    items_in,
    runs_of,
    shared_out,
    units_in,
    write_part,
)
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.planning import LogPlan, plan_range
from rocketcompat.store_lock import StoreLock
from tubestore.errors import InvalidMessage, NotAStore
from tubestore.spark.jobs import running
from tubestore.spark.jobs.running import (
    Done,
    Job,
    Journal,
    Row,
    Told,
    digest_of,
    run,
    silent,
)
from tubestore.vfs import OsVfs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What can be built here, and the names under which progress is noted.
STRUCTURES = {
    CONSUME_QUEUE_DIRECTORY: ConsumeQueueTable.name,
    INDEX_DIRECTORY: IndexService.name,
}
WORK_DIRECTORY = "spark-rebuild"
#: There while the old structures are being replaced: what is left then is of no use.
_PLACING = "placing"
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
        """Return what tells this job from another."""
        return {"root": self.root, "options": digest_of(self)}

    def work(self, number: int, split: ScanSplit) -> Row:
        """Write one part."""
        directory = StoreDirectory(self.root, self.options)
        parts = os.path.join(self.work_directory, _PARTS)
        path, summary = write_part(directory, split.start, split.end, parts, number)
        return {"split": number, "path": path, "bytes": split.end - split.start, **asdict(summary)}


@dataclass(frozen=True, slots=True)
class PartPlace:
    """A part in the order of the log."""

    path: str
    #: The last region without records before it …
    damaged: Damaged | None
    #: … of which its own first region is the rest: the split was cut within it.
    goes_on: bool


@dataclass(frozen=True, slots=True)
class QueueSplit:
    """Some queues, and the parts that may have units of them."""

    queues: tuple[tuple[str, int], ...]
    parts: tuple[PartPlace, ...]


@dataclass(frozen=True, slots=True)
class IndexSplit:
    """One index file: its name, and which items of which parts it has."""

    file_name: str
    items: tuple[tuple[str, int, int], ...]
    #: Physical offset and time of the last item of the file before.
    end_of_last: tuple[int, int]


@dataclass(frozen=True)
class BuildJob:
    """Builds queues and index files from parts."""

    work_directory: str
    queue_file_size: int
    geometry: IndexGeometry
    name: str = "rebuild: build"

    def arguments(self) -> Mapping[str, Any]:
        """Return what tells this job from another."""
        return {"options": digest_of(self)}

    def work(self, number: int, split: QueueSplit | IndexSplit) -> Row:
        """Build into a directory of this attempt."""
        home = os.path.join(self.work_directory, _BUILT, f"{number}-{uuid.uuid4().hex[:12]}")
        if isinstance(split, QueueSplit):
            made = _build_queues(home, split, self.queue_file_size)
        else:
            made = _build_index(home, split, self.geometry)
        return {"split": number, "path": home, "made": made}


def _build_queues(home: str, split: QueueSplit, file_size: int) -> list[str]:
    """Build queues; returns their directories below `home`."""
    path = os.path.join(home, CONSUME_QUEUE_DIRECTORY)
    os.makedirs(path)
    table, wanted = ConsumeQueueTable(OsVfs(), path, file_size), set(split.queues)
    try:
        for part in split.parts:
            units = units_in(part.path)
            for number, (damaged, runs) in enumerate(runs_of(part.path)):
                if number == 0 or (number == 1 and part.goes_on):
                    damaged = part.damaged
                for one in runs:
                    if (one.topic, one.queue_id) in wanted:
                        own = units[one.first : one.first + one.count]
                        raw = np.ascontiguousarray(own["unit"]).view(CQ_UNIT.dtype)
                        table.put_run(one.topic, one.queue_id, own["queue_offset"], raw, damaged)
        table.flush(sync=True)
        return [os.path.join(CONSUME_QUEUE_DIRECTORY, q.topic, str(q.queue_id)) for q in table]
    finally:
        table.close()


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


# -- the driver -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was built: a row a structure, as `rocketcompat.rebuild` has them; rows of the tasks."""

    rows: list[Row]
    records: int
    done: Done


@dataclass(frozen=True)
class Rebuild:
    """A rebuild that is planned."""

    directory: StoreDirectory
    structures: tuple[str, ...]
    work_directory: str
    log: LogPlan

    @property
    def options(self) -> dict[str, Any]:
        """What tasks open the directory with."""
        return {**self.directory.inferred, **self.directory.options}

    def describe(self) -> str:
        """Say what would be read and built."""
        return f"{self.log.describe()}; builds {' and '.join(self.structures)}"

    def scan_splits(self) -> list[ScanSplit]:
        """Return the splits of the log with the times of their files."""
        vfs, log = self.directory.vfs, self.directory.log
        files = [(file, vfs.modified_ms(file.path)) for file in log.files]
        return [
            ScanSplit(
                split.start,
                split.end,
                tuple(
                    changed
                    for file, changed in files
                    if file.file_from_offset < split.end
                    and file.file_from_offset + log.file_size > split.start
                ),
            )
            for split in self.log.splits
        ]


def plan_rebuild(
    root: str,
    structures: Sequence[str],
    *,
    job_id: str = "rebuild",
    options: Mapping[str, Any] | None = None,
    max_split_bytes: int = 128 << 20,
) -> Rebuild:
    """Plan a rebuild; `options` are the store's, by RocketMQ's names. NotAStore, InvalidMessage."""
    if unknown := set(structures) - set(STRUCTURES):
        names = ", ".join(STRUCTURES)
        raise InvalidMessage(f"{', '.join(sorted(unknown))}: {names} can be built in Spark")
    directory = StoreDirectory(os.path.abspath(root), options)
    directory.check_changeable()
    if directory.config.batch_topics:
        raise NotAStore(directory.root, "has topics of batches: `rebuild` without Spark knows them")
    extended = directory.vfs.exists(directory.path(CONSUME_QUEUE_EXT_DIRECTORY))
    if extended or directory.config.enable_consume_queue_ext:
        reason = "its queues have extensions: `rebuild` without Spark builds them"
        raise NotAStore(directory.root, reason)
    given = RocketOptions.parse({"path": directory.root, "maxSplitBytes": str(max_split_bytes)})
    # Up to the end of the files: whoever reads the last records finds the log's.
    made = plan_range(directory, given, directory.log.min_offset, directory.log.max_offset)
    work = directory.path(OWN_DIRECTORY, WORK_DIRECTORY, job_id)
    wanted = tuple(name for name in STRUCTURES if name in structures)
    return Rebuild(directory, wanted, work, made)


def rebuild(
    spark: SparkSession,
    root: str,
    structures: Sequence[str] = tuple(STRUCTURES),
    *,
    job_id: str = "rebuild",
    options: Mapping[str, Any] | None = None,
    max_split_bytes: int = 128 << 20,
    quarantine: str | None = None,
    told: Told = silent,
) -> Rebuilt:
    """Build queues and index of a RocketMQ store anew from its log; the old ones are kept aside.

    Refused (StoreLocked) while a broker holds the store, which is locked until it is done. What
    was there goes into quarantine. `job_id` names what an interrupted run has done.
    """
    planned = plan_rebuild(
        root, structures, job_id=job_id, options=options, max_split_bytes=max_split_bytes
    )
    directory = planned.directory
    lock = StoreLock(directory.vfs, directory.root)
    try:
        work = Path(planned.work_directory)
        if (work / _PLACING).exists():
            shutil.rmtree(work)
        work.mkdir(parents=True, exist_ok=True)
        scanned = _run(spark, "scan", ScanJob(directory.root, planned.options, str(work)),
                       planned.scan_splits(), work, told)  # fmt: skip
        log = _joined(directory.log.min_offset, scanned.rows)
        job = BuildJob(str(work), directory.config.consume_queue_file_size,
                       geometry_of(directory, believe=True))  # fmt: skip
        splits = list(_build_splits(planned, job, log, running.parallelism(spark)))
        built = _run(spark, "build", job, splits, work, told)
        (work / _PLACING).touch()
        _gather(work, built.rows)
        result = Built(str(work), log.end, log.records, log.regions)
        kept = Quarantine(directory.vfs, directory.root, quarantine)
        rows = list(install(directory, result, planned.structures, list(STRUCTURES.values()), kept))
        shutil.rmtree(work, ignore_errors=True)
    finally:
        lock.release()
    done = Done([*scanned.rows, *built.rows], scanned.resumed + built.resumed,
                scanned.seconds + built.seconds)  # fmt: skip
    return Rebuilt(rows, log.records, done)


def _run(
    spark: SparkSession, name: str, job: Job, splits: Sequence[Any], work: Path, told: Told
) -> Done:
    """Run one of the two waves, with a journal in the work directory."""
    journal = Journal(
        work / f"{name}.jsonl", job, anew=True, holds=lambda row: os.path.exists(row["path"])
    )
    return run(spark, job, splits, journal=journal, told=told)


@dataclass(slots=True)
class _Log:
    """The log as its parts say it is, in order."""

    end: int
    records: int = 0
    regions: list[Region] = field(default_factory=list)
    parts: list[PartPlace] = field(default_factory=list)
    items: list[int] = field(default_factory=list)
    last_item: int = -1
    last_record: int = -1


def _joined(start: int, rows: Sequence[Row]) -> _Log:
    """Put what the tasks saw together; what stands behind the log's end does not count."""
    log = _Log(start)
    last: Region | None = None
    for row in rows:
        regions = [Region(**one) for one in row["regions"]]
        goes_on = bool(last and regions and regions[0].start < last.end)
        damaged = (last.start, last.end - last.start) if last else None
        log.parts.append(PartPlace(row["path"], damaged, goes_on))
        log.items.append(row["items"])
        log.records += row["records"]
        if row["records"] or regions:
            log.end = max(log.end, row["end"])
        log.last_item = max(log.last_item, row["last_item"])
        log.last_record = max(log.last_record, row["last_record"])
        for region in regions[1:] if goes_on else regions:
            log.regions.append(region)
            last = last if region.state in ENDS else region
        if row["ends"]:
            break
    return log


def _build_splits(
    planned: Rebuild, job: BuildJob, log: _Log, groups: int
) -> Iterator[QueueSplit | IndexSplit]:
    """Share the building out: the index files first, they take longest."""
    if INDEX_DIRECTORY in planned.structures and log.records:
        yield from _index_splits(log, job.geometry)
    if CONSUME_QUEUE_DIRECTORY in planned.structures:
        counts = counts_of(part.path for part in log.parts)
        for queues in shared_out(counts, groups):
            yield QueueSplit(queues, tuple(log.parts))


def _index_splits(log: _Log, geometry: IndexGeometry) -> Iterator[IndexSplit]:
    """Give every index file its items, by their number in the log."""
    room = geometry.items - 1
    starts = [0, *accumulate(log.items)]
    total = starts[-1]
    # A broker makes the next file for the first record behind a full one, with a key or without.
    files = max(1, -(-total // room))
    if total and total % room == 0 and log.last_record > log.last_item:
        files += 1
    name: str | None = None
    end_of_last = (0, 0)
    for number in range(files):
        low, high = number * room, min((number + 1) * room, total)
        chosen = tuple(
            (part.path, max(low - start, 0), min(high, start + count) - max(low, start))
            for part, start, count in zip(log.parts, starts, log.items, strict=False)
            if start < high and start + count > low
        )
        first_time = end_of_last[1]
        if chosen:
            first_time = int(items_in(chosen[0][0])[chosen[0][1]]["store_timestamp"])
        name = index_file_name(first_time, name)
        yield IndexSplit(name, chosen, end_of_last)
        if chosen:
            path, first, count = chosen[-1]
            last = items_in(path)[first + count - 1]
            end_of_last = (int(last["physical_offset"]), int(last["store_timestamp"]))


def _gather(work: Path, rows: Sequence[Row]) -> None:
    """Bring what the attempts built to one place."""
    for row in rows:
        for name in row["made"]:
            target = work / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(os.path.join(row["path"], name), target)
