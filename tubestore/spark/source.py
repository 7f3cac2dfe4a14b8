"""The data source `tubestore`: what Spark calls, and what it is answered.

Spark makes and asks these objects in processes of its own on the driver's machine, and sends
them to the tasks. Where Python runs what:

| method | process |
| --- | --- |
| `schema` | at `load()` |
| `streamReader` | one for the life of a query |
| `reader`, `partitions` | once a DataFrame, at its first action: the plan is a snapshot |
| `read` | the task |
| `writer`, `streamWriter` | once a job, once a micro-batch (`sink.py`) |

There is no `pushFilters`: Spark 4.3.0 keeps what one query pushed down for the next one that
uses the same DataFrame, and gives wrong rows without a word. A `where` therefore reads
everything; options prune.
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
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tubestore.core.vfs import OsVfs
from tubestore.spark.kit.loads import Load
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.kit.settings import check_settings
from tubestore.spark.kit.shapes import SHAPES
from tubestore.spark.kit.sink import StoreStreamWriter, StoreWriter, appended_schema
from tubestore.spark.kit.tasks import SplitReader, plain_errors
from tubestore.spark.kit.write_options import WriteOptions
from tubestore.spark.planning import choose_shards, plan
from tubestore.spark.stream import reading_of, stream_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format in a session; print once which of its settings cost something."""
    spark.dataSource.register(TubeStoreSource)
    check_settings(spark)


class TubeStoreSource(DataSource):
    """`spark.read.format("tubestore").load("/path")`, after `tubestore.spark.register(spark)`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tubestore"

    def schema(self) -> StructType:
        """Return the columns; at this point bad options and bad stores are refused."""
        with plain_errors():
            options = ReadOptions.parse(self.options, stream=None)  # Spark does not pass which
            choose_shards(OsVfs(), options)
            return from_arrow_schema(SHAPES[options.shape].schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        with plain_errors():
            options = ReadOptions.parse(self.options)
            return SplitReader(reading_of(options, schema), partial(plan, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a DataFrame."""
        with plain_errors():
            options = WriteOptions.parse(self.options)
            load = Load.prepare(options, appended_schema(schema, overwrite))
            return StoreWriter(load, options.job_id)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of one micro-batch."""
        with plain_errors():
            options = WriteOptions.parse(self.options, stream=True)
            load = Load.prepare(options, appended_schema(schema, overwrite))
            return StoreStreamWriter(load, options.application)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        with plain_errors():
            return stream_reader(ReadOptions.parse(self.options, stream=True), schema)
