"""Jobs of which the tasks stage files and the end is one publish: import, copies, conversions.

And what became of the jobs of a store, as its commit records have them: one, or all that are kept.

The progress of a job is recorded beside its staged files, in `<root>/.tubestore/staging/<job>/`: a
job that was killed and is run again with its id stages only what is missing there, from whatever
machine it is submitted. With the publish both are gone, and the id is taken for ever.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from tubestore.spark.kit.running import (
    Done,
    DoneSplits,
    Row,
    SparkJob,
    Watch,
    digest_of,
    is_cluster,
    is_here,
    run,
    silent,
    work_in_tasks,
)
from tubestore.staging import rejected
from tubestore.staging.commit_records import JobRecords
from tubestore.staging.job_files import staging_directory
from tubestore.staging.placing import Spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JOURNAL = "done.jsonl"
#: Of a table of `history_of`.
_SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("job_id", pa.string()),
        ("time", pa.timestamp("ms", "UTC")),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("query", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a job: `rows` messages; `replayed` if it had been published before.

    `done` has a row a split; none if nothing was left to do.
    """

    job_id: str
    rows: int
    replayed: bool
    done: Done


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a DataFrame that was written: its job, with its rows and their places."""

    job_id: str
    #: It had been written before: nothing was done now.
    replayed: bool
    #: Messages; None if the store does not keep the job's record any more.
    rows: int | None = None
    #: The data files that have them, as paths.
    files: tuple[str, ...] = ()
    #: Offsets [first, end) by shard, `<topic>-<store id>`; physical ones by "log" for a log.
    offsets: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: Rows that the store did not take, in the directory of the option `rejectedRowsPath`.
    rejected: int = 0


def rejected_rows(directory: str | None, job_id: str) -> int:
    """Return how many rows of a published job were rejected; 0 without a directory for them."""
    return 0 if directory is None else rejected.count(directory, job_id)


def new_job_id() -> str:
    """Return an id that no other job has."""
    return f"spark-{uuid.uuid4()}"


def history_of(records: JobRecords[Any]) -> pa.Table:
    """Return a row for each finished job that has its record, the oldest first."""
    rows = [
        {
            "number": record.number,
            "job_id": record.job_id,
            "time": record.time_ms,
            "rows": record.rows,
            "bytes": record.data_size,
            "query": None if record.batch is None else record.batch.query,
        }
        for record in records.kept()
    ]
    return pa.Table.from_pylist(rows[::-1], _SCHEMA)


class Replayable(Protocol):
    """What became of a publish."""

    @property
    def replayed(self) -> bool:
        """It had been published before: nothing was done now."""

    @property
    def rows(self) -> int:
        """Messages of the job; 0 if they are not known any more."""


class Publishes(Protocol):
    """Where staged files go."""

    @property
    def path(self) -> str:
        """The store's directory."""

    def is_published(self, job_id: str) -> bool:
        """True if a job of this name is in the store already."""

    def publish(
        self,
        job_id: str,
        staged: list[Any],
        query: str | None = None,
        spread: Spread | None = None,
    ) -> Replayable:
        """Make files part of the store, in this order; `query`: the query of the batch."""


class StagesFiles(Publishes, Protocol):
    """What tasks stage for, and what their files are published by."""

    def described(self, given: Mapping[str, Any]) -> Any:
        """Return what a task staged, from its JSON object; it has `files`: names and bytes."""


def load_arguments(job: Any) -> dict[str, Any]:
    """Return what identifies a job: its id, and what its options read and write."""
    options = {"read": job.options} if hasattr(job, "options") else {}
    digests = {
        name: digest_of(value) for name, value in (options | {"write": job.load.options}).items()
    }
    return {"job_id": job.job_id, "options": digests}


def staged_row(number: int, staged: Sequence[Any], left_out: int = 0, **more: Any) -> Row:
    """Return the row of a split: what was staged, and how many messages could not be taken."""
    rows, files = sum(one.rows for one in staged), [one.as_json() for one in staged]
    return {"split": number, **more, "rows": rows, "left_out": left_out, "files": files}


def stage_and_publish(
    spark: SparkSession, job: SparkJob, splits: Sequence[Any], load: StagesFiles, job_id: str,
    watch: Watch = silent,
) -> Published:  # fmt: skip
    """Stage splits in tasks and publish what they staged, in the order of the splits."""
    if load.is_published(job_id):
        known = load.publish(job_id, [])
        return Published(job_id, known.rows, known.replayed, Done([], 0, 0.0))
    directory = staging_directory(os.path.abspath(load.path), job_id)
    journal = DoneSplits(
        Path(directory, _JOURNAL), job, anew=True, holds=lambda row: _is_there(load, directory, row)
    )
    done = run(spark, job, splits, journal=journal, watch=watch)
    files = [load.described(file) for row in done.rows for file in row["files"]]
    result = load.publish(job_id, files, spread=spread_over(spark, splits))
    return Published(job_id, result.rows, result.replayed, done)


def spread_over(spark: SparkSession, splits: Sequence[Any] = ()) -> Spread | None:
    """Return what works on the parts of a publish in tasks, one a part; None on one machine.

    There the driver's threads have the same cores, and rewrite files in place: half the time.
    """
    if is_here(spark, splits) or not is_cluster(spark):
        return None
    return partial(work_in_tasks, spark)


def _is_there(load: StagesFiles, directory: str, row: Row) -> bool:
    """True if the files that a row describes are whole."""
    for staged in map(load.described, row["files"]):
        for name, size in staged.files:
            try:
                if os.path.getsize(os.path.join(directory, name)) != size:
                    return False
            except OSError:
                return False
    return True
