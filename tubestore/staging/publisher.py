"""Takes jobs of ready-made files into an open store: one sequence, for shards and for a log.

The steps, and what a crash after each leaves:

| step | a crash leaves |
| --- | --- |
| the writer's generation is compared (`disks/writer_lock.py`) | nothing of the job |
| `held`: the end of the store is written, synced and kept from moving | nothing of the job |
| `write`: the files are written as they will be behind the end; synced | nothing of the job |
| their names are synced; the commit record is drafted | nothing of the job |
| the commit record is linked into place: **the atomic step** | the job, to be finished |
| the generation is compared once more | the job, to be finished |
| `roll_forward`: the files come to their places behind the end; synced | the job, to be finished |
| the job is noted as finished | the job |
| `adopt`: the open store takes the files over, and its readers see them | the job |
| the generation is compared a last time | the job |
| `settle`: indexes and caches are filled from what is still staged | the job |
| the rest of the staging directory is removed | the job, and a rest for the janitor |

Failures: before the record nothing has changed, and the call may be repeated. After it the store
has failed (`fail`, StoreFailed) until it is opened again, which finishes the job.

Writers that the lock does not keep apart: the record, and the note that a job is finished, are
linked and renamed from the directory of the writer's generation, which the next writer removes. So
a writer that lost the lock publishes nothing (Overtaken), however long it was stopped and wherever.
If it lost it after the record, the next writer finishes the job, and what this one still moves are
the same bytes to the same places. What can go wrong is what a writer that was stopped *between* a
comparison and its next write does then: it recovers a shard that it opens, or writes to indexes.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from os.path import dirname
from typing import Any, Generic, Protocol

from tubestore.clock import Clock
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.trees import remove_tree
from tubestore.core.vfs import Vfs
from tubestore.disks.writer_lock import Overtaken
from tubestore.errors import JobTaken, StoreFailed, StoreLocked, TubeStoreError, failed_write
from tubestore.record.names import STAGING_DIRECTORY
from tubestore.staging.commit_records import JobRecords, R
from tubestore.staging.job_files import Batch, staging_directory
from tubestore.staging.roll_forward import remove_staging


class Job(Protocol[R]):
    """A job that is published: how its kind of store takes it. See the head for each step."""

    job_id: str
    #: The query that the job is a micro-batch of, if it is one.
    batch: Batch | None

    @property
    def rows(self) -> int:
        """Return the number of messages that are staged for it."""

    @property
    def content(self) -> str:
        """Return the `content_sum` of what is staged, "" if that is not known."""

    def held(self) -> AbstractContextManager[object]:
        """Keep all other writers from the end of the store."""

    def write(self, number: int) -> R:
        """Write and sync the files of the job, which is the `number`th; returns its record."""

    def roll_forward(self, record: R) -> None:
        """Bring the files to their places, durably."""

    def adopt(self, record: R) -> None:
        """Show the files to the open store."""

    def fail(self, reason: str) -> None:
        """Refuse everything that would go behind the old end."""

    def settle(self, record: R) -> None:
        """Fill indexes and caches; other writers are at work again."""


class Publisher(Generic[R]):
    """Publishes the jobs of one open store, and removes what given-up jobs have left.

    `lock` keeps the store's other threads from publishing at the same time.
    """

    def __init__(
        self, vfs: Vfs, clock: Clock, records: JobRecords[R], lock: AbstractContextManager[Any]
    ) -> None:
        self._vfs, self._clock, self.records, self._lock = vfs, clock, records, lock

    def publish(self, job: Job[R]) -> tuple[R | None, bool]:
        """Return a job's record (None if it is not kept any more), and whether it is new.

        JobTaken; DiskFull; Overtaken if another process has opened the store for writing, and
        StoreLocked if it published first; StoreFailed.
        """
        with self._lock:
            new = not self.records.is_finished(job.job_id, job.batch)
            if new:
                self.records.check_writer()
                with job.held():
                    record: R | None = (made := self._publish(job))
                job.settle(made)
            else:
                record = self.records.find(job.job_id)
                if record is not None and job.rows:
                    _check_same(job, record)
            remove_staging(self._vfs, self.records.root, job.job_id)
        return record, new

    def _publish(self, job: Job[R]) -> R:
        """Publish a job that is new, while the end of the store is held."""
        records, root = self.records, self.records.root
        try:
            record = job.write(records.finished() + 1)
            if record.rows:
                staging = staging_directory(root, job.job_id)
                for directory in (staging, dirname(staging), join(root, OWN_DIRECTORY)):
                    self._vfs.sync_directory(directory)
            records.prepare()
            records.draft(record)
        except OSError as error:
            raise failed_write(root, error) from error
        recorded = False
        try:
            records.commit(record)
            recorded = True
            records.check_writer()
            job.roll_forward(record)
            records.finish(record)
            job.adopt(record)
            records.check_writer()
        except BaseException as error:
            if not recorded and isinstance(error, Overtaken):
                raise
            if not recorded and isinstance(error, FileExistsError):
                raise StoreLocked(root, "another process that has just published") from error
            # There may be files or bytes behind the end that the open store has no account of.
            job.fail(f"job {job.job_id!r} may be half published: {error}")
            if isinstance(error, OSError | TubeStoreError):
                raise StoreFailed(root, f"publishing {job.job_id!r}: {error}") from error
            raise
        return record

    def clean(self, grace_ms: int) -> list[str]:
        """Remove staging directories in which nothing was written for `grace_ms`; returns them.

        They come from jobs that were given up, and from slow tasks of a job that went on writing.
        """
        with self._lock:
            vfs, root, pending = self._vfs, self.records.root, self.records.pending()
            kept = {staging_directory(root, pending.job_id)} if pending is not None else set()
            directory = join(root, OWN_DIRECTORY, STAGING_DIRECTORY)
            newest_ms = self._clock.now_ms() - grace_ms
            removed = []
            for name, is_directory, _ in vfs.entries(directory):
                path = join(directory, name)
                if is_directory and path not in kept and _last_written(vfs, path) <= newest_ms:
                    with contextlib.suppress(OSError):
                        remove_tree(vfs, path)
                    removed.append(name)
            return removed


def _check_same(job: Job[R], record: R) -> None:
    """Raise JobTaken for a job that comes again with other messages."""
    text = f"it was published with {record.rows} messages, and {job.rows} are staged now"
    if job.rows == record.rows:
        if not job.content or not record.content or job.content == record.content:
            return
        text = f"it was published with {record.rows} messages, and other ones are staged now"
    raise JobTaken(job.job_id, f"{text}; a job with other messages needs an id of its own")


def _last_written(vfs: Vfs, directory: str) -> int:
    times = [vfs.modified_ms(directory)]
    for name, is_directory, _ in vfs.entries(directory):
        if not is_directory:
            with contextlib.suppress(FileNotFoundError):
                times.append(vfs.modified_ms(join(directory, name)))
    return max(times)
