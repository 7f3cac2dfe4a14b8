"""The stream sources' common part: what Spark asks once a trigger, of a log of any format.

One process on the driver's machine has a reader for the life of a query. Offsets are exact, so
a batch that is read again after a failure has the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tubestore.clock import Clock, SystemClock
from tubestore.spark.kit.options import SharedOptions
from tubestore.spark.kit.tasks import ReadsSplits, plain_errors, read_partition

Json = dict[str, Any]


class Batches(Protocol):
    """The next batches of a stream; positions as a checkpoint has them."""

    def initial(self) -> Json:
        """Return where a new query starts."""

    def latest(
        self, start: Json, rows: int | None, size: int | None, least: int | None = None
    ) -> Json:
        """Return the end of the batch that begins at `start`, with at most so much in it.

        That is `start` if there are less than `least` messages.
        """

    def freeze(self) -> None:
        """Go no further than what is there now."""

    def report(self) -> Json:
        """Return the end of everything, and how far the last batch is behind it."""

    def plan(self, start: Json, end: Json) -> Any:
        """Plan a batch: what is returned has `splits`."""

    def close(self) -> None:
        """Give up what is held for the query."""


class Patience:
    """How many messages a batch waits for: the option's, until the longest delay has passed.

    The first batch of a query waits for none, as Kafka's does not.
    """

    def __init__(self, options: SharedOptions, clock: Clock) -> None:
        self._options, self._clock = options, clock
        self._until: float | None = None
        self._ended = options.min_rows_per_trigger is None

    def least(self) -> int | None:
        """Return how many messages the next batch needs, None if it waits for none."""
        if self._ended or self._until is None or self._clock.monotonic() >= self._until:
            return None
        return self._options.min_rows_per_trigger

    def begin(self) -> None:
        """A batch was taken: the next one waits from now on."""
        if not self._ended:
            self._until = self._clock.monotonic() + self._options.max_delay_ms / 1000

    def end(self) -> None:
        """Wait for nothing from now on."""
        self._ended = True


class TriggeredReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log as a stream; `make` gives its `Batches`, once, on the driver's machine."""

    def __init__(
        self,
        options: SharedOptions,
        reading: ReadsSplits,
        make: Callable[[], Batches],
        clock: Clock | None = None,
    ) -> None:
        self.options, self.reading, self._make = options, reading, make
        self._made: Batches | None = None
        self._patience: Patience | None = Patience(options, clock or SystemClock())

    def __getstate__(self) -> dict[str, Any]:
        # The tasks get a copy: they only read.
        kept = {"options": self.options, "reading": self.reading}
        return kept | dict.fromkeys(("_make", "_made", "_patience"))

    @property
    def _batches(self) -> Batches:
        if self._made is None:
            self._made = self._make()
        return self._made

    def initialOffset(self) -> Json:
        """Return where a new query starts."""
        with plain_errors():
            return self._batches.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return what the options allow a batch to have."""
        if self.options.max_rows_per_trigger is not None:
            return ReadMaxRows(self.options.max_rows_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.min_rows_per_trigger is not None:
            return ReadMinRows(self.options.min_rows_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return the end of the batch that begins at `start`."""
        rows = size = least = None
        assert self._patience is not None
        if not isinstance(limit, ReadAllAvailable):
            # Spark has one limit; all of these options hold.
            rows, size = self.options.max_rows_per_trigger, self.options.max_bytes_per_trigger
            least = self._patience.least()
        with plain_errors():
            end = self._batches.latest(start, rows, size, least)
        if end != start or least is None:
            self._patience.begin()
        return end

    def prepareForTriggerAvailableNow(self) -> None:
        """Go no further than what is there now, and wait for nothing."""
        assert self._patience is not None
        self._patience.end()
        with plain_errors():
            self._batches.freeze()

    def reportLatestOffset(self) -> Json:
        """Return the end of everything: the progress shows it, and how far the query is behind."""
        with plain_errors():
            return self._batches.report()

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Plan a batch."""
        with plain_errors():
            return [InputPartition(split) for split in self._batches.plan(start, end).splits]

    def stop(self) -> None:
        """The query has ended: give up what is held for it."""
        if self._made is not None:
            self._made.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split, in a task."""
        return read_partition(self.reading, partition)
