"""Rows that a store does not take, as Parquet files in a directory of the user's choice.

    <directory>/_staging/<job>/<attempt>.parquet   what a task has put aside; Spark does not read it
    <directory>/job=<job>/<attempt>.parquet        the row's columns, and `rejected_reason`

Always true:
- a job's directory is there once, whole (it gets its name by a rename), after the job is in the
  store; files of tasks and of jobs that failed are never in it;
- a job that comes again changes nothing there. After a crash between the job and the rename the
  directory comes when the job is run again, as a query does by itself.

The directory is no part of the store: it is written without `core/vfs.py`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tubestore.errors import InvalidMessage, InvalidName, InvalidOption, MessageTooLarge
from tubestore.staging.job_files import job_directory

REASON = "rejected_reason"
OPTION = "rejectedRowsPath"
_STAGING = "_staging"


@dataclass(frozen=True, slots=True)
class RejectedFile:
    """Rows that one task has put aside: a file of `_staging`, durable."""

    path: str
    rows: int


class Sieve:
    """Hands a task's batches on, and puts aside the rows that are refused. Not thread-safe."""

    def __init__(self, directory: str, job_id: str, attempt: str) -> None:
        """Nothing is made before the first row is refused; `attempt` names the file."""
        self._directory = _staging_of(directory, job_id)
        self._path = os.path.join(self._directory, f"{attempt}-{uuid.uuid4().hex[:12]}.parquet")
        self._writer: Any = None
        self._rows = 0

    def take(self, batch: pa.RecordBatch, put: Callable[[pa.RecordBatch], object]) -> None:
        """Call `put` with the rows of a batch, in their order, in as few parts as it takes.

        A part that `put` refuses (InvalidMessage, InvalidName, MessageTooLarge) it must not have
        taken; it is halved until the rows that are refused are alone. OSError.
        """
        rows: list[int] = []
        reasons: list[str] = []
        waiting = [(0, batch.num_rows)]
        while waiting:
            first, count = waiting.pop()
            # A copy: the values of nested columns of a slice are those of the whole batch.
            whole = count == batch.num_rows
            part = batch if whole else batch.take(pa.array(range(first, first + count)))
            try:
                put(part)
            except (InvalidMessage, InvalidName, MessageTooLarge) as error:
                if count == 1:
                    rows.append(first)
                    reasons.append(re.sub(r"\brow 0: ", "", str(error)))
                else:
                    half = count // 2
                    waiting += [(first + half, count - half), (first, half)]
        if rows:
            self._put_aside(batch.take(pa.array(rows)).append_column(REASON, pa.array(reasons)))

    def _put_aside(self, batch: pa.RecordBatch) -> None:
        import pyarrow.parquet as pq

        if self._writer is None:
            os.makedirs(self._directory, exist_ok=True)
            self._writer = pq.ParquetWriter(self._path, batch.schema)
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def finish(self) -> RejectedFile | None:
        """Bring the file to stable storage and describe it; None if all rows were taken."""
        if self._writer is None:
            return None
        self._writer.close()
        _sync(self._path)
        return RejectedFile(self._path, self._rows)

    def discard(self) -> None:
        """Remove the file, as far as there is one."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                os.remove(self._path)


def check_new(directory: str, job_id: str) -> None:
    """Raise InvalidOption if rejected rows of a job that the store does not know are there."""
    place = place_of(directory, job_id)
    if os.path.lexists(place):
        text = f"{place} is there, and the store has no such job: give each store its own directory"
        raise InvalidOption(OPTION, text)


def publish(directory: str, job_id: str, files: Sequence[RejectedFile]) -> int:
    """Give the rows of a published job their place; returns how many it has there. OSError."""
    place, staging = place_of(directory, job_id), _staging_of(directory, job_id)
    if files and not os.path.lexists(place):
        ready = os.path.join(staging, f"ready-{uuid.uuid4().hex}")
        os.mkdir(ready)
        for file in files:
            os.rename(file.path, os.path.join(ready, os.path.basename(file.path)))
        _sync(ready)
        try:
            os.rename(ready, place)
        except OSError as error:  # another process has published the same
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        _sync(directory)
    discard(directory, job_id)
    return count(directory, job_id)


def count(directory: str, job_id: str) -> int:
    """Return how many rows of a job were rejected."""
    import pyarrow.parquet as pq

    place = place_of(directory, job_id)
    names = os.listdir(place) if os.path.isdir(place) else []
    return sum(pq.read_metadata(os.path.join(place, name)).num_rows for name in names)


def discard(directory: str, job_id: str) -> None:
    """Remove what tasks of a job have put aside and is not published; what stays does no harm."""
    shutil.rmtree(_staging_of(directory, job_id), ignore_errors=True)
    with contextlib.suppress(OSError):  # other jobs are at work
        os.rmdir(os.path.join(directory, _STAGING))


def place_of(directory: str, job_id: str) -> str:
    """Return the directory of a job's rejected rows."""
    return os.path.join(directory, f"job={job_directory(job_id)}")


def _staging_of(directory: str, job_id: str) -> str:
    return os.path.join(directory, _STAGING, job_directory(job_id))


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
