"""The commit records of published jobs, and the ids that are never taken twice.

    <root>/.tubestore/commits/<20 digits>.json  one record a job, numbered without gap
    <root>/.tubestore/published.json            the last job that has its files in place
    <root>/.tubestore/jobs.json                 the ids of all finished jobs

Always true:
- making a record (a link, which fails if the number is taken) is the moment at which its job is in
  the store; after that the job can only be finished;
- a record is there before the first of its files is, and a job is finished after the last;
- records are kept for the last `RECORDS_KEPT` jobs, ids for ever: numbered ones (`name:17`)
  as ranges, so an endless stream of them stays small;
- a job that `repair` gave up has no record, and its number is not given again. If a part of it may
  be in the store, its id is refused for ever, with the reason; else it is free;
- a name of batches belongs to the query that wrote its newest batch, and a batch that comes again
  is the same only if its rows are: Spark repeats the newest batch after a crash, and no older one.

Any thread may read; the one writer writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os.path import basename
from typing import Any, Generic, Protocol, TypeVar

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.state_file import BadState, parse_state, state_bytes
from tubestore.core.vfs import Vfs
from tubestore.disks.writer_lock import WriterLock
from tubestore.errors import JobTaken, NotAStore, StoreFailed
from tubestore.record.names import COMMITS_DIRECTORY, JOBS_FILE, PUBLISHED_FILE
from tubestore.record.state_files import parse_finished
from tubestore.staging.job_files import BEHIND_FEATURE, Batch, CommitRecord
from tubestore.staging.job_ids import JobIds

#: A reader that has not been refreshed for so many jobs sees those that came after it.
RECORDS_KEPT = 256


class AnyRecord(Protocol):
    """The facts that every record has, for shards and for a log."""

    @property
    def number(self) -> int:
        """Jobs are numbered in the order in which they were published."""

    @property
    def job_id(self) -> str:
        """The name under which it is never published again."""

    @property
    def time_ms(self) -> int:
        """When it was published."""

    @property
    def rows(self) -> int:
        """Messages of the job."""

    @property
    def data_size(self) -> int:
        """Bytes of its messages."""

    @property
    def batch(self) -> Batch | None:
        """The query that the job is a micro-batch of, if it is one."""

    @property
    def content(self) -> str:
        """`content_sum` of its files, "" if that is not known."""

    def as_json(self) -> dict[str, Any]:
        """Return the object for the file."""


R = TypeVar("R", bound=AnyRecord)
T = TypeVar("T")


class JobRecords(Generic[R]):
    """The records of one store, of one kind, as its files have them."""

    def __init__(
        self,
        vfs: Vfs,
        root: str,
        parse: Callable[[dict[str, Any]], R],
        features: Sequence[str] = (),
        writer: WriterLock | None = None,
    ) -> None:
        """`features`: those that a record can have; `writer`: its generation writes."""
        self._vfs, self.root, self._parse = vfs, root, parse
        self._parse_state = partial(parse_state, features=features)
        self._own = join(root, OWN_DIRECTORY)
        self._writer = writer
        self.directory = join(self._own, COMMITS_DIRECTORY)

    def path(self, number: int) -> str:
        """Return the file of a record."""
        return join(self.directory, f"{number:020d}.json")

    def finished(self) -> int:
        """Return the number of the last finished job, 0 if there was none."""
        return self._read(join(self._own, PUBLISHED_FILE), parse_finished) or 0

    def read(self, number: int) -> R | None:
        """Return a job's record, None if there is none or it is not kept any more."""
        path = self.path(number)
        content = self._read(path, self._parse_state)
        try:
            return None if content is None else self._parse(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotAStore(self.root, f"{path} makes no sense: {error!r}") from error

    def pending(self) -> R | None:
        """Return the job that is recorded and not finished; there is at most one."""
        return self.read(self.finished() + 1)

    def is_finished(self, job_id: str, batch: Batch | None = None) -> bool:
        """True if a job of this id was published; StoreFailed while one is half published.

        JobTaken if the id is that of another query's batch, or of one with other rows, or of a job
        that was given up and is in the store in part.
        """
        pending = self.pending()
        if pending is not None:
            raise StoreFailed(self.root, f"job {pending.job_id!r} is half published")
        ids = self.ids()
        if (reason := ids.given_up.get(job_id)) is not None:
            raise JobTaken(job_id, reason)
        if batch is not None:
            self._check_batch(ids, job_id, batch)
        return job_id in ids

    def _check_batch(self, ids: JobIds, job_id: str, batch: Batch) -> None:
        """Raise JobTaken if this batch would be taken for another one, or another query's."""
        number, newest, known = ids.newest(job_id)
        if known is not None and known.batch.query != batch.query:
            raise JobTaken(
                job_id,
                f"query {known.batch.query} has written batches up to {newest} under this name, "
                f"and this is query {batch.query}: a second query, or one with a new checkpoint; "
                "go on from the checkpoint of the first, or give this one a txnAppId of its own",
            )
        if job_id not in ids:
            return
        there = known.batch if known is not None and known.number == number else None
        record = self.find(job_id) if there is None else None
        there = record.batch if record is not None else there
        if there is None and number != newest:
            raise JobTaken(
                job_id,
                f"the store has batches up to {newest} of its query, and what this one had is not "
                "known any more: the checkpoint was set back; restore it, or use a txnAppId that "
                "is new (everything is written again)",
            )
        rows = record.rows if record is not None else batch.rows
        if (there is not None and there != batch) or rows != batch.rows:
            had = rows if there is None else there.rows
            raise JobTaken(
                job_id,
                f"it is in the store with {had} rows and came again with {batch.rows} rows that "
                "are not the same: its checkpoint was set back, or its source does not repeat "
                "what it gave; restore the checkpoint, or use a txnAppId that is new",
            )

    def moment(self) -> tuple[int, bool]:
        """Return a value that changes when a job is recorded or finished; costs two look-ups."""
        finished = self.finished()
        return finished, self._vfs.exists(self.path(finished + 1))

    def find(self, job_id: str) -> R | None:
        """Return the record of a job, if it is still kept."""
        return next((record for record in self.kept() if record.job_id == job_id), None)

    def kept(self) -> Iterator[R]:
        """Yield the records of finished jobs that are kept, the newest first."""
        for number in range(last := self.finished(), max(0, last - RECORDS_KEPT), -1):
            record = self.read(number)
            if record is not None:
                yield record

    def ids(self) -> JobIds:
        """Return the ids of all finished jobs."""
        path = join(self._own, JOBS_FILE)
        content = self._read(path, parse_state)
        try:
            return JobIds() if content is None else JobIds.from_json(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotAStore(self.root, f"{path} makes no sense: {error!r}") from error

    def _read(self, path: str, parse: Callable[[bytes], T]) -> T | None:
        try:
            return parse(self._vfs.read_file(path))
        except FileNotFoundError:
            return None
        except (BadState, NotADirectoryError) as error:
            raise NotAStore(self.root, f"{path}: {error}") from error

    # -- writing -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the directory of the records, durably."""
        if not self._vfs.exists(self.directory):
            self._vfs.make_directories(self.directory)
        self._vfs.sync_directory(self._own)

    def check_writer(self) -> None:
        """Raise Overtaken if another process has opened the root for writing since."""
        if self._writer is not None:
            self._writer.check()

    def draft(self, record: R) -> None:
        """Write a record under a name that no reader opens, durably."""
        self._write(self._draft_of(self.path(record.number)), record.as_json())

    def commit(self, record: R) -> None:
        """Give the draft its name: the job is in the store. FileExistsError if that is taken.

        Overtaken if the writer's generation has ended: the job is not in the store. After any other
        error the record may be there, and may not survive a power cut.
        """
        path = self.path(record.number)
        draft = self._draft_of(path)
        with self._fenced():
            try:
                self._vfs.link(draft, path)
            except FileExistsError:
                # A server of files may have made the link, and its answer was lost.
                if self._vfs.read_file(path) != self._vfs.read_file(draft):
                    raise
        self._vfs.sync_directory(self.directory)
        self._vfs.remove(draft)

    def finish(self, record: R) -> None:
        """Note that all files of the last job are in place, durably; the oldest record goes."""
        ids = self.ids()
        ids.add(record.job_id, record.batch)
        self._replace(JOBS_FILE, ids.as_json())
        self._replace(PUBLISHED_FILE, {"finished": record.number})
        oldest = self.path(record.number - RECORDS_KEPT)
        if self._vfs.exists(oldest):
            self._vfs.remove(oldest)

    def give_up(self, record: R, reason: str | None) -> None:
        """End a job that cannot be finished, durably. With a reason its id is refused for ever.

        Without one the id is free: nothing of the job may be in the store.
        """
        if reason is not None:
            ids = self.ids()
            ids.add(record.job_id, record.batch)
            ids.given_up[record.job_id] = reason
            self._replace(JOBS_FILE, ids.as_json())
        self._replace(PUBLISHED_FILE, {"finished": record.number})

    def last(self) -> int:
        """Return the highest number of a record that is kept, 0 if there is none."""
        names = [name for name, _, _ in self._vfs.entries(self.directory)]
        return max(
            (int(n[:-5]) for n in names if n.endswith(".json") and n[:-5].isdigit()), default=0
        )

    def restore(self) -> None:
        """Make the files about finished jobs anew, from the records that are there.

        The last job then counts as pending: whether it was finished is not known.
        """
        last = self.last()
        try:
            exists = self._vfs.exists(join(self._own, PUBLISHED_FILE))
            finished = self.finished() if exists else max(0, last - 1)
        except NotAStore:
            finished = max(0, last - 1)
        try:
            ids = self.ids()
        except NotAStore:
            ids = JobIds()
        for number in range(max(1, last - 2 * RECORDS_KEPT), finished + 1):
            if (record := self.read(number)) is not None:
                ids.add(record.job_id, record.batch)
        self._replace(JOBS_FILE, ids.as_json())
        self._replace(PUBLISHED_FILE, {"finished": finished})

    def _replace(self, name: str, content: dict[str, Any]) -> None:
        """As `Vfs.replace_file`; Overtaken if the generation has ended: nothing has changed."""
        path = join(self._own, name)
        draft = self._draft_of(path)
        with self._fenced():
            self._write(draft, content)
            self._vfs.rename(draft, path)
        self._vfs.sync_directory(self._own)

    def _draft_of(self, path: str) -> str:
        """Return where a file is drafted: the next writer removes what this one has there."""
        directory = self._own if self._writer is None else self._writer.drafts
        return join(directory, f"{basename(path)}.tmp")

    def _write(self, path: str, content: dict[str, Any]) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._vfs.remove(path)
        with self._fenced():
            file = self._vfs.open(path, create=True)
            try:
                file.pwrite(state_bytes(content), 0)
                file.sync()
            finally:
                file.close()

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[None]:
        """Raise Overtaken for a call that failed since the writer's generation has ended."""
        try:
            yield
        except OSError:
            self.check_writer()
            raise


class CommitRecords(JobRecords[CommitRecord]):
    """The records of a store of shards."""

    def __init__(self, vfs: Vfs, root: str, writer: WriterLock | None = None) -> None:
        super().__init__(vfs, root, CommitRecord.from_json, [BEHIND_FEATURE], writer)


@dataclass(frozen=True, slots=True)
class HiddenParts:
    """Where what a reader must not show begins: index and data offsets by topic and store id."""

    starts: Mapping[tuple[str, int], tuple[int, int]]

    def limits(self, topic: str, store_id: int) -> tuple[int, int] | None:
        """Return the offsets at which what is hidden of a shard begins, None if nothing is."""
        return self.starts.get((topic, store_id))


class Horizon:
    """The published jobs that one reader sees: those finished when it was made, and no other.

    Shards may be opened at any time later: all of them show the same jobs.
    """

    def __init__(self, vfs: Vfs, root: str) -> None:
        self._records = CommitRecords(vfs, root)
        self._finished = self._records.finished()
        self._limits: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}

    @property
    def finished(self) -> int:
        """The number of the last job that it shows."""
        return self._finished

    def limits(self, topic: str, store_id: int) -> tuple[int, int] | None:
        """Return the index and data offsets at which what is hidden of a shard begins.

        To be called after the shard's files were listed: a record is there before its files are.
        """
        number = self._finished + 1
        if self._limits_of(number) is None:
            # Either there is no later job, or so many that their records are gone.
            newest = self._records.finished() + 1
            if newest <= number:
                return None  # a job that was recorded since has no file in the listing
            number = newest
        while (limits := self._limits_of(number)) is not None:
            if (topic, store_id) in limits:
                return limits[topic, store_id]
            number += 1
        return None

    def of_all(self) -> HiddenParts:
        """Return `limits` of all shards at once. To be called after all of them were listed."""
        number = self._finished + 1
        if self._limits_of(number) is None:
            number = max(number, self._records.finished() + 1)
        found: HiddenParts = HiddenParts({})
        while (limits := self._limits_of(number)) is not None:
            found = HiddenParts({**limits, **found.starts})
            number += 1
        return found

    def _limits_of(self, number: int) -> dict[tuple[str, int], tuple[int, int]] | None:
        if number not in self._limits:
            record = self._records.read(number)
            if record is None:
                return None
            self._limits[number] = record.limits()
        return self._limits[number]
