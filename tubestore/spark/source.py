"""The data source `tubestore`: a store's topics as a DataFrame (`kit/source.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark.sql.types import IntegerType, StructField, StructType

from tubestore.disks.roots import disk_of
from tubestore.spark.kit.loads import Load
from tubestore.spark.kit.options import PUSHABLE, ReadOptions
from tubestore.spark.kit.shapes import SHAPES
from tubestore.spark.kit.source import StoreKind, StoreSource
from tubestore.spark.kit.tasks import plain_errors
from tubestore.spark.kit.write_options import WriteOptions
from tubestore.spark.planning import choose_shards, plan
from tubestore.spark.stream import reading_of, stream_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def grouped(df: DataFrame, load: Load) -> tuple[DataFrame, list[str]]:
    """Return the rows with their partitions, and the columns that name topic and partition."""
    columns, added = load.intake.columns, None
    if not load.intake.has_partitions:
        added = StructField("partition", IntegerType())
        df = df.mapInArrow(_Partitions(load), StructType([*df.schema.fields, added]))
    groups = [columns[name] for name in ("topic", "partition") if name in columns]
    return df, groups + ([added.name] if added else [])


class _Partitions:
    """What runs in a worker: adds the partition of each row."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            yield from self._load.with_partitions(batches)


class TubeStoreSource(StoreSource):
    """`spark.read.format("tubestore").load("/path")`, after `tubestore.spark.register(spark)`."""

    kind: ClassVar = StoreKind(
        "tubestore", ReadOptions, WriteOptions, Load, SHAPES,
        lambda options: choose_shards(disk_of(options.path), options), reading_of, plan,
        stream_reader, PUSHABLE, {"tubestore": "offset", "kafka": "offset"}, grouped,
    )  # fmt: skip
