"""Ready-made records become part of an open store's log, in one step.

result = store.publish("load-7", staged)     # descriptions by `staging.writer.StagedLogWriter`

What is guaranteed:

- **All or nothing, at most once, for ever.** A job is in the log, entirely, once its commit record
  is made. An id that was published once is never published again: a second call returns the result
  of the first. So a job with an unknown end is simply published again.
- **Order.** Records follow each other as in `staged`, behind everything that was put before.
  Puts wait meanwhile.
- **Place.** A job that fits into the rest of the live file is put there. A larger one seals it
  with a blank and begins a file: its files come into the log by being renamed.
- **Durability** is `fsync`: log, names and record are synced when `publish` returns. Queues and
  index have the job then, from its own rows (`tails.py`); they are synced as for any put, and
  after a crash built from the log. Shards are built from the log always.
- **Readers** of this package, in any process, see all of a job or nothing of it: until it is
  finished they see the log up to where it begins.
- **A RocketMQ broker must wait** until a half-published job is finished: `rocketcompat check`
  reports one, and opening the store for writing (or `rocketcompat recover`) finishes it.

The steps, with what a crash after each leaves, are those of every job
(`tubestore.staging.publisher`). Here what was put is synced first, and the live file is sealed if
the job does not fit; queues and index get the job before its staging directory is removed. After a
failure behind the record the log refuses puts until the store is opened again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rocketcompat.commitlog.appended import Appended
from rocketcompat.commitlog.commit_log import CommitLog
from rocketcompat.messages import ReadyBatches
from rocketcompat.staging.pieces import LOG_SUFFIX, LogRecord, LogRecords, StagedPiece
from rocketcompat.staging.placing import (
    Layout,
    Writing,
    first_place,
    lay_out,
    miswritten,
    write_anew,
    write_part,
)
from rocketcompat.staging.roll_forward import roll_forward
from rocketcompat.staging.tails import tails_of
from tubestore.clock import Clock
from tubestore.core.paths import join
from tubestore.core.vfs import Vfs
from tubestore.disks.writer_lock import WriterLock
from tubestore.staging.job_files import Batch, check_job_id, content_sum, staging_directory
from tubestore.staging.placing import SPREAD_BYTES, Spread, place_all, spread_out
from tubestore.staging.publisher import Publisher


@dataclass(frozen=True, slots=True)
class LogPublishResult:
    """The result of a job; physical offsets [start, end), 0 if its record is not kept."""

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
    """Publishes into one log; thread-safe. The head of this file has the guarantees."""

    def __init__(
        self,
        log: CommitLog,
        appended: Appended,
        root: str,
        vfs: Vfs,
        clock: Clock,
        writer: WriterLock | None = None,
    ) -> None:
        self._log, self._appended, self._vfs, self._clock = log, appended, vfs, clock
        self._publisher = Publisher(vfs, clock, LogRecords(vfs, root, writer), threading.Lock())

    def publish(
        self, job_id: str, staged: Iterable[StagedPiece | Mapping[str, Any]],
        threads: int | None, dispatch: Callable[[], object], query: str | None = None,
        spread: Spread | None = None,
    ) -> LogPublishResult:  # fmt: skip
        """Make a job part of the log, or return its earlier result.

        `dispatch` hands over what is in the log, while the staged files are still there.
        """
        check_job_id(job_id)
        pieces = [StagedPiece.from_json(one) for one in staged]
        batch = None if query is None else Batch.of(query, pieces)
        root = self._publisher.records.root
        job = _LogJob(
            job_id,
            batch,
            pieces,
            self._log,
            self._appended,
            root,
            self._vfs,
            self._clock,
            threads,
            dispatch,
            self._publisher.records.check_writer,
            spread,
        )
        record, new = self._publisher.publish(job)
        if record is None:
            return LogPublishResult(job_id, 0, True)
        return LogPublishResult(
            job_id, record.number, not new, record.rows, record.start, record.end
        )

    def clean(self, grace_ms: int) -> list[str]:
        """Remove files of jobs that staged nothing for `grace_ms`; returns the jobs' names."""
        return self._publisher.clean(grace_ms)


