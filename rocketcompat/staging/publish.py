"""Records that come ready-made become part of an open store's log, in one step.

    result = store.publish("load-7", staged)     # what `log_staging.StagedLogWriter` described

What is guaranteed:

- **All or nothing, at most once, for ever.** A job is in the log when its commit record is made,
  entirely; an id that was published once is never published again: a second call returns the
  result of the first. So a job whose end nobody saw is simply published again.
- **Order.** Records follow each other as in `staged`, behind everything that was put before.
  Puts wait meanwhile.
- **Place.** A job that fits into the rest of the live file is put there. A larger one seals it
  with a blank and begins a file: its files come into the log by being renamed.
- **Durability** is `fsync`: log, names and record are synced when `publish` returns. Queues and
  index have the job then, from its own rows (`tails.py`); they are synced as for any put, and
  after a crash built from the log. Shards are built from the log always.
- **Readers** of this package, in any process, see all of a job or nothing of it: until it is
  finished they see the log up to where it begins.
- **A real broker must wait** until a half-published job is finished: `rocketcompat check` says
  so, and opening the store for writing (or `rocketcompat recover`) finishes it.

| step | a crash leaves |
| --- | --- |
| what was put is synced; the live file is sealed, if the job does not fit | nothing of the job |
| the job's records are written as they will stand, beside the log; synced | nothing of the job |
| the commit record is linked into place: **the atomic step** | the job, to be finished |
| files are renamed, or bytes copied, behind the log's end; synced | the job, to be finished |
| the job is noted as finished | the job |
| queues and index get theirs | the job, to be dispatched from the log |
| its staging directory is removed | the job, and a rest for the janitor |

Failures: before the record nothing has changed, and the call may be repeated. After it the log
has failed (StoreFailed) until the store is opened again, which finishes the job.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from os.path import dirname
from typing import Any

from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.messages import ReadyBatches
from rocketcompat.staging.pieces import LOG_SUFFIX, LogRecord, LogRecords, StagedPiece
from rocketcompat.staging.placing import Layout, first_place, lay_out, write_part
from rocketcompat.staging.roll_forward import roll_forward
from rocketcompat.staging.tails import tails_of
from tubestore.clock import Clock
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.errors import StoreFailed, StoreLocked, TubeStoreError, failed_write
from tubestore.staging.job_files import Batch, check_job_id, staging_directory
from tubestore.staging.placing import place_all
from tubestore.staging.roll_forward import remove_staging
from tubestore.store.publish import clean_staging


@dataclass(frozen=True, slots=True)
class LogPublishResult:
    """What became of a job; physical offsets [start, end), 0 where its record is not kept."""

    job_id: str
    #: Jobs are numbered in the order in which they were published; 0: not known any more.
    number: int
    #: It had been published before: nothing was done now.
    replayed: bool
    rows: int = 0
    start: int = 0
    end: int = 0

    @property
    def data_size(self) -> int:
        """Bytes of the log that it takes, blanks included."""
        return self.end - self.start


class BulkLoads:
    """Publishing into one log; thread-safe. What it guarantees is in the head of this file."""

    def __init__(self, log: CommitLog, root: str, vfs: Vfs, clock: Clock) -> None:
        self._log, self._root, self._vfs, self._clock = log, root, vfs, clock
        self._records = LogRecords(vfs, root)

    def publish(
        self, job_id: str, staged: Iterable[StagedPiece | Mapping[str, Any]],
        threads: int | None, dispatch: Callable[[], object], query: str | None = None,
    ) -> LogPublishResult:  # fmt: skip
        """Make a job part of the log, or return what became of it before.

        `dispatch` hands over what is in the log, while what was staged is still there.
        """
        check_job_id(job_id)
        pieces = [StagedPiece.from_json(one) for one in staged]
        batch = None if query is None else Batch.of(query, pieces)
        with self._log.held():
            found = result_of(self._records, job_id, batch)
            if found is None:
                found = _result(self._publish(job_id, pieces, threads, batch), replayed=False)
        steps: list[Callable[[], object]] = []
        if not found.replayed:
            steps = [partial(self._remove, job_id, piece.name + LOG_SUFFIX) for piece in pieces]
            if self._log.told.keeps_columns:
                steps.insert(0, dispatch)
        # Of a GiB either takes 0.1 to 0.2 s, and to remove files is to wait.
        place_all(lambda step: step(), steps, found.data_size, threads)
        remove_staging(self._vfs, self._root, job_id)
        return found

    def _remove(self, job_id: str, name: str) -> None:
        """Remove a staged file that is in the log; what cannot be removed stays for the janitor."""
        with contextlib.suppress(OSError):
            self._vfs.remove(join(staging_directory(self._root, job_id), name))

    def _publish(
        self, job_id: str, pieces: list[StagedPiece], threads: int | None, batch: Batch | None
    ) -> LogRecord:
        log, staging = self._log, staging_directory(self._root, job_id)
        try:
            file_size = log.queue.file_size
            start = first_place(log.end, sum(piece.size for piece in pieces), file_size)
            if log.uses_pool:  # its buffer stands before the file
                start = -(-start // file_size) * file_size
            layout = lay_out(self._vfs, staging, pieces, start, file_size, log.next_queue_offset)
            if pieces and start > log.end:
                log.seal()
            record = self._prepare(job_id, pieces, layout, staging, threads, batch)
        except OSError as error:
            raise failed_write(self._root, error) from error
        try:
            # Records that bring their times say nothing of how far the checkpoint may go.
            fresh = any(not piece.has_times for piece in pieces)
            tails = tails_of(self._vfs, staging, pieces, layout, log.end, record.time_ms)
            self._commit(record, layout, record.time_ms if fresh else 0, tails)
        except FileExistsError as error:
            raise StoreLocked(self._root, "another process that has just published") from error
        except BaseException as error:
            # There may be bytes behind the log's end: nothing may be put over them.
            log.fail(f"job {job_id!r} may be half published: {error}")
            if isinstance(error, OSError | TubeStoreError):
                raise StoreFailed(self._root, f"publishing {job_id!r}: {error}") from error
            raise
        return record

    def _prepare(
        self, job_id: str, pieces: list[StagedPiece], layout: Layout, staging: str,
        threads: int | None, batch: Batch | None,
    ) -> LogRecord:  # fmt: skip
        """Do everything that comes before the record, up to stable storage."""
        vfs, queue, now = self._vfs, self._log.queue, self._clock.now_ms()
        parts = layout.parts if pieces else []
        size = sum(part.size for part in parts)

        def write(place: int) -> Any:
            part = parts[place]
            path = os.path.relpath(queue.path_of(part.start), self._root)
            more = place + 1 < len(parts)
            return write_part(vfs, staging, path, part, queue.file_size, now, more=more)

        written = tuple(place_all(write, range(len(parts)), size, threads))
        if parts:
            for directory in (staging, dirname(staging), join(self._root, OWN_DIRECTORY)):
                vfs.sync_directory(directory)
        end = layout.end if parts else self._log.end
        number = self._records.finished() + 1
        record = LogRecord(
            number, job_id, now, sum(piece.rows for piece in pieces),
            parts[0].start if parts else end, end, queue.file_size, written, batch,
        )  # fmt: skip
        self._records.prepare()
        self._records.draft(record)
        return record

    def _commit(
        self, record: LogRecord, layout: Layout, timestamp: int, tails: ReadyBatches | None
    ) -> None:
        """Make the record, and everything that follows from it."""
        self._records.commit(record)
        try:
            roll_forward(self._vfs, self._root, record)
        except FileExistsError as error:
            raise StoreFailed(self._root, str(error)) from error
        self._records.finish(record)
        if record.parts:
            offsets = layout.next_offsets.items()
            self._log.adopt(record.start, record.end, record.rows, offsets, timestamp, tails)

    def clean(self, grace_ms: int) -> list[str]:
        """Remove what jobs staged that wrote nothing for `grace_ms`; returns their names."""
        return clean_staging(self._records, self._vfs, self._clock.now_ms(), grace_ms)


def result_of(
    records: LogRecords, job_id: str, batch: Batch | None = None
) -> LogPublishResult | None:
    """Return what became of a finished job, None if there is none of this id; JobTaken."""
    if not records.is_finished(job_id, batch):
        return None
    record = records.find(job_id)
    if record is None:
        return LogPublishResult(job_id, 0, True)
    return _result(record, replayed=True)


def _result(record: LogRecord, *, replayed: bool) -> LogPublishResult:
    return LogPublishResult(
        record.job_id, record.number, replayed, record.rows, record.start, record.end
    )


def abort(vfs: Vfs, root: str, job_id: str) -> None:
    """Give a job up and remove what it staged, unless it may be in the log already."""
    with contextlib.suppress(StoreFailed):
        result_of(LogRecords(vfs, root), check_job_id(job_id))
        remove_staging(vfs, root, job_id)
