"""The sinks: what Spark calls to write a DataFrame or a stream into a store, of either kind.

| method | process |
| --- | --- |
| `__init__` | once a job on the driver's machine; the object goes to the tasks and to `commit` |
| `write` | a task: stages files, which readers do not see |
| `commit` | the driver's machine, when all tasks are done: publishes all of them, in one step |
| `publish` | for a batch of `write` instead of that: the driver, which can ask Spark for tasks |
| `abort` | the driver's machine, when a task failed, or `commit` did |
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tubestore.errors import InvalidOption, JobTaken
from tubestore.spark.kit.publishing import Publishes, new_job_id
from tubestore.spark.kit.tasks import note, plain_errors
from tubestore.staging import rejected
from tubestore.staging.placing import Spread
from tubestore.staging.rejected import RejectedFile, Sieve


class AnyLoad(Publishes, Protocol):
    """How rows come into a store: staged by tasks, published once. Picklable."""

    @property
    def rejected_path(self) -> str | None:
        """Where rows go that the store does not take; None: they fail the job."""

    def stage(
        self,
        job_id: str,
        attempt: str,
        batches: Iterable[pa.RecordBatch],
        *,
        content: bool = False,
        sieve: Sieve | None = None,
    ) -> list[Any]:
        """Write rows to staged files; return their descriptions.

        `content`: with a digest that identifies their rows; `sieve` gets those that are refused.
        """

    def abort(self, job_id: str, staged: list[Any]) -> None:
        """Remove what this run of a job staged, unless it may be published already."""


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged."""

    job_id: str
    files: list[Any]
    #: The query of the batch, as Spark names it: by its checkpoint.
    query: str | None = None
    rejected: RejectedFile | None = None


def appended_schema(schema: StructType, overwrite: bool) -> pa.Schema:
    """Return the Arrow schema of what is written; InvalidOption unless it is appended."""
    if overwrite:
        reason = "overwrite (or complete): a log is only appended to; use append"
        raise InvalidOption("mode", reason)
    return to_arrow_schema(schema, timezone="UTC")


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "outside of a task"
    return context


def _stage(
    load: AnyLoad, job_id: str, batches: Iterator[pa.RecordBatch], query: str | None = None
) -> Staged:
    """Stage one partition's rows.

    Also those of a job that was published before: only so it shows whether it has the same rows.
    """
    context = _context()
    attempt = f"{context.partitionId()}-{context.taskAttemptId()}"
    if load.rejected_path is None:
        return Staged(job_id, load.stage(job_id, attempt, batches, content=True), query)
    sieve = Sieve(load.rejected_path, job_id, attempt)
    try:
        files = load.stage(job_id, attempt, batches, content=True, sieve=sieve)
        return Staged(job_id, files, query, sieve.finish())
    except BaseException:
        sieve.discard()
        raise


def _handed_in(
    messages: Sequence[WriterCommitMessage | None],
) -> tuple[list[Any], list[RejectedFile]]:
    """Return what tasks have staged, in their order, and the files of what they put aside."""
    staged = [message for message in messages if isinstance(message, Staged)]
    files = [file for one in staged for file in one.files]
    return files, [one.rejected for one in staged if one.rejected is not None]


def publish(
    load: AnyLoad,
    job_id: str,
    messages: Sequence[WriterCommitMessage | None],
    query: str | None = None,
    spread: Spread | None = None,
) -> bool:
    """Publish what tasks staged, in the order of the DataFrame's partitions.

    Returns whether the job was there already; JobTaken if it has other rows, or other rejected
    ones.
    """
    files, aside = _handed_in(messages)
    if load.rejected_path is not None:
        rejected.check_new(load.rejected_path, job_id, lambda: load.is_published(job_id))
    result = load.publish(job_id, files, query, spread)
    if result.replayed and result.rows and not files:
        reason = f"it was published with {result.rows} messages, and now there is none"
        raise JobTaken(job_id, f"{reason}; a job with other messages needs an id of its own")
    if result.replayed:
        note(f"{load.path}: job {job_id} was there already; nothing was written")
    if load.rejected_path is None:
        return result.replayed
    if count := rejected.publish(load.rejected_path, job_id, aside):
        place = rejected.place_of(load.rejected_path, job_id)
        note(f"{load.path}: job {job_id}: {count} rows were not taken, they are in {place}")
    return result.replayed


def abort(load: AnyLoad, job_id: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Remove what tasks of a failed run staged and put aside, unless it may be published already.

    Nothing else: another driver may be about to publish the same job. What tasks left that were
    killed goes with the job, or by the janitor.
    """
    files, aside = _handed_in(messages)
    load.abort(job_id, files)
    if load.rejected_path is not None:
        rejected.forget(load.rejected_path, job_id, aside)


class StoreWriter(DataSourceArrowWriter):
    """Appends a DataFrame, all of it or nothing."""

    def __init__(self, load: AnyLoad, job_id: str | None, handover: str | None = None) -> None:
        """`handover`: a file that gets what tasks staged, for `publish` in another process."""
        self.load, self._handover = load, handover
        self.job_id = new_job_id() if job_id is None else job_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one partition's rows."""
        with plain_errors():
            return _stage(self.load, self.job_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish, or leave that to the process that called `write`."""
        with plain_errors():
            if self._handover is None:
                publish(self.load, self.job_id, messages)
            else:
                Path(self._handover).write_bytes(pickle.dumps(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what was staged."""
        abort(self.load, self.job_id, messages)


class StoreStreamWriter(DataSourceStreamArrowWriter):
    """Appends micro-batches, each one time only: a batch is named by its query and its number."""

    def __init__(self, load: AnyLoad, application: str | None) -> None:
        self.load, self.application = load, application

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one partition's rows of a batch."""
        context = _context()
        number = context.getLocalProperty("streaming.sql.batchId")
        query = context.getLocalProperty("sql.streaming.queryId")
        job_id = f"{self.application or query}:{number}"
        with plain_errors():
            return _stage(self.load, job_id, iterator, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish a batch; one without tasks has no rows."""
        for job_id, query in {(m.job_id, m.query) for m in messages if isinstance(m, Staged)}:
            with plain_errors():
                publish(self.load, job_id, messages, query)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what a batch staged."""
        for job_id in {m.job_id for m in messages if isinstance(m, Staged)}:
            abort(self.load, job_id, messages)