@dataclass(slots=True)
class _LogJob:
    """A job for a log, on its way through `tubestore.staging.publisher`."""

    job_id: str
    batch: Batch | None
    pieces: list[StagedPiece]
    log: CommitLog
    appended: Appended
    root: str
    vfs: Vfs
    clock: Clock
    threads: int | None
    #: Hands over to the followers what is in the log.
    dispatch: Callable[[], object]
    #: Raises Overtaken if another process has opened the root for writing since.
    check_writer: Callable[[], None]
    #: Writes large jobs in other processes.
    spread: Spread | None
    layout: Layout = field(default_factory=lambda: Layout([], {}))
    tails: ReadyBatches | None = None

    @property
    def rows(self) -> int:
        """Messages that are staged."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def content(self) -> str:
        """The sum of their contents, if all pieces have one."""
        return content_sum(self.pieces)

    def held(self) -> AbstractContextManager[None]:
        """Keep all others from putting; everything that was put is on stable storage."""
        return self.log.held()

    def write(self, number: int) -> LogRecord:
        """Write the job's records beside the log, with their offsets in it, and sync them."""
        log, vfs, pieces, staging = self.log, self.vfs, self.pieces, self._staging
        queue, now = log.queue, self.clock.now_ms()
        file_size = queue.file_size
        start = first_place(log.end, sum(piece.size for piece in pieces), file_size)
        if log.uses_pool:  # its buffer comes before the file
            start = -(-start // file_size) * file_size
        self.layout = lay_out(vfs, staging, pieces, start, file_size, log.next_queue_offset)
        parts = self.layout.parts if pieces else []
        size = sum(part.size for part in parts)
        spread = self.spread if size >= SPREAD_BYTES else None
        ending = "" if spread is None else f"-{uuid.uuid4().hex[:12]}"

        writings = []
        for place, part in enumerate(parts, 1):
            path = os.path.relpath(queue.path_of(part.start), self.root)
            more = place < len(parts)
            writings.append(Writing(staging, path, part, file_size, now, more, ending))
        if spread is not None:
            check = partial(miswritten, vfs)
            written = tuple(spread_out(spread, write_anew, writings, check))
            for writing, one in zip(writings, written, strict=True):
                vfs.rename(writing.target, join(staging, one.name))
        else:
            written = tuple(place_all(partial(write_part, vfs), writings, size, self.threads))
        if pieces and start > log.end:
            self.check_writer()
            log.seal()
        self.tails = tails_of(vfs, staging, pieces, self.layout, log.end, now)
        end = self.layout.end if parts else log.end
        return LogRecord(
            number, self.job_id, now, sum(piece.rows for piece in pieces),
            parts[0].start if parts else end, end, file_size, written, self.batch,
            self.content,
        )  # fmt: skip

    def roll_forward(self, record: LogRecord) -> None:
        """Rename the files, or copy the bytes, behind the log's end."""
        roll_forward(self.vfs, self.root, record)

    def adopt(self, record: LogRecord) -> None:
        """Move the log's end behind the job."""
        if record.parts:
            # Records that bring their times do not move the checkpoint's time.
            fresh = any(not piece.has_times for piece in self.pieces)
            offsets, timestamp = self.layout.next_offsets.items(), record.time_ms if fresh else 0
            count, tails = record.rows, self.tails
            self.log.adopt(record.start, record.end, count, offsets, timestamp, tails)

    def fail(self, reason: str) -> None:
        """Refuse puts: they could go over bytes of the job."""
        self.log.refusals.fail(reason)

    def settle(self, record: LogRecord) -> None:
        """Give queues and index their parts, and remove the staged files meanwhile.

        Of a GiB either takes 0.1 to 0.2 s, and removing files is mostly waiting.
        """
        steps: list[Callable[[], object]] = [
            partial(self._remove, piece.name + LOG_SUFFIX) for piece in self.pieces
        ]
        if self.appended.keeps_columns:
            steps.insert(0, self.dispatch)
        place_all(lambda step: step(), steps, record.end - record.start, self.threads)

    @property
    def _staging(self) -> str:
        return staging_directory(self.root, self.job_id)

    def _remove(self, name: str) -> None:
        """Remove a staged file that is in the log; what cannot be removed stays for the janitor."""
        with contextlib.suppress(OSError):
            self.vfs.remove(join(self._staging, name))
