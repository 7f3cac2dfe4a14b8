"""A load: rows staged by tasks, and published by one process in one step.

    task        Load.stage(batches)   files below .tubestore/staging, invisible
    driver      Load.publish(staged)  waits for the writer's lock, publishes: all of it or nothing

A job with the name of a published one does nothing, for ever; so a job with an unknown end is
simply run again. A micro-batch is staged again, and compared with what the store has: the same rows
do nothing, others are an error, and so are those of another query. What an attempt of a task leaves
that lost against another one is removed with the job's directory, or by the janitor a day later.

Nothing here imports Spark.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

import tubestore
from tubestore.core.vfs import OsVfs
from tubestore.errors import InvalidMessage, StoreLocked
from tubestore.options import StoreOptions, TopicOptions
from tubestore.record import ingest
from tubestore.record.names import store_key
from tubestore.segments.listing import check_root
from tubestore.spark.kit.intake import Intake
from tubestore.spark.kit.publishing import Written, rejected_rows
from tubestore.spark.kit.write_options import WriteOptions
from tubestore.staging.commit_records import CommitRecords
from tubestore.staging.job_files import StagedFile
from tubestore.staging.placing import Spread
from tubestore.staging.rejected import Sieve
from tubestore.staging.roll_forward import remove_staged
from tubestore.staging.writer import StagedWriter
from tubestore.store.directory import StoreDirectory
from tubestore.store.manager import MessageStoreManager
from tubestore.store.publish import PublishResult
from tubestore.store.topics import load_topics

S = TypeVar("S")
#: Between two looks whether the lock is free, in seconds: from this to ten times this.
_PAUSE = 0.02


@dataclass(frozen=True)
class Load:
    """Where rows go, and how; the same in all tasks and on the driver. Picklable."""

    options: WriteOptions
    intake: Intake
    #: Settings of the topics that are there, by which keys are routed.
    topics: Mapping[str, TopicOptions]
    #: Settings that topics get with the job: those of a store that it copies.
    settings: Mapping[str, TopicOptions] = field(default_factory=dict)

    @classmethod
    def prepare(cls, options: WriteOptions, schema: pa.Schema) -> Load:
        """Check columns and the store's directory, before anything is written."""
        intake = Intake(schema, options.topic)
        vfs, topics = OsVfs(), {}
        if vfs.exists(options.path):
            check_root(options.path, vfs)
            topics = load_topics(StoreDirectory(vfs, options.path, "r"), StoreOptions()).settings
        return cls(options, intake, topics)

    @property
    def path(self) -> str:
        """The store's directory."""
        return self.options.path

    @property
    def rejected_path(self) -> str | None:
        """Where rows go that the store does not take; None: they fail the job."""
        return self.options.rejected_path

    def described(self, given: Mapping[str, Any]) -> StagedFile:
        """Return what a task staged, from its JSON object."""
        return StagedFile.from_json(given)

    def is_published(self, job_id: str) -> bool:
        """True if a job of this name is in the store already."""
        return job_id in CommitRecords(OsVfs(), self.options.path).ids()

    def stage(
        self,
        job_id: str,
        attempt: str,
        batches: Iterable[pa.RecordBatch],
        *,
        sync: bool = False,
        content: bool = False,
        sieve: Sieve | None = None,
    ) -> list[StagedFile]:
        """Write rows to staged files, which readers do not see.

        `sieve` gets the rows that the store does not take; without one they are an error.

        With `sync` they are on stable storage when this returns: for a job that goes on with
        them after a crash. Else publishing does it, which writes all of them once more anyway.
        `content`: for the batch of a query, which is compared with what the store has.
        """
        options = self.options
        with StagedWriter(
            options.path,
            job_id,
            attempt,
            topics=self.topics,
            new_topics=options.new_topics if options.create_topics else None,
            options=options.store,
            sync=sync,
            content=content,
        ) as writer:
            for batch in batches:
                if not batch.num_rows:
                    continue
                put = partial(self._take, writer, self.intake.lacking(batch))
                if sieve is None:
                    put(batch)
                else:
                    sieve.take(batch, put)
            return writer.finish()

    def _take(self, writer: StagedWriter, lacking: frozenset[str], part: pa.RecordBatch) -> None:
        """Stage a part of a batch; InvalidMessage for a topic that is missing and not made."""
        table = self.intake.table(part, lacking)
        if not self.options.create_topics:
            names, _ = ingest.split_topics(table)
            if missing := sorted({*names}.difference(self.topics)):
                text = "and createTopics is false: create it, or leave that option out"
                raise InvalidMessage(f"no topic {missing[0]!r}, {text}")
        writer.write(table)

    def with_partitions(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the partition that each row's key gives it, as column `partition` (int32)."""
        turn = random.randrange(1 << 62)
        for batch in batches:
            table = self.intake.table(batch)
            if table.column("topic").null_count:
                text = "a row without a topic has no partition: give each row one, or a topic"
                raise InvalidMessage(f"order_by: {text}")
            names, codes = ingest.split_topics(table)
            options = [self.topics.get(name, self.options.new_topics) for name in names]
            turns = np.arange(turn, turn + len(codes), dtype=np.uint64)
            turn += len(codes)
            places = ingest.route(table, codes, options, lambda _, turns=turns: turns)
            column = pa.array(places.astype(np.int32))
            yield batch.append_column("partition", column)

    def publish(
        self,
        job_id: str,
        staged: list[StagedFile],
        query: str | None = None,
        spread: Spread | None = None,
    ) -> PublishResult:
        """Make the files part of the store, in this order; StoreLocked after the timeout.

        `query`: the query of the batch; JobTaken if the store has another one under this id.
        `spread` has tasks write what needs the offsets of its place.
        """
        with opened(self.options) as store:
            store.ensure_topics(self.settings)
            if self.options.create_topics:
                # As large as keys were routed by, even if those that came need less.
                missing = {f.topic for f in staged}.difference(store.topics())
                store.ensure_topics(dict.fromkeys(sorted(missing), self.options.new_topics))
            create = self.options.create_topics
            result = store.publish(job_id, staged, create_topics=create, query=query, spread=spread)
            store.clean_staging()  # what others left that gave up days ago
            return result

    def written(self, job_id: str, *, replayed: bool) -> Written:
        """Return the result of a published job, as far as the store keeps it."""
        record = CommitRecords(OsVfs(), self.path).find(job_id)
        rejected = rejected_rows(self.rejected_path, job_id)
        if record is None:
            return Written(job_id, replayed, rejected=rejected)
        offsets: dict[str, tuple[int, int]] = {}
        for file in record.files:
            key, end = store_key(*file.shard), file.index_start + file.index_size
            offsets[key] = offsets.get(key, (file.index_start, 0))[0], end
        # Several pieces may have gone behind the last byte of one file.
        files = tuple(dict.fromkeys(move.final for move in record.moves(self.path)[0]))
        return Written(job_id, replayed, record.rows, files, offsets, rejected)

    def abort(self, job_id: str, staged: Sequence[StagedFile]) -> None:
        """Remove what this run of a job staged, unless it may be published already."""
        # Spark also aborts a job after a failed commit, maybe behind the point of no return: then
        # the next opening of the store brings it to its end.
        files = [file for one in staged for file in one.files]
        vfs = OsVfs()
        remove_staged(vfs, CommitRecords(vfs, self.path), job_id, files)


@contextlib.contextmanager
def opened(options: WriteOptions) -> Iterator[MessageStoreManager]:
    """Open the store for writing; wait while another process has it open."""
    size = options.store.segment_size_bytes
    with waited_for(
        lambda: tubestore.open(options.path, background=False, segment_size_bytes=size),
        options.path,
        options.lock_timeout_ms,
    ) as store:
        yield store


def waited_for(open_store: Callable[[], S], path: str, timeout_ms: int) -> S:
    """Open a store when its lock is free; StoreLocked after the timeout."""
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        try:
            return open_store()
        except StoreLocked as locked:
            if time.monotonic() >= deadline:
                holder = f"another process for {timeout_ms} ms (option lockTimeoutMs)"
                raise StoreLocked(path, holder) from locked
            time.sleep(_PAUSE * random.uniform(1, 10))
