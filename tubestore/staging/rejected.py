"""Rows that a store does not take, as Parquet files in a directory of the user's choice.

    <directory>/_staging/<job>/<attempt>.parquet   what a task has put aside; Spark does not read it
    <directory>/job=<job>/<attempt>.parquet        the row's columns, and `rejected_reason`

Always true:
- a job's directory is there once, whole (it gets its name by a rename), after the job is in the
  store; files of tasks and of jobs that failed are never in it;
- a job that comes again changes nothing there, and is refused if it has other rejected rows. After
  a crash between the job and the rename the directory comes when the job is run again, as a query
  does by itself;
- no process removes what another one has put aside for the same job, but the one that gives the
  job's rows their place: the other one then finds the same rows there.

The directory is no part of the store: it is written without `core/vfs.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import xxhash

from tubestore.errors import InvalidMessage, InvalidName, InvalidOption, JobTaken, MessageTooLarge
from tubestore.staging.job_files import job_directory

REASON = "rejected_reason"
OPTION = "rejectedRowsPath"
_STAGING = "_staging"


@dataclass(frozen=True, slots=True)
class RejectedFile:
    """Rows that one task has put aside: a file of `_staging`, durable."""

    path: str
    rows: int
    #: The sum of `_content_of` its rows.
    content: int


class Sieve:
    """Hands a task's batches on, and puts aside the rows that are refused. Not thread-safe."""

    def __init__(self, directory: str, job_id: str, attempt: str) -> None:
        """Nothing is made before the first row is refused; `attempt` names the file."""
        self._directory = _staging_of(directory, job_id)
        self._path = os.path.join(self._directory, f"{attempt}-{uuid.uuid4().hex[:12]}.parquet")
        self._writer: Any = None

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
            try:
                os.makedirs(self._directory, exist_ok=True)
                self._writer = pq.ParquetWriter(self._path, batch.schema)
            except OSError as error:
                reason = f"{self._directory}: {error.strerror or error}"
                raise InvalidOption(OPTION, reason) from error
        self._writer.write_batch(batch)

    def finish(self) -> RejectedFile | None:
        """Bring the file to stable storage and describe it; None if all rows were taken."""
        if self._writer is None:
            return None
        self._writer.close()
        _sync(self._path)
        return RejectedFile(self._path, *_counted([self._path]))

    def discard(self) -> None:
        """Remove the file, as far as there is one."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                os.remove(self._path)


def check_new(directory: str, job_id: str, is_published: Callable[[], bool]) -> None:
    """Raise InvalidOption if rejected rows of a job that the store does not know are there."""
    place = place_of(directory, job_id)
    # In this order: another process may publish the same job now, and give its rows their place.
    if os.path.lexists(place) and not is_published():
        text = f"{place} is there, and the store has no such job: give each store its own directory"
        raise InvalidOption(OPTION, text)


def publish(directory: str, job_id: str, files: Sequence[RejectedFile]) -> int:
    """Give the rows of a published job their place; returns how many it has there.

    JobTaken if it has other ones there; OSError.
    """
    place = place_of(directory, job_id)
    if files and not os.path.lexists(place):
        try:
            _put(directory, job_id, files)
        except OSError:
            if not os.path.lexists(place):
                raise  # else another process has published the same meanwhile
    rows, content = sum(f.rows for f in files), sum(f.content for f in files) % (1 << 64)
    there, content_there = _counted(_files_in(place))
    if (rows, content) != (there, content_there):
        text = f"it was published with {there} rejected rows, and {rows} are rejected now"
        if rows == there:
            text = f"it was published with {there} rejected rows, and other ones are rejected now"
        raise JobTaken(job_id, f"{text} ({place}); a job with other rows needs an id of its own")
    discard(directory, job_id)
    return there


def _put(directory: str, job_id: str, files: Sequence[RejectedFile]) -> None:
    """Bring files to the place of a job, all at once."""
    ready = os.path.join(_staging_of(directory, job_id), f"ready-{uuid.uuid4().hex}")
    os.mkdir(ready)
    for file in files:
        os.rename(file.path, os.path.join(ready, os.path.basename(file.path)))
    _sync(ready)
    os.rename(ready, place_of(directory, job_id))
    _sync(directory)


def _files_in(place: str) -> list[str]:
    names = os.listdir(place) if os.path.isdir(place) else []
    return [os.path.join(place, name) for name in sorted(names) if name.endswith(".parquet")]


def _counted(paths: Sequence[str]) -> tuple[int, int]:
    """Return how many rows files have, and the sum of their contents, modulo 2**64."""
    import pyarrow.parquet as pq

    rows = content = 0
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                rows, content = rows + batch.num_rows, content + _content_of(batch)
    return rows, content % (1 << 64)


def _content_of(batch: pa.RecordBatch) -> int:
    """Return a number that the same rows have, whatever their order and the reasons."""
    names = sorted(name for name in batch.schema.names if name != REASON)
    columns = [_plain(batch.column(name)).to_pylist() for name in names]
    return sum(
        xxhash.xxh3_64_intdigest(repr((names, row)).encode()) for row in zip(*columns, strict=True)
    )


def _plain(column: Any) -> Any:
    """Return a column as bytes and whole numbers, which Python shows the same everywhere."""
    return column.cast(_plain_type(column.type))


def _plain_type(kind: Any) -> Any:
    of = pa.types
    if of.is_string(kind) or of.is_large_string(kind) or of.is_large_binary(kind):
        return pa.binary()
    if of.is_timestamp(kind):
        return pa.int64()
    if of.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if of.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if of.is_struct(kind):
        return pa.struct([(field.name, _plain_type(field.type)) for field in kind])
    return kind


def count(directory: str, job_id: str) -> int:
    """Return how many rows of a job were rejected."""
    import pyarrow.parquet as pq

    files = _files_in(place_of(directory, job_id))
    return sum(pq.read_metadata(path).num_rows for path in files)


def discard(directory: str, job_id: str) -> None:
    """Remove what tasks put aside of a job that has its rows in their place.

    What stays does no harm.
    """
    shutil.rmtree(_staging_of(directory, job_id), ignore_errors=True)
    with contextlib.suppress(OSError):  # other jobs are at work
        os.rmdir(os.path.join(directory, _STAGING))


def forget(directory: str, job_id: str, files: Sequence[RejectedFile]) -> None:
    """Remove what tasks of a failed run have put aside, and nothing of another run of its job."""
    for file in files:
        with contextlib.suppress(OSError):
            os.remove(file.path)
    with contextlib.suppress(OSError):  # others are at work
        os.rmdir(_staging_of(directory, job_id))
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
