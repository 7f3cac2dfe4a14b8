"""Audit of a RocketMQ store of any size: the findings of `rocketcompat check`, found in tasks.

1. A task a split of the log verifies every record of it, and writes a part (`log_parts.py`).
2. A task a group of queues, and one an index file, compares these with the parts.
3. The driver checks names and lengths of files, the checkpoint, the broker's own files, jobs.

The parts are in `<root>/.tubestore/spark-audit/<job>/` meanwhile, where every node sees them, or in
another such directory; nothing else is written, and a broker may be at work. Shards beside the log
are a tube root of their own: `tubestore spark audit STORE/tube`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketcompat.check import whole as check
from rocketcompat.check.findings import Finding, finding
from rocketcompat.check.index import known_geometry, no_index, region_finding
from rocketcompat.check.queues import check_kinds
from rocketcompat.commitlog.walk import Gap
from rocketcompat.formats import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_ITEM,
    OWN_DIRECTORY,
)
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import ScannedEnd
from rocketcompat.spark.jobs.audit_tasks import AuditJob, IndexFileSplit
from rocketcompat.spark.jobs.log_parts import Queue, counts_of, items_in, shared_out
from rocketcompat.spark.jobs.log_scanning import LogScan, ScannedLog, run_wave
from rocketcompat.spark.jobs.rebuild_tasks import QueueSplit
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.planning import plan_range
from tubestore.core.old_paths import renamed_keyword
from tubestore.disks.roots import absolute_root, is_object_root
from tubestore.errors import InvalidOption
from tubestore.spark.kit import running
from tubestore.spark.kit.running import Done, Row, Watch, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORK_DIRECTORY = "spark-audit"
#: Units that one task compares, so that its memory does not grow with the store.
UNITS_MAX = 2_000_000
_KINDS = (CONSUME_QUEUE_DIRECTORY, BATCH_CONSUME_QUEUE_DIRECTORY)


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit found: findings as `rocketcompat.check` has them, and how much was read."""

    findings: list[Finding]
    records: int
    bytes: int
    done: Done


def plan_audit(
    root: str,
    *,
    job_id: str | None = None,
    options: Mapping[str, Any] | None = None,
    max_split_bytes: int = 128 << 20,
    work: str | None = None,
) -> LogScan:
    """Plan the audit of a store as it is now; `options` are the store's. NotAStore, InvalidOption.

    `work`: a directory for the parts that every node sees, if they cannot be below the root.
    """
    directory = StoreDirectory(absolute_root(root), options)
    given = RocketOptions.parse({"path": directory.root, "maxSplitBytes": str(max_split_bytes)})
    log = directory.log
    made = plan_range(directory, given, log.min_offset, log.max_offset)
    if work is None and is_object_root(directory.root):
        raise InvalidOption("work", "an audit of objects needs a directory that every node can see")
    parts = directory.path(OWN_DIRECTORY) if work is None else os.path.abspath(work)
    return LogScan(directory, os.path.join(parts, WORK_DIRECTORY, job_id or "audit"), made)


@renamed_keyword("told", "watch")
def audit(
    spark: SparkSession,
    root: str,
    *,
    job_id: str | None = None,
    options: Mapping[str, Any] | None = None,
    max_split_bytes: int = 128 << 20,
    work: str | None = None,
    watch: Watch = silent,
) -> Audited:
    """Cross-check log, queues and index in tasks; NotAStore, InvalidOption.

    An interrupted run is taken up again with its `job_id`; without one it begins anew. `work` as in
    `plan_audit`.
    """
    planned = plan_audit(
        root, job_id=job_id, options=options, max_split_bytes=max_split_bytes, work=work
    )
    directory, parts = planned.directory, Path(planned.work_directory)
    if job_id is None:
        shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir(parents=True, exist_ok=True)
    before = [*check.check_jobs(directory), *check.check_files(directory)]
    scanned, log = planned.scanned(spark, watch)
    keys = _first_key(log)
    geometry, unknown = known_geometry(directory)
    job = AuditJob(directory.root, planned.options, tuple(_holes(log)), log.end, keys, geometry)
    queues = list(_queue_splits(directory, log, running.parallelism(spark)))
    paths = directory.index_paths() if geometry is not None else []
    files = [IndexFileSplit(path, _placed(planned, log)) for path in paths]
    compared = run_wave(spark, "compare", job, [*files, *queues], parts, watch)
    findings = [
        *before,
        *(region_finding(directory, region) for region in log.regions),
        *check_kinds(directory),
        *(found for row in compared.rows for found in row["findings"]),
        *unknown,
        *_missing_items(directory, log, keys, compared.rows[: len(files)], unknown),
        *check.check_checkpoint(directory, ScannedEnd(directory, log.end), log.last_timestamp),
        *check.check_config(directory),
    ]
    shutil.rmtree(parts, ignore_errors=True)
    done = Done([*scanned.rows, *compared.rows], scanned.resumed + compared.resumed,
                scanned.seconds + compared.seconds)  # fmt: skip
    return Audited(findings, log.records, sum(s.bytes for s in planned.log.splits), done)


def _holes(log: ScannedLog) -> Iterator[Gap]:
    """Go through the regions before the end."""
    return (region for region in log.regions if region.start < log.end)


def _first_key(log: ScannedLog) -> int | None:
    """Return the physical offset of the first record with a key."""
    for part, count in zip(log.parts, log.items, strict=True):
        if count:
            return int(items_in(part.path)[0]["physical_offset"])
    return None


def _queue_splits(directory: StoreDirectory, log: ScannedLog, groups: int) -> Iterator[QueueSplit]:
    """Share the queues out that are in the log, or on disk."""
    counts: dict[Queue, int] = {
        (kind, *key): 0
        for kind in _KINDS
        for key in directory.queue_names(kind)
        if (kind == BATCH_CONSUME_QUEUE_DIRECTORY) == (key[0] in directory.config.batch_topics)
    }
    counts |= counts_of((part.path for part in log.parts), _KINDS)
    groups = max(groups, -(-sum(counts.values()) // UNITS_MAX))
    for queues in shared_out(counts, groups):
        yield QueueSplit(queues, tuple(log.parts))


def _placed(planned: LogScan, log: ScannedLog) -> tuple[tuple[str, int, int], ...]:
    """Return the parts with the physical offsets that they cover."""
    pairs = zip(log.parts, planned.log.splits, strict=False)
    return tuple((part.path, split.start, split.end) for part, split in pairs)


def _missing_items(
    directory: StoreDirectory, log: ScannedLog, first: int | None, rows: list[Row],
    unknown: list[Finding],
) -> Iterator[Finding]:  # fmt: skip
    """One finding for the keys without an item."""
    total = sum(log.items)
    if first is None or unknown:
        return
    if not rows:
        yield from no_index(directory, total, first)
        return
    missing = total - sum(row["seen"] for row in rows)
    if missing > 0:
        known = [row["missing"] for row in rows if row["missing"] is not None]
        if known:
            where = f"the first is of the record at {min(known)}"
        else:
            where = f"they are of records from {max(row['last'] for row in rows)} on"
        message = f"{missing} keys have no item, {where}"
        yield finding(directory.index_paths()[-1], INDEX_ITEM.size, "item_missing", message,
                      "warning")  # fmt: skip
