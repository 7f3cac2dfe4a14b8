"""What the sources and sinks share of being called by Spark: reading a split, errors, words."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tubestore.errors import TubeStoreError
from tubestore.spark.kit.running import settle


class ReadsSplits(Protocol):
    """What a task has to read its split with."""

    def batches(self, split: Any) -> Iterator[pa.RecordBatch]:
        """Read a split."""


def read_partition(reading: ReadsSplits, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read what Spark handed to a task; a job without splits has one task with nothing to do."""
    with plain_errors():
        if partition.value is not None:
            yield from reading.batches(partition.value)


class SplitReader(DataSourceReader):
    """Reads a store as it is when the DataFrame is used for the first time.

    `make` plans: what it returns has `splits`, and can `describe` itself.
    """

    #: What is printed beside the plan.
    remark = "a where() filters afterwards; only options leave data unread"

    def __init__(self, reading: ReadsSplits, make: Callable[[], Any]) -> None:
        self.reading, self._make = reading, make

    def partitions(self) -> list[InputPartition]:
        """Plan: one partition a split."""
        with plain_errors():
            made = self._make()
        note(f"{made.describe()} ({self.remark})")
        return [InputPartition(split) for split in made.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split, in a task."""
        return read_partition(self.reading, partition)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Show the user the sentence of a TubeStoreError without its way through Spark.

    This process ends with the error, so the variable that PySpark reads stays set. All calls
    of Spark come through here first: the processes that plan are settled, too.
    """
    settle()
    try:
        yield
    except TubeStoreError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def note(text: str) -> None:
    """Print a line from a process that Spark runs: its stderr is the driver's."""
    print(f"tubestore: {text}", file=sys.stderr)
