"""Files that come ready-made become part of shards in one atomic step.

    result = store.publish("load-7", staged)     # descriptions by `staging.StagedWriter`

What is guaranteed:

- **All or nothing, at most once, for ever.** A job is in the store, entirely, once its commit
  record is made. An id that was published once is never published again: a second call returns the
  result of the first. So a job with an unknown end is simply published again.
- **Order.** The files of a shard follow each other as in `staged`, behind everything that the
  shard has acknowledged before. Appends to these shards wait meanwhile; others go on.
- **Durability** is `fsync`: data, index, names and record are synced when `publish` returns.
- **Readers** of this package, in any process, see all of a job or nothing: it shows when it is
  finished (for a store opened with mode "r": at the next `refresh`, in all topics at once).
- **A TubeMQ broker must wait** until a half-published job is finished: `tubestore check` reports
  one, and opening the store for writing (or `tubestore recover`) finishes it.

The steps, with what a crash after each leaves, are those of every job
(`tubestore.staging.publisher`). Here the buffers of the shards concerned are written and synced
first, and pairs that were not staged for their place are rewritten (`staging/placing.py`). What a
small job has for a shard goes behind the last byte of the live files, while it fits: the batches of
a stream would leave a pair of files each. Other files come by a rename, and seal what is before
them. After a failure behind the record the shards concerned refuse appends until the store is
opened again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tubestore.core.paths import join
from tubestore.core.vfs import Vfs
from tubestore.errors import InvalidMessage, JobTaken
from tubestore.options import TopicOptions
from tubestore.segments.segment_list import Adopted
from tubestore.shard.message_store import MessageStore, letting_go
from tubestore.staging.commit_records import CommitRecords
from tubestore.staging.job_files import (
    Batch,
    CommitRecord,
    PlacedFile,
    StagedFile,
    check_job_id,
    check_publish_arguments,
    check_query,
    content_sum,
    staging_directory,
)
from tubestore.staging.placing import (
    SPREAD_BYTES,
    THREADED_BYTES,
    Placing,
    Spread,
    misplaced,
    place_all,
    place_anew,
    place_file,
    spread_out,
)
from tubestore.staging.publisher import Publisher
from tubestore.staging.roll_forward import remove_staging, roll_forward
from tubestore.store.context import Context
from tubestore.store.opening import ShardOpener
from tubestore.store.topic import shards_of
from tubestore.store.topics import Topics
from tubestore.values import Age, checked_age_ms

#: Shards by topic and store id.
Shards = Mapping[tuple[str, int], MessageStore]


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The result of a job; `files` is empty if its record is not kept any more."""

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


class BulkLoads:
    """Publishes the files of jobs into an open store, and removes what jobs have left."""

    def __init__(self, context: Context, opener: ShardOpener, topics: Topics) -> None:
        self._context, self._opener, self._topics = context, opener, topics
        records = CommitRecords(context.vfs, context.root, context.directory.writer)
        self._publisher = Publisher(context.vfs, context.clock, records, topics.lock)

    def publish(
        self,
        job_id: str,
        staged: Iterable[StagedFile | Mapping[str, Any]],
        *,
        create: bool,
        threads: int | None,
        query: str | None = None,
        spread: Spread | None = None,
    ) -> PublishResult:
        """Make a job part of the store, or return what became of it before; see the head."""
        check_publish_arguments(staged, threads)
        with self._topics.lock:
            self._context.check_open(writing=True)
            query = check_query(job_id, query)
            files = [StagedFile.from_json(one) for one in staged]
            batch = None if query is None else Batch.of(query, files)
            job = _ShardsJob(
                job_id,
                batch,
                files,
                self._context,
                self._opener,
                self._topics,
                create,
                threads,
                spread,
            )
            record, new = self._publisher.publish(job)
            return _result(job_id, record, replayed=not new)

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
            return self._publisher.clean(grace_ms)

    def clean_old_staging(self) -> None:
        """Clean in the background, unless a job is about to be published: then the next time."""
        taken: list[bool] = []
        try:
            # In one step: an interrupt finds the lock taken and this list filled, or neither.
            taken += map(self._topics.lock.acquire, (False,))
            if any(taken):
                self.clean_staging(f"{self._context.options.staging_grace_ms}ms")
        finally:
            if True in taken:
                self._topics.lock.release()


