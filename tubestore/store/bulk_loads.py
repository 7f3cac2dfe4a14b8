"""Publishing into an open store; what it does and guarantees is in `publish.py`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import numpy as np

from tubestore.errors import InvalidMessage, documented
from tubestore.options import TopicOptions
from tubestore.shard.message_store import MessageStore
from tubestore.staging.commit_records import CommitRecords
from tubestore.staging.job_files import StagedFile, check_publish_arguments, check_query
from tubestore.store import publish as publishing
from tubestore.store.open_topics import OpenTopics
from tubestore.store.publish import PublishResult
from tubestore.values import Age, checked_age_ms

Array = np.ndarray[Any, Any]


class BulkLoads(OpenTopics):
    """What a store does with files that come ready-made; `MessageStoreManager` is made of it."""

    @abstractmethod
    def next_msg_ids(self, count: int) -> Array:
        """Reserve `count` ids in a row (int64)."""

    @abstractmethod
    def showing(self) -> AbstractContextManager[Any]:
        """Hold off whoever takes a view of several shards."""

    @documented
    def publish(
        self,
        job_id: str,
        staged: Iterable[StagedFile | Mapping[str, Any]],
        *,
        create_topics: bool = False,
        threads: int | None = None,
        query: str | None = None,
    ) -> PublishResult:
        """Make the files of a job part of the store, in one atomic step, at most once for ever.

        `staged`: what the `tubestore.staging.StagedWriter`s of its tasks described, in the order
        in which messages shall follow each other. `create_topics`: topics that are missing or
        too small are made as large as the files need. `threads` work on large jobs (by default
        one a core). `tubestore.store.publish` says what is guaranteed and when. `query` names whose
        batch this is, a job `name:<number>`: the name is this query's from then on, and a batch
        that comes again has to have the same rows, else JobTaken.

        Raises InvalidMessage (a file is missing or not as described), UnknownTopic, DiskFull
        before anything has changed; StoreFailed when it is not known how far it came: open the
        store again. Repeating the call is always safe.
        """
        check_publish_arguments(staged, threads)
        with self._topics.lock:
            self._check_open(writing=True)
            return publishing.publish(
                self,
                job_id,
                staged,
                create_topics=create_topics,
                threads=threads,
                query=check_query(job_id, query),
            )

    @documented
    def abort(self, job_id: str) -> PublishResult | None:
        """Give a job up and remove what it staged; returns its result if it was published."""
        with self._topics.lock:
            self._check_open(writing=True)
            return publishing.abort(self.vfs, self.root, job_id)

    @documented
    def clean_staging(self, grace: Age = timedelta(days=1)) -> list[str]:
        """Remove what jobs staged that have written nothing for `grace`; returns their names.

        `grace`: ms, a timedelta, or a text such as "36h". The background does so by itself after a
        day (`staging_grace_ms`).
        """
        grace_ms = checked_age_ms(grace, "grace")
        with self._topics.lock:
            self._check_open(writing=True)
            records = CommitRecords(self.vfs, self.root)
            return publishing.clean_staging(records, self.vfs, self.clock.now_ms(), grace_ms)

    def _clean_old_staging(self) -> None:
        """Do so in the background, unless a job is about to be published: then the next time."""
        if self._topics.lock.acquire(blocking=False):
            try:
                self.clean_staging(timedelta(milliseconds=self.options.staging_grace_ms))
            finally:
                self._topics.lock.release()

    def shards_to_publish(
        self, staged: list[StagedFile], *, create: bool
    ) -> dict[tuple[str, int], MessageStore]:
        """Return the shards of staged files by topic and store id, opened for writing."""
        needed: dict[str, TopicOptions] = {}
        for file in staged:
            options = TopicOptions(partitions=file.partitions, stores=file.store_id + 1)
            needed[file.topic] = needed.get(file.topic, options).grown_to(options)
        if create:
            self.ensure_topics(needed)
        for name, options in needed.items():
            if not (known := self.topic(name).options).covers(options):
                raise InvalidMessage(f"topic {name!r} has {known}, the job needs {options}")
        keys = {(file.topic, file.store_id) for file in staged}
        return {key: self.topic(key[0]).writable(key[1]) for key in keys}
