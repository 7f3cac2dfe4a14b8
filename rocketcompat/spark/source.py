"""The data source `rocketmq`: a RocketMQ store, its CommitLog, as a DataFrame.

As `tubestore.spark.source`, which describes what runs where, and why nothing is pushed down.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from rocketcompat.spark.loads import RocketLoad
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.planning import check_topics, plan
from rocketcompat.spark.reading import LogReading
from rocketcompat.spark.shapes import SHAPES
from rocketcompat.spark.stream import stream_reader
from rocketcompat.spark.write_options import RocketWriteOptions
from tubestore.spark.kit.settings import check_settings
from tubestore.spark.kit.sink import StoreStreamWriter, StoreWriter, appended_schema
from tubestore.spark.kit.tasks import SplitReader, plain_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format in a session; print once which of its settings cost something."""
    spark.dataSource.register(RocketMqSource)
    check_settings(spark)


class RocketMqSource(DataSource):
    """`spark.read.format("rocketmq").load("/store")`, after `rocketcompat.spark.register`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "rocketmq"

    def schema(self) -> StructType:
        """Return the columns; at this point bad options and bad stores are refused."""
        with plain_errors():
            options = RocketOptions.parse(self.options, stream=None)
            check_topics(options.directory(), options)
            return from_arrow_schema(SHAPES[options.shape].schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        with plain_errors():
            options = RocketOptions.parse(self.options)
            return SplitReader(reading_of(options, schema), partial(plan, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a DataFrame."""
        with plain_errors():
            options = RocketWriteOptions.parse(self.options)
            load = RocketLoad.prepare(options, appended_schema(schema, overwrite))
            return StoreWriter(load, options.job_id)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of one micro-batch."""
        with plain_errors():
            options = RocketWriteOptions.parse(self.options, stream=True)
            load = RocketLoad.prepare(options, appended_schema(schema, overwrite))
            return StoreStreamWriter(load, options.application)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        with plain_errors():
            options = RocketOptions.parse(self.options, stream=True)
            return stream_reader(options, reading_of(options, schema))


def reading_of(options: RocketOptions, schema: StructType) -> LogReading:
    """Return how the splits of a batch or a stream are read."""
    shape = SHAPES[options.shape]
    chosen = shape.chosen(to_arrow_schema(schema, timezone="UTC"))
    return LogReading(shape, chosen, options, options.directory().inferred)
