"""Queues and index of a log of any size, built in Spark: what one process builds, byte for byte.

1. A task a split of the log writes a part (`log_parts.py`): units and items, and nothing else.
2. A task a group of queues, and one an index file, build these from the parts, with the classes
   that the store itself uses. Which items are in which index file follows from their numbers.
3. The driver, which holds the store's lock all the time, puts what was built in the place of what
   was there: `rocketcompat.repair.rebuild.install`, as the rebuild in one process does.

Everything up to 3 is in `<root>/.tubestore/spark-rebuild/<job>/`, with the journals of both
waves: a job that was killed and is run again with its id does what is missing. A task writes into
a directory of its own, so one that runs twice does no harm.

Index files are named by the store time of their first item (a broker's are named by the time at
which it made them), so a job that is taken up again gives them the same names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketcompat.files.lock import StoreLock
from rocketcompat.formats import (
    INDEX_DIRECTORY,
    OWN_DIRECTORY,
)
from rocketcompat.index.index_service import index_file_name
from rocketcompat.index.items import IndexGeometry
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.index_geometry import geometry_of
from rocketcompat.repair.rebuild import Built, extension_size, install, structures_to_build
from rocketcompat.spark.jobs.log_parts import counts_of, items_in, shared_out
from rocketcompat.spark.jobs.log_scanning import LogScan, ScannedLog, run_wave
from rocketcompat.spark.jobs.rebuild_tasks import (
    BuildJob,
    IndexSplit,
    QueueSizes,
    QueueSplit,
)
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.planning import plan_range
from rocketcompat.store.structures import BATCH_QUEUES, INDEX, QUEUES
from tubestore.core.old_paths import renamed_keyword
from tubestore.core.quarantine import Quarantine
from tubestore.disks.roots import local_root
from tubestore.spark.kit import running
from tubestore.spark.kit.running import (
    Done,
    Row,
    Watch,
    silent,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What can be built here, and the names under which progress is noted.
STRUCTURES = {one.directory: one.name for one in (QUEUES, BATCH_QUEUES, INDEX)}
WORK_DIRECTORY = "spark-rebuild"
#: There while the old structures are being replaced: what is left then is of no use.
_PLACING = "placing"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was built: a row a structure, as `repair.rebuild` has them; rows of the tasks."""

    rows: list[Row]
    records: int
    done: Done


@dataclass(frozen=True)
class Rebuild(LogScan):
    """A rebuild that is planned."""

    structures: tuple[str, ...]

    @property
    def queue_files(self) -> QueueSizes:
        """How queues are built."""
        config = self.directory.config
        return QueueSizes(
            config.consume_queue_file_size,
            extension_size(self.directory),
            config.mapper_file_size_batch_consume_queue,
            config.batch_topics,
        )

    def describe(self) -> str:
        """Describe what would be read and built."""
        return f"{self.log.describe()}; builds {' and '.join(self.structures)}"


def plan_rebuild(
    root: str,
    structures: Sequence[str] | None = None,
    *,
    job_id: str = "rebuild",
    options: Mapping[str, Any] | None = None,
    max_split_bytes: int = 128 << 20,
) -> Rebuild:
    """Plan a rebuild; `options` are the store's, by RocketMQ's names. NotAStore, InvalidMessage."""
    directory = StoreDirectory(local_root(root), options)
    wanted = structures_to_build(directory, structures, STRUCTURES)
    directory.check_changeable()
    given = RocketOptions.parse({"path": directory.root, "maxSplitBytes": str(max_split_bytes)})
    # Up to the end of the files: the task that reads the last records finds the log's.
    made = plan_range(directory, given, directory.log.min_offset, directory.log.max_offset)
    work = directory.path(OWN_DIRECTORY, WORK_DIRECTORY, job_id)
    return Rebuild(directory, work, made, wanted)


@renamed_keyword("told", "watch")
def rebuild(
    spark: SparkSession,
    root: str,
    structures: Sequence[str] | None = None,
    *,
    job_id: str = "rebuild",
    options: Mapping[str, Any] | None = None,
    max_split_bytes: int = 128 << 20,
    quarantine: str | None = None,
    watch: Watch = silent,
) -> Rebuilt:
    """Build queues and index of a RocketMQ store anew from its log; the old ones are kept aside.

    `structures` are names of `STRUCTURES`; without any, all that the store has. Queues get
    extensions as in `rocketcompat.repair.rebuild`.
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
        geometry, scanned, log = _geometry_and_scan(spark, planned, watch)
        job = BuildJob(str(work), planned.queue_files, geometry)
        splits = list(_build_splits(planned, job, log, running.parallelism(spark)))
        built = run_wave(spark, "build", job, splits, work, watch)
        (work / _PLACING).touch()
        _gather(work, built.rows)
        result = Built(str(work), log.end, log.records, log.regions)
        kept = Quarantine(directory.vfs, directory.root, quarantine)
        followers = [STRUCTURES[name] for name in planned.structures]
        rows = list(install(directory, result, planned.structures, followers, kept))
        shutil.rmtree(work, ignore_errors=True)
    finally:
        lock.release()
    done = Done([*scanned.rows, *built.rows], scanned.resumed + built.resumed,
                scanned.seconds + built.seconds)  # fmt: skip
    return Rebuilt(rows, log.records, done)


def _geometry_and_scan(
    spark: SparkSession, planned: Rebuild, watch: Watch
) -> tuple[IndexGeometry, Done, ScannedLog]:
    """Scan the log; meanwhile the old index proves its geometry, and ends it all if it cannot."""
    with ThreadPoolExecutor(1, "tubestore-geometry") as pool:
        indexed = INDEX_DIRECTORY in planned.structures
        proof = pool.submit(geometry_of, planned.directory, trust_options=True) if indexed else None

        def checked(done: int, of: int) -> None:
            if proof is not None and proof.done():
                proof.result()
            watch(done, of)

        scanned, log = planned.scanned(spark, checked)
        return IndexGeometry() if proof is None else proof.result(), scanned, log


def _build_splits(
    planned: Rebuild, job: BuildJob, log: ScannedLog, groups: int
) -> Iterator[QueueSplit | IndexSplit]:
    """Share the building out: the index files first, they take longest."""
    if INDEX_DIRECTORY in planned.structures and log.records:
        yield from _index_splits(log, job.geometry)
    counts = counts_of((part.path for part in log.parts), planned.structures)
    for queues in shared_out(counts, groups):
        yield QueueSplit(queues, tuple(log.parts))


def _index_splits(log: ScannedLog, geometry: IndexGeometry) -> Iterator[IndexSplit]:
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
