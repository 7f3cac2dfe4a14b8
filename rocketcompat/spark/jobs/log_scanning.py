"""The whole log scanned in tasks: the parts of its splits, and what the log is, joined.

Nothing here imports Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rocketcompat.commitlog.walk import ENDS, Gap
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.spark.jobs.rebuild_tasks import PartOrder, ScanJob, ScanSplit
from rocketcompat.spark.planning import LogPlan
from tubestore.spark.kit.running import Done, DoneSplits, Row, SparkJob, Watch, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class LogScan:
    """A scan that is planned, with what its tasks write in a directory."""

    directory: StoreDirectory
    work_directory: str
    log: LogPlan

    @property
    def options(self) -> dict[str, Any]:
        """What tasks open the directory with."""
        return {**self.directory.inferred, **self.directory.options}

    def scanned(self, spark: SparkSession, watch: Watch) -> tuple[Done, ScannedLog]:
        """Scan the log: the rows of the tasks, and what they have seen."""
        work, directory = Path(self.work_directory), self.directory
        job = ScanJob(directory.root, self.options, str(work))
        done = run_wave(spark, "scan", job, self._splits(), work, watch)
        return done, joined(directory.log.min_offset, done.rows)

    def _splits(self) -> list[ScanSplit]:
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


class WaveJob(SparkJob, Protocol):
    """A job of which some splits may have been worked on by a run that was killed."""

    def holds(self, row: Row) -> bool:
        """True if the part that a row names is still there, whole."""


def run_wave(
    spark: SparkSession, name: str, job: WaveJob, splits: Sequence[Any], work: Path, watch: Watch
) -> Done:
    """Run one of the waves, with a journal in the work directory."""
    journal = DoneSplits(work / f"{name}.jsonl", job, anew=True, holds=job.holds)
    return run(spark, job, splits, journal=journal, watch=watch)


@dataclass(slots=True)
class ScannedLog:
    """The log as its parts describe it, in order."""

    end: int
    records: int = 0
    regions: list[Gap] = field(default_factory=list)
    parts: list[PartOrder] = field(default_factory=list)
    items: list[int] = field(default_factory=list)
    last_item: int = -1
    last_record: int = -1
    last_timestamp: int = 0


def joined(start: int, rows: Sequence[Row]) -> ScannedLog:
    """Join what the tasks saw; what is behind the log's end does not count."""
    log = ScannedLog(start)
    last: Gap | None = None
    for row in rows:
        regions = [Gap(**one) for one in row["regions"]]
        goes_on = bool(last and regions and regions[0].start < last.end)
        damaged = (last.start, last.end - last.start) if last else None
        log.parts.append(PartOrder(row["path"], damaged, goes_on))
        log.items.append(row["items"])
        log.records += row["records"]
        if row["records"] or regions:
            log.end = max(log.end, row["end"])
        log.last_item = max(log.last_item, row["last_item"])
        log.last_record = max(log.last_record, row["last_record"])
        log.last_timestamp = max(log.last_timestamp, row["last_timestamp"])
        for region in regions[1:] if goes_on else regions:
            log.regions.append(region)
            last = last if region.state in ENDS else region
        if row["ends"]:
            break
    return log
