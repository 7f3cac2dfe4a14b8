"""The data source `rocketmq`: a RocketMQ store, its CommitLog, as a DataFrame.

`tubestore.spark.kit.source` describes what runs where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rocketcompat.spark.loads import RocketLoad
from rocketcompat.spark.options import PUSHABLE, RocketOptions
from rocketcompat.spark.planning import check_topics, plan
from rocketcompat.spark.reading import LogReading
from rocketcompat.spark.shapes import SHAPES
from rocketcompat.spark.stream import stream_reader
from rocketcompat.spark.write_options import RocketWriteOptions
from tubestore.errors import InvalidOption
from tubestore.spark.kit.source import StoreKind, StoreSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def reading_of(options: RocketOptions, schema: StructType) -> LogReading:
    """Return how the splits of a batch or a stream are read."""
    shape = SHAPES[options.shape]
    chosen = shape.chosen(to_arrow_schema(schema, timezone="UTC"))
    return LogReading(shape, chosen, options, options.directory().inferred)


def grouped(df: DataFrame, load: RocketLoad) -> tuple[DataFrame, list[str]]:
    """Return the rows, and the columns that name topic and queue."""
    assert load.intake is not None
    columns = load.intake.columns
    if "queue_id" not in columns:
        raise InvalidOption("order_by", "a column queue_id (or partition) is needed")
    return df, [columns[name] for name in ("topic", "queue_id") if name in columns]


class RocketMqSource(StoreSource):
    """`spark.read.format("rocketmq").load("/store")`, after `rocketcompat.spark.register`."""

    kind: ClassVar = StoreKind(
        "rocketmq", RocketOptions, RocketWriteOptions, RocketLoad, SHAPES,
        lambda options: check_topics(options.directory(), options), reading_of, plan,
        lambda options, schema: stream_reader(options, reading_of(options, schema)),
        PUSHABLE, {"rocketmq": "physical_offset"}, grouped,
    )  # fmt: skip
