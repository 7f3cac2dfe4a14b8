"""The stream source: what Spark asks of it once a trigger.

One process on the driver's machine has this object for the life of a query. Offsets are exact
(`micro_batches.py`), so a batch that is read again after a failure has the same messages.

Next to read: `micro_batches.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from pyspark.sql.types import StructType

from tubestore.spark.micro_batches import MicroBatches, Position
from tubestore.spark.options import ReadOptions
from tubestore.spark.tasks import plain_errors, read_partition, reading_of, say


class TubeStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a store as a stream."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.reading = reading_of(options, schema)
        self._made: MicroBatches | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The tasks get a copy: they only read.
        return {"options": self.options, "reading": self.reading, "_made": None}

    @property
    def _batches(self) -> MicroBatches:
        if self._made is None:
            self._made = MicroBatches(self.options, say=say)
        return self._made

    def _position(self, found: dict[str, Any]) -> Position:
        return Position.of_json(found, self.options.path)

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts."""
        with plain_errors():
            return self._batches.initial().as_json()

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
            # Spark knows one limit; both of ours hold.
            rows, size = self.options.max_rows_per_trigger, self.options.max_bytes_per_trigger
        with plain_errors():
            return self._batches.latest(self._position(start), rows, size).as_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Go no further than what is there now."""
        with plain_errors():
            self._batches.freeze()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of everything: the progress shows how far behind the query is."""
        with plain_errors():
            return self._batches.end().as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a batch."""
        with plain_errors():
            made = self._batches.plan(self._position(start), self._position(end))
        return [InputPartition(split) for split in made.splits]

    def stop(self) -> None:
        """Give the lease up: the query has ended."""
        if self._made is not None:
            self._made.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split, in a task."""
        return read_partition(self.reading, partition)
