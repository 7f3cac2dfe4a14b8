"""A RocketMQ store as a stream: the log is one sequence, so a position is one physical offset.

    {"v": 1, "store": "<uuid or null>", "log": <physical offset>}

Next to read: `source.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from rocketcompat.spark.log_batches import LogBatches
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.reading import LogReading
from tubestore.spark.tasks import plain_errors, read_partition


class RocketStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a RocketMQ store as a stream."""

    def __init__(self, options: RocketOptions, reading: LogReading) -> None:
        self.options, self.reading = options, reading
        self._made: LogBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The tasks get a copy: they only read.
        return {"options": self.options, "reading": self.reading, "_made": None}

    @property
    def _batches(self) -> LogBatches:
        if self._made is None:
            self._made = LogBatches(replace(self.options))
        return self._made

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts."""
        with plain_errors():
            return self._batches.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return what the options allow a batch to have."""
        if self.options.max_rows_per_trigger is not None:
            return ReadMaxRows(self.options.max_rows_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the batch that begins at `start`."""
        rows = size = None
        if not isinstance(limit, ReadAllAvailable):
            rows, size = self.options.max_rows_per_trigger, self.options.max_bytes_per_trigger
        with plain_errors():
            return self._batches.latest(start, rows, size)

    def prepareForTriggerAvailableNow(self) -> None:
        """Go no further than what is there now."""
        with plain_errors():
            self._batches.freeze()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of everything."""
        with plain_errors():
            return self._batches.end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a batch."""
        with plain_errors():
            return [InputPartition(split) for split in self._batches.plan(start, end).splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split, in a task."""
        return read_partition(self.reading, partition)
