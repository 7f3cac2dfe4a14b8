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
from dataclasses import dataclass, replace
from os.path import dirname
from typing import Any, Protocol

import numpy as np

from tubestore.clock import Clock
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs
from tubestore.errors import (
    InvalidMessage,
    StoreFailed,
    StoreLocked,
    TubeStoreError,
    failed_write,
)
from tubestore.record.names import STAGING_DIRECTORY
from tubestore.shard.message_store import MessageStore
from tubestore.staging.commit_records import CommitRecords, JobRecords
from tubestore.staging.job_files import (
    Batch,
    CommitRecord,
    PlacedFile,
    StagedFile,
    check_job_id,
    staging_directory,
)
from tubestore.staging.placing import THREADED_BYTES, place_all, place_file
from tubestore.staging.roll_forward import remove_staging, remove_tree, roll_forward

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]


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


class PublishHost(Protocol):
    """What publishing asks of the store (`manager.py`)."""

    root: str
    vfs: Vfs
    clock: Clock

    def next_msg_ids(self, count: int) -> Array:
        """Reserve ids in a row (int64)."""

    def shards_to_publish(
        self, staged: list[StagedFile], *, create: bool
    ) -> dict[tuple[str, int], MessageStore]:
        """Return the shards of these files by topic and store id, opened for writing."""

    def showing(self) -> contextlib.AbstractContextManager[Any]:
        """Hold off whoever takes a view of several shards."""


def publish(
    host: PublishHost,
    job_id: str,
    staged: Iterable[StagedFile | Mapping[str, Any]],
    *,
    create_topics: bool,
    threads: int | None,
    query: str | None = None,
) -> PublishResult:
    """Make a job part of the store, or return what became of it before; see the head."""
    records = CommitRecords(host.vfs, host.root)
    files = [StagedFile.from_json(one) for one in staged]
    batch = None if query is None else Batch.of(query, files)
    known = find_result(records, check_job_id(job_id), batch)
    if known is not None:
        remove_staging(host.vfs, host.root, job_id)
        return known
    _check_staged(host, job_id, files)
    shards = host.shards_to_publish(files, create=create_topics)
    with contextlib.ExitStack() as held:
        ends = {}
        for key, shard in sorted(shards.items()):
            ends[key] = shard.hold()
            held.callback(shard.let_go)
        record = replace(_place(host, records, job_id, files, ends), batch=batch)
        try:
            _prepare(host, records, record, files, threads)
        except OSError as error:
            raise failed_write(host.root, error) from error
        try:
            _commit(host, records, record, shards)
        except _Taken as error:
            raise StoreLocked(host.root, "another process that has just published") from error
        except BaseException as error:
            # The files may be longer than the shards know: nothing may be appended to them.
            for shard in shards.values():
                shard.fail(f"job {job_id!r} may be half published: {error}")
            if isinstance(error, OSError | TubeStoreError):
                raise StoreFailed(host.root, f"publishing {job_id!r}: {error}") from error
            raise
    remove_staging(host.vfs, host.root, job_id)
    _keep_digests(shards, record, threads)
    return PublishResult(job_id, record.number, False, record.files)


class _Taken(Exception):
    """The number of the record was given to another job: somebody else publishes here."""


def _commit(
    host: PublishHost,
    records: CommitRecords,
    record: CommitRecord,
    shards: Mapping[tuple[str, int], MessageStore],
) -> None:
    """Make the record, and everything that follows from it."""
    try:
        records.commit(record)
    except FileExistsError as error:
        raise _Taken from error
    roll_forward(host.vfs, host.root, record)
    records.finish(record)
    _adopt(host, record, shards)


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


def _check_staged(host: PublishHost, job_id: str, files: list[StagedFile]) -> None:
    """Raise InvalidMessage if a file is not what its description says, as far as sizes tell."""
    directory = staging_directory(host.root, job_id)
    sizes = {name: size for name, is_directory, size in host.vfs.entries(directory)}
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
    host: PublishHost,
    records: CommitRecords,
    job_id: str,
    files: list[StagedFile],
    ends: dict[tuple[str, int], tuple[int, int]],
) -> CommitRecord:
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
    placed.sort(key=lambda file: (file.shard, file.index_start))
    return CommitRecord(records.finished() + 1, job_id, host.clock.now_ms(), tuple(placed))


def _prepare(
    host: PublishHost,
    records: CommitRecords,
    record: CommitRecord,
    files: list[StagedFile],
    threads: int | None,
) -> None:
    """Do everything that comes before the record, up to stable storage."""
    vfs = host.vfs
    staging = staging_directory(host.root, record.job_id)
    described = {file.name: file for file in files}

    def place(file: PlacedFile) -> None:
        staged = described[file.name]
        ids = None if staged.has_ids else host.next_msg_ids(file.rows)
        place_file(vfs, staging, staged, file, ids)

    place_all(place, record.files, sum(file.data_size for file in files), threads)
    if files:
        for directory in (staging, dirname(staging), join(host.root, OWN_DIRECTORY)):
            vfs.sync_directory(directory)
    records.prepare()
    records.draft(record)


def _adopt(
    host: PublishHost, record: CommitRecord, shards: Mapping[tuple[str, int], MessageStore]
) -> None:
    """Let the open shards know their new files, and all readers see them at one moment."""
    index: dict[tuple[str, int], list[tuple[int, int]]] = {key: [] for key in shards}
    data: dict[tuple[str, int], list[tuple[int, int]]] = {key: [] for key in shards}
    for file in record.files:
        index[file.shard].append((file.index_start, file.index_size))
        data[file.shard].append((file.data_start, file.data_size))
    for key, shard in shards.items():
        shard.adopt(index[key], data[key])
    with host.showing():
        for shard in shards.values():
            shard.show_adopted()
    for shard in shards.values():
        shard.leave_checkpoint()


def _keep_digests(
    shards: Mapping[tuple[str, int], MessageStore], record: CommitRecord, threads: int | None
) -> None:
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
