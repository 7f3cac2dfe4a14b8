"""Files that come ready-made become part of shards in one atomic step.

    result = store.publish("load-7", staged)     # what `staging.StagedWriter` described

What is guaranteed:

- **All or nothing, at most once, for ever.** A job is in the store when its commit record is
  made, entirely; an id that was published once is never published again: a second call returns
  the result of the first. So a job whose end nobody saw is simply published again.
- **Order.** The files of a shard follow each other as in `staged`, behind everything that the
  shard has acknowledged before. Appends to these shards wait meanwhile; others go on.
- **Durability** is `fsync`: data, index, names and record are synced when `publish` returns.
- **Readers** of this package, in any process, see all of a job or nothing: it shows when it is
  finished (for a store opened with mode "r": at the next `refresh`, in all topics at once).
- **A real broker must wait** until a half-published job is finished: `tubestore check` says so,
  and opening the store for writing (or `tubestore recover`) finishes it.

The steps, and what a crash after each leaves:

| step | a crash leaves |
| --- | --- |
| buffers of the shards concerned are written and synced | nothing of the job |
| pairs not staged for their place are rewritten (`placing.py`); names are synced | as before |
| the commit record is linked into place: **the atomic step** | the job, to be finished |
| files are renamed behind the ends of the shards; directories synced | the job, to be finished |
| the job is noted as finished | the job |
| the rest of its staging directory is removed | the job, and a rest for the janitor |

Failures: before the record nothing has changed, and the call may be repeated. After it the
shards concerned are failed (StoreFailed) until the store is opened again, which finishes the job.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os.path import dirname
from typing import Any

from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.errors import (
    InvalidMessage,
    StoreFailed,
    StoreLocked,
    TubeStoreError,
    failed_write,
)
from tubestore.options import TopicOptions
from tubestore.record.names import STAGING_DIRECTORY
from tubestore.shard.message_store import MessageStore
from tubestore.staging.commit_records import CommitRecords, JobRecords
from tubestore.staging.job_files import (
    Batch,
    CommitRecord,
    PlacedFile,
    StagedFile,
    check_job_id,
    check_publish_arguments,
    check_query,
    staging_directory,
)
from tubestore.staging.placing import THREADED_BYTES, place_all, place_file
from tubestore.staging.roll_forward import remove_staging, remove_tree, roll_forward
from tubestore.store.context import Context
from tubestore.store.opening import ShardOpener
from tubestore.store.topic import shards_of
from tubestore.store.topics import Topics
from tubestore.values import Age, checked_age_ms

log = logging.getLogger(__name__)
#: Shards by topic and store id.
Shards = Mapping[tuple[str, int], MessageStore]


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What became of a job. `files` is empty where its record is not kept any more."""

    job_id: str
    #: Jobs are numbered in the order in which they were published; 0: not known any more.
    number: int
    #: It had been published before: nothing was done now.
    replayed: bool
    files: tuple[PlacedFile, ...]

    @property
    def rows(self) -> int:
        """Messages of the job."""
        return sum(file.rows for file in self.files)

    @property
    def data_size(self) -> int:
        """Bytes of its data files."""
        return sum(file.data_size for file in self.files)