@dataclass(slots=True)
class _ShardsJob:
    """A job for shards, on its way through `staging.publisher`."""

    job_id: str
    batch: Batch | None
    files: list[StagedFile]
    context: Context
    opener: ShardOpener
    topics: Topics
    #: True if topics that are missing or too small are made.
    create: bool
    threads: int | None
    #: Places large jobs in other processes.
    spread: Spread | None
    shards: Shards = field(default_factory=dict)
    placed: tuple[PlacedFile, ...] = ()

    @property
    def rows(self) -> int:
        """Messages that are staged."""
        return sum(file.rows for file in self.files)

    @property
    def content(self) -> str:
        """The sum of their contents, if all files have one."""
        return content_sum(self.files)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Open the shards of the job and keep all others from appending to them."""
        _check_staged(self.context.vfs, self.context.root, self.job_id, self.files)
        self.shards = self._open_shards()
        with letting_go(self.shards.values()):
            ends = {key: shard.hold() for key, shard in sorted(self.shards.items())}
            self.placed = self._behind(_place(self.files, ends))
            yield

    def _behind(self, placed: tuple[PlacedFile, ...]) -> tuple[PlacedFile, ...]:
        """Choose the streams of which the live file takes the job's part."""
        index, data = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        for file in placed:
            index[file.shard] += file.index_size
            data[file.shard] += file.data_size
        into = {
            key: (
                shard.files.index.live_start_for(index[key]),
                shard.files.data.live_start_for(data[key]),
            )
            for key, shard in self.shards.items()
        }
        return tuple(
            replace(file, index_behind=into[file.shard][0], data_behind=into[file.shard][1])
            for file in placed
        )

    def _open_shards(self) -> Shards:
        """Return the shards of staged files, opened for writing; `create` makes their topics."""
        needed: dict[str, TopicOptions] = {}
        for file in self.files:
            options = TopicOptions(partitions=file.partitions, stores=file.store_id + 1)
            needed[file.topic] = needed.get(file.topic, options).grown_to(options)
        if self.create:
            self.topics.ensure(needed)
        for name, options in needed.items():
            if not (known := self.topics.get(name).options).covers(options):
                raise InvalidMessage(f"topic {name!r} has {known}, the job needs {options}")
        keys = {(file.topic, file.store_id) for file in self.files}
        return {key: shards_of(self.topics.get(key[0])).writable(key[1]) for key in keys}

    def write(self, number: int) -> CommitRecord:
        """Rewrite the pairs that were not staged for their place, and sync all."""
        now_ms, vfs = self.context.clock.now_ms(), self.context.vfs
        staging = staging_directory(self.context.root, self.job_id)
        described = {file.name: file for file in self.files}
        placings, size = [], sum(file.data_size for file in self.files)
        for file in self.placed:
            staged = described[file.name]
            ids = None if staged.has_ids else self.context.ids.next_many(file.rows)
            placings.append(Placing(staging, staged, file, None if ids is None else int(ids[0])))
        if self.spread is not None and size >= SPREAD_BYTES:
            check = partial(misplaced, vfs)
            self.placed = tuple(spread_out(self.spread, place_anew, placings, check))
        else:
            place_all(partial(place_file, vfs), placings, size, self.threads)
        return CommitRecord(number, self.job_id, now_ms, self.placed, self.batch, self.content)

    def roll_forward(self, record: CommitRecord) -> None:
        """Bring the files behind the ends of their shards."""
        roll_forward(self.context.vfs, self.context.root, record)

    def adopt(self, record: CommitRecord) -> None:
        """Give the open shards what is new, and show it to all readers at one moment."""
        index: dict[tuple[str, int], list[Adopted]] = {key: [] for key in self.shards}
        data: dict[tuple[str, int], list[Adopted]] = {key: [] for key in self.shards}
        for file in record.files:
            is_behind = file.index_behind is not None
            index[file.shard].append(Adopted(file.index_start, file.index_size, is_behind))
            is_behind = file.data_behind is not None
            data[file.shard].append(Adopted(file.data_start, file.data_size, is_behind))
        for key, shard in self.shards.items():
            shard.adopt(index[key], data[key])
        with self.opener.showing:
            for shard in self.shards.values():
                shard.show_adopted()
        for shard in self.shards.values():
            shard.leave_checkpoint()

    def fail(self, reason: str) -> None:
        """Refuse appends to the shards of the job."""
        for shard in self.shards.values():
            shard.fail(reason)

    def settle(self, record: CommitRecord) -> None:
        """Digest the sealed files of a large job while they are in the page cache.

        Several at a time: a stream is offered as often as it has new files, and each thread takes
        its next one. Those of a small job the shards digest later, by themselves.
        """
        size = sum(file.data_size for file in record.files)
        if size >= THREADED_BYTES:
            new = Counter(file.shard for file in record.files)
            files = [self.shards[key].files for key in new.elements()]
            streams = [stream for one in files for stream in (one.data, one.index)]
            place_all(lambda stream: stream.keep_digests(), streams, size, self.threads)


def _result(job_id: str, record: CommitRecord | None, *, replayed: bool) -> PublishResult:
    number, files = (0, ()) if record is None else (record.number, record.files)
    return PublishResult(job_id, number, replayed, files)


def _check_staged(vfs: Vfs, root: str, job_id: str, files: list[StagedFile]) -> None:
    """Raise InvalidMessage if a file is not as described, as far as sizes show."""
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
                path = join(directory, name)
                raise InvalidMessage(f"job {job_id!r}: {path} {there}, and {size} were staged")


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


def abort(vfs: Vfs, root: str, job_id: str) -> PublishResult | None:
    """Give a job up: remove what it has staged. Returns its result if it was published before."""
    records = CommitRecords(vfs, root)
    try:
        published = records.is_finished(check_job_id(job_id))
    except JobTaken:  # `repair` gave it up
        published = False
    remove_staging(vfs, root, job_id)
    return _result(job_id, records.find(job_id), replayed=True) if published else None
