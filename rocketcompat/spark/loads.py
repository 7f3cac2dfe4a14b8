"""A load into a log: rows staged by tasks, and published by one process in one step.

As `tubestore.spark.kit.loads`, with the same promises.

Nothing here imports Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

import rocketcompat
from rocketcompat.options import MessageStoreConfig
from rocketcompat.spark.intake import RocketIntake
from rocketcompat.spark.write_options import RocketWriteOptions
from rocketcompat.staging.pieces import LogRecords, StagedPiece
from rocketcompat.staging.publish import LogPublishResult
from rocketcompat.staging.writer import StagedLogWriter
from tubestore.core.paths import join
from tubestore.core.vfs import OsVfs
from tubestore.spark.kit.loads import waited_for
from tubestore.spark.kit.publishing import Written, rejected_rows
from tubestore.staging.placing import Spread
from tubestore.staging.rejected import Sieve
from tubestore.staging.roll_forward import remove_staged


@dataclass(frozen=True)
class RocketLoad:
    """Where rows go, and how; the same in all tasks and on the driver. Picklable."""

    options: RocketWriteOptions
    config: MessageStoreConfig
    intake: RocketIntake | None = None

    @classmethod
    def prepare(cls, options: RocketWriteOptions, schema: pa.Schema | None) -> RocketLoad:
        """Check columns (none for a job that has its own) and the store, before anything else."""
        intake = None
        if schema is not None:
            intake = RocketIntake(schema, options.topic, options.queues)
        return cls(options, options.config(), intake)

    @property
    def path(self) -> str:
        """The store's directory."""
        return self.options.path

    @property
    def rejected_path(self) -> str | None:
        """Where rows go that the store does not take; None: they fail the job."""
        return self.options.rejected_path

    def described(self, given: Mapping[str, Any]) -> StagedPiece:
        """Return what a task staged, from its JSON object."""
        return StagedPiece.from_json(given)

    def is_published(self, job_id: str) -> bool:
        """True if a job of this name is in the store already."""
        return job_id in LogRecords(OsVfs(), self.path).ids()

    def writer(self, job_id: str, attempt: str) -> StagedLogWriter:
        """Return what a task stages records with."""
        return StagedLogWriter(self.path, job_id, attempt, config=self.config)

    def stage(
        self,
        job_id: str,
        attempt: str,
        batches: Iterable[pa.RecordBatch],
        *,
        content: bool = False,
        sieve: Sieve | None = None,
    ) -> list[StagedPiece]:
        """Write rows to staged files; they are synced when this returns.

        `sieve` gets the rows that the store does not take; without one they are an error.
        """
        intake, rows = self.intake, 0
        assert intake is not None
        with self.writer(job_id, attempt) as writer:

            def take(lacking: frozenset[str], part: pa.RecordBatch) -> None:
                nonlocal rows
                writer.write(intake.table(part, rows, lacking))
                rows += part.num_rows

            for batch in batches:
                if batch.num_rows:
                    put = partial(take, intake.lacking(batch))
                    if sieve is None:
                        put(batch)
                    else:
                        sieve.take(batch, put)
            return writer.finish()

    def publish(
        self,
        job_id: str,
        staged: list[StagedPiece],
        query: str | None = None,
        spread: Spread | None = None,
    ) -> LogPublishResult:
        """Make the pieces part of the log, in this order; StoreLocked after the timeout.

        `query`: the query of the batch; JobTaken if the store has another one under this id.
        `spread` has tasks write the log's files.
        Queues and index have them, synced, when this returns: a broker may open the store.
        """
        open_store = partial(rocketcompat.open, self.path, "w", self.config, background=False)
        with waited_for(open_store, self.path, self.options.lock_timeout_ms) as store:
            result = store.publish(job_id, staged, query=query, spread=spread)
            store.clean_staging()  # what others left that gave up days ago
            return result

    def written(self, job_id: str, *, replayed: bool) -> Written:
        """Return the result of a published job, as far as the store keeps it."""
        record = LogRecords(OsVfs(), self.path).find(job_id)
        rejected = rejected_rows(self.rejected_path, job_id)
        if record is None:
            return Written(job_id, replayed, rejected=rejected)
        files = tuple(join(self.path, part.path) for part in record.parts)
        offsets = {"log": (record.start, record.end)} if record.parts else {}
        return Written(job_id, replayed, record.rows, files, offsets, rejected)

    def abort(self, job_id: str, staged: Sequence[StagedPiece]) -> None:
        """Remove what this run of a job staged, unless it may be published already."""
        files = [file for one in staged for file in one.files]
        vfs = OsVfs()
        remove_staged(vfs, LogRecords(vfs, self.path), job_id, files)