class Publisher:
    """Publishes the files of jobs into an open store, and removes what jobs have left."""

    def __init__(self, context: Context, opener: ShardOpener, topics: Topics) -> None:
        self._context, self._opener, self._topics = context, opener, topics

    def publish(
        self,
        job_id: str,
        staged: Iterable[StagedFile | Mapping[str, Any]],
        *,
        create: bool,
        threads: int | None,
        query: str | None = None,
    ) -> PublishResult:
        """Make a job part of the store, or return what became of it before; see the head."""
        check_publish_arguments(staged, threads)
        with self._topics.lock:
            self._context.check_open(writing=True)
            return self._publish(
                job_id, staged, create=create, threads=threads, query=check_query(job_id, query)
            )

    def abort(self, job_id: str) -> PublishResult | None:
        """Give a job up: remove what it has staged. Returns its result if it was published."""
        with self._topics.lock:
            self._context.check_open(writing=True)
            return abort(self._context.vfs, self._context.root, job_id)

    def clean_staging(self, grace: Age) -> list[str]:
        """Remove what jobs staged that have written nothing for `grace`; returns their names."""
        grace_ms = checked_age_ms(grace, "grace")
        with self._topics.lock:
            self._context.check_open(writing=True)
            vfs, now_ms = self._context.vfs, self._context.clock.now_ms()
            return clean_staging(CommitRecords(vfs, self._context.root), vfs, now_ms, grace_ms)

    def clean_old_staging(self) -> None:
        """Do so in the background, unless a job is about to be published: then the next time."""
        if self._topics.lock.acquire(blocking=False):
            try:
                grace_ms = self._context.options.staging_grace_ms
                self.clean_staging(grace_ms)
            finally:
                self._topics.lock.release()

    def _publish(
        self,
        job_id: str,
        staged: Iterable[StagedFile | Mapping[str, Any]],
        *,
        create: bool,
        threads: int | None,
        query: str | None,
    ) -> PublishResult:
        vfs, root = self._context.vfs, self._context.root
        records = CommitRecords(vfs, root)
        files = [StagedFile.from_json(one) for one in staged]
        batch = None if query is None else Batch.of(query, files)
        known = find_result(records, check_job_id(job_id), batch)
        if known is not None:
            remove_staging(vfs, root, job_id)
            return known
        _check_staged(vfs, root, job_id, files)
        shards = self._shards_of(files, create=create)
        with contextlib.ExitStack() as held:
            ends = {}
            for key, shard in sorted(shards.items()):
                ends[key] = shard.hold()
                held.callback(shard.let_go)
            placed = _place(files, ends)
            now_ms = self._context.clock.now_ms()
            record = CommitRecord(records.finished() + 1, job_id, now_ms, placed, batch)
            try:
                self._prepare(records, record, files, threads)
            except OSError as error:
                raise failed_write(root, error) from error
            try:
                self._commit(records, record, shards)
            except _Taken as error:
                raise StoreLocked(root, "another process that has just published") from error
            except BaseException as error:
                # The files may be longer than the shards know: nothing may be appended to them.
                for shard in shards.values():
                    shard.fail(f"job {job_id!r} may be half published: {error}")
                if isinstance(error, OSError | TubeStoreError):
                    raise StoreFailed(root, f"publishing {job_id!r}: {error}") from error
                raise
        remove_staging(vfs, root, job_id)
        _keep_digests(shards, record, threads)
        return PublishResult(job_id, record.number, False, record.files)

    def _shards_of(self, staged: list[StagedFile], *, create: bool) -> Shards:
        """Return the shards of staged files, opened for writing; `create` makes their topics."""
        needed: dict[str, TopicOptions] = {}
        for file in staged:
            options = TopicOptions(partitions=file.partitions, stores=file.store_id + 1)
            needed[file.topic] = needed.get(file.topic, options).grown_to(options)
        if create:
            self._topics.ensure(needed)
        for name, options in needed.items():
            if not (known := self._topics.get(name).options).covers(options):
                raise InvalidMessage(f"topic {name!r} has {known}, the job needs {options}")
        keys = {(file.topic, file.store_id) for file in staged}
        return {key: shards_of(self._topics.get(key[0])).writable(key[1]) for key in keys}

    def _prepare(
        self,
        records: CommitRecords,
        record: CommitRecord,
        files: list[StagedFile],
        threads: int | None,
    ) -> None:
        """Do everything that comes before the record, up to stable storage."""
        vfs, root = self._context.vfs, self._context.root
        staging = staging_directory(root, record.job_id)
        described = {file.name: file for file in files}

        def place(file: PlacedFile) -> None:
            staged = described[file.name]
            ids = None if staged.has_ids else self._context.ids.next_many(file.rows)
            place_file(vfs, staging, staged, file, ids)

        place_all(place, record.files, sum(file.data_size for file in files), threads)
        if files:
            for directory in (staging, dirname(staging), join(root, OWN_DIRECTORY)):
                vfs.sync_directory(directory)
        records.prepare()
        records.draft(record)

    def _commit(self, records: CommitRecords, record: CommitRecord, shards: Shards) -> None:
        """Make the record, and everything that follows from it."""
        try:
            records.commit(record)
        except FileExistsError as error:
            raise _Taken from error
        roll_forward(self._context.vfs, self._context.root, record)
        records.finish(record)
        self._adopt(record, shards)

    def _adopt(self, record: CommitRecord, shards: Shards) -> None:
        """Let the open shards know their new files, and all readers see them at one moment."""
        index: dict[tuple[str, int], list[tuple[int, int]]] = {key: [] for key in shards}
        data: dict[tuple[str, int], list[tuple[int, int]]] = {key: [] for key in shards}
        for file in record.files:
            index[file.shard].append((file.index_start, file.index_size))
            data[file.shard].append((file.data_start, file.data_size))
        for key, shard in shards.items():
            shard.adopt(index[key], data[key])
        with self._opener.showing:
            for shard in shards.values():
                shard.show_adopted()
        for shard in shards.values():
            shard.leave_checkpoint()


