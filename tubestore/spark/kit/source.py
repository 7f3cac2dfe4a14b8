"""What Spark calls of a data source, whatever kind of store it is over.

Spark makes and asks these objects in processes of its own on the driver's machine, and sends
them to the tasks. Where Python runs what:

| method | process |
| --- | --- |
| `schema` | at `load()` |
| `streamReader` | one for the life of a query |
| `reader`, `partitions` | once a DataFrame, at its first action: the plan is a snapshot |
| `read` | the task |
| `writer`, `streamWriter` | once a job, once a micro-batch (`sink.py`) |

A `where` is pushed down for DataFrames of `read` in sessions that allow it; `pushdown.py` has the
reason. Any other reader has no `pushFilters`: Spark would fail in a session without the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tubestore.spark.kit.pushdown import Pushable, keep, push
from tubestore.spark.kit.settings import check_settings
from tubestore.spark.kit.sink import StoreStreamWriter, StoreWriter, appended_schema
from tubestore.spark.kit.tasks import SplitReader, plain_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class StoreKind:
    """What differs between the sources; options are those of `read_options.parse`."""

    format: str
    #: Classes with `parse(texts, stream=…)`.
    read_options: Any
    write_options: Any
    #: Has `prepare(options, schema)`; returns what writes.
    load: Any
    shapes: Mapping[str, Any]
    #: Raises if the store cannot be read with these options.
    check: Callable[[Any], object]
    #: Returns how the splits of a batch or a stream are read.
    reading_of: Callable[[Any, StructType], Any]
    #: Returns the splits of a batch.
    plan: Callable[[Any], Any]
    stream_reader: Callable[[Any, StructType], DataSourceStreamReader]
    #: Columns with bounds that a batch applies.
    pushable: Mapping[str, Pushable]
    #: By shape a column that no row is without.
    always: Mapping[str, str]
    #: Returns a DataFrame to be sorted, and the columns that group rows in one task.
    grouped: Callable[[DataFrame, Any], tuple[DataFrame, list[str]]]


class PushingReader(SplitReader):
    """Reads what passes the filters that Spark pushes down."""

    def __init__(self, kind: StoreKind, options: Any, schema: StructType) -> None:
        super().__init__(kind.reading_of(options, schema), partial(kind.plan, options))
        self._kind, self._options, self._schema = kind, options, schema

    def __getstate__(self) -> dict[str, Any]:
        # The tasks get a copy: they only read, and the kind is not sent.
        return {"reading": self.reading, "_make": None}

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Take filters; returns those that Spark has to apply itself."""
        with plain_errors():
            source_of = self._kind.shapes[self._options.shape].source_of
            pushed, left = push(filters, self._kind.pushable, source_of)
            keep(self._options.pushes, pushed)
            options = self._options.narrow(pushed)
            self.reading = self._kind.reading_of(options, self._schema)
            self._make = partial(self._kind.plan, options)
            self.remark = f"pushed down: {pushed}" if pushed else "nothing to push down"
        return left


class StoreSource(DataSource):
    """A data source of a kind of store; a subclass has the kind."""

    kind: ClassVar[StoreKind]

    @classmethod
    def register(cls, spark: SparkSession) -> None:
        """Register the format in a session; print once which of its settings cost something."""
        spark.dataSource.register(cls)
        check_settings(spark)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.kind.format

    def schema(self) -> StructType:
        """Return the columns; at this point bad options and bad stores are refused."""
        with plain_errors():
            # Spark does not pass whether it is for a stream.
            options = self.kind.read_options.parse(self.options, stream=None)
            self.kind.check(options)
            shape = self.kind.shapes[options.shape]
            return from_arrow_schema(shape.shown(headers=options.include_headers))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        with plain_errors():
            options = self.kind.read_options.parse(self.options)
            if options.pushes is not None:
                return PushingReader(self.kind, options, schema)
            return SplitReader(
                self.kind.reading_of(options, schema), partial(self.kind.plan, options)
            )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        with plain_errors():
            options = self.kind.read_options.parse(self.options, stream=True)
            return self.kind.stream_reader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a DataFrame."""
        with plain_errors():
            options = self.kind.write_options.parse(self.options)
            load = self.kind.load.prepare(options, appended_schema(schema, overwrite))
            return StoreWriter(load, options.job_id, options.handover)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of one micro-batch."""
        with plain_errors():
            options = self.kind.write_options.parse(self.options, stream=True)
            load = self.kind.load.prepare(options, appended_schema(schema, overwrite))
            return StoreStreamWriter(load, options.application)
