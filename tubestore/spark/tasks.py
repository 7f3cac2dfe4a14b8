"""What the sources and sinks share of being called by Spark: reading a split, errors, words.

Next to read: `source.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tubestore.errors import TubeStoreError
from tubestore.spark.options import ReadOptions
from tubestore.spark.reading import Reading
from tubestore.spark.shapes import SHAPES


def reading_of(options: ReadOptions, schema: StructType) -> Reading:
    """Return how the splits of a batch or a stream are read."""
    shape = SHAPES[options.shape]
    return Reading(
        shape,
        shape.chosen(to_arrow_schema(schema, timezone="UTC")),
        options.filter,
        options.verify_crc,
        options.fail_on_corrupt,
    )


class ReadsSplits(Protocol):
    """What a task has to read its split with."""

    def batches(self, split: Any) -> Iterator[pa.RecordBatch]:
        """Read a split."""


def read_partition(reading: ReadsSplits, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read what Spark handed to a task; a job without splits has one task with nothing to do."""
    with plain_errors():
        if partition.value is not None:
            yield from reading.batches(partition.value)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let the user see the sentence of an error of ours, and not the way through Spark to it.

    This process ends with the error, so the variable that PySpark looks at stays set.
    """
    try:
        yield
    except TubeStoreError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def say(text: str) -> None:
    """Tell something from a process that Spark runs: its stderr is the driver's."""
    print(f"tubestore: {text}", file=sys.stderr)