class _Taken(Exception):
    """The number of the record was given to another job: somebody else publishes here."""


def find_result(
    records: CommitRecords, job_id: str, batch: Batch | None = None
) -> PublishResult | None:
    """Return what became of a finished job, None if there is none of this id; JobTaken."""
    if not records.is_finished(job_id, batch):
        return None
    record = records.find(job_id)
    if record is None:
        return PublishResult(job_id, 0, True, ())
    return PublishResult(job_id, record.number, True, record.files)


def _check_staged(vfs: Vfs, root: str, job_id: str, files: list[StagedFile]) -> None:
    """Raise InvalidMessage if a file is not what its description says, as far as sizes tell."""
    directory = staging_directory(root, job_id)
    sizes = {name: size for name, is_directory, size in vfs.entries(directory)}
    seen: set[str] = set()
    for file in files:
        file.check()
        if file.name in seen:
            raise InvalidMessage(f"staged file {file.name} is given twice")
        seen.add(file.name)
        for name, size in file.files:
            if sizes.get(name) != size:
                there = f"has {sizes[name]} bytes" if name in sizes else "is missing"
                text = f"job {job_id!r}: {join(directory, name)} {there}, {size} were staged"
                raise InvalidMessage(text)


def _place(
    files: list[StagedFile], ends: Mapping[tuple[str, int], tuple[int, int]]
) -> tuple[PlacedFile, ...]:
    """Give every file its place behind the end of its shard, in the order given."""
    placed = []
    ends = dict(ends)
    for file in files:
        key = (file.topic, file.store_id)
        index_start, data_start = ends[key]
        placed.append(
            PlacedFile(
                *key,
                name=file.name,
                rows=file.rows,
                index_start=index_start,
                data_start=data_start,
                data_size=file.data_size,
                first_time=file.first_time,
                last_time=file.last_time,
            )
        )
        ends[key] = (index_start + file.index_size, data_start + file.data_size)
    return tuple(sorted(placed, key=lambda file: (file.shard, file.index_start)))


def _keep_digests(shards: Shards, record: CommitRecord, threads: int | None) -> None:
    """Have the sealed files of a large job digested while they are in the page cache.

    Several at a time: a stream is offered as often as it has new files, and whoever comes to it
    takes the next of them. Those of a small job the shards digest later, by themselves.
    """
    size = sum(file.data_size for file in record.files)
    if size >= THREADED_BYTES:
        new = Counter(file.shard for file in record.files)
        files = [shards[key].files for key in new.elements()]
        streams = [stream for one in files for stream in (one.data, one.index)]
        place_all(lambda stream: stream.keep_digests(), streams, size, threads)


# -- what is left of jobs ----------------------------------------------------------------------


def abort(vfs: Vfs, root: str, job_id: str) -> PublishResult | None:
    """Give a job up: remove what it has staged. Returns its result if it was published before."""
    known = find_result(CommitRecords(vfs, root), check_job_id(job_id))
    remove_staging(vfs, root, job_id)
    return known


def clean_staging(records: JobRecords[Any], vfs: Vfs, now_ms: int, grace_ms: int) -> list[str]:
    """Remove staging directories in which nothing was written for `grace_ms`; returns them.

    They are what is left of jobs that were given up, or whose slow tasks went on writing.
    """
    root, pending = records.root, records.pending()
    directory = join(root, OWN_DIRECTORY, STAGING_DIRECTORY)
    removed = []
    kept = {staging_directory(root, pending.job_id)} if pending is not None else set()
    for name, is_directory, _ in vfs.entries(directory):
        path = join(directory, name)
        if is_directory and path not in kept and _last_written(vfs, path) + grace_ms <= now_ms:
            remove_tree(vfs, path)
            removed.append(name)
    return removed


def _last_written(vfs: Vfs, directory: str) -> int:
    times = [vfs.modified_ms(directory)]
    for name, is_directory, _ in vfs.entries(directory):
        if not is_directory:
            with contextlib.suppress(FileNotFoundError):
                times.append(vfs.modified_ms(join(directory, name)))
    return max(times)
