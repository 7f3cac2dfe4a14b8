"""The columns of a DataFrame, tubestore's or Kafka's, and the source of each.

The types are Arrow's as Spark takes them: a body is `binary` (Spark refuses `large_binary`), a
time is in µs. Everything is nullable, as it is in a schema that a user writes down.

Nothing here imports Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tubestore.core import kernels
from tubestore.errors import InvalidOption
from tubestore.messages import MESSAGE_SCHEMA, OLD_COLUMNS, warn_of_old_columns

TEXT, BYTES, TIME = pa.string(), pa.binary(), pa.timestamp("us", "UTC")
_LARGE_BINARY = pa.large_binary()
#: The columns of a store's attributes, TubeMQ's and RocketMQ's.
ATTRIBUTES = ("attributes", "properties")
HEADERS = pa.list_(pa.struct([("key", TEXT), ("value", BYTES)]))


@dataclass(frozen=True)
class Shape:
    """Columns by name and type, and the column of the store that each one is made from."""

    name: str
    schema: pa.Schema
    #: None: the format has nothing for it, the column is null.
    sources: Mapping[str, str | None]
    #: Former names of columns, still taken: a table that Spark's catalog keeps has a fixed schema.
    old: Mapping[str, str] = field(default_factory=dict)

    def sources_of(self, columns: Sequence[str]) -> list[str]:
        """Return the store's columns that some columns are made from."""
        found = map(self.source_of, columns)
        return [name for name in dict.fromkeys(found) if name is not None]

    def source_of(self, column: str) -> str | None:
        """Return the store's column that a column is made from, None if there is none."""
        return self.sources[self.old.get(column, column)]

    def part(self, columns: Sequence[str]) -> pa.Schema:
        """Return the schema of some columns; InvalidOption for an unknown one."""
        if isinstance(columns, str) or not columns:
            raise InvalidOption("columns", "a list of names")
        unknown = [n for n in columns if self.old.get(n, n) not in self.schema.names]
        if unknown:
            known = ", ".join(self.schema.names)
            raise InvalidOption("columns", f"no {', '.join(unknown)}; there are {known}")
        if self.old:
            warn_of_old_columns(columns)
        return pa.schema([self.schema.field(self.old.get(n, n)).with_name(n) for n in columns])

    def shown(self, *, headers: bool) -> pa.Schema:
        """Return the schema, with the column of attributes or properties or without it."""
        left = [n for n in self.schema.names if headers or self.sources[n] not in ATTRIBUTES]
        return pa.schema([self.schema.field(name) for name in left])

    def chosen(self, wanted: pa.Schema) -> pa.Schema:
        """Check the schema that a user asked for: names and types of this shape, in any order."""
        for column in wanted:
            name = self.old.get(column.name, column.name)
            if name not in self.schema.names:
                known = ", ".join(self.schema.names)
                raise InvalidOption("schema", f"no column {name}; there are {known}")
            ours = self.schema.field(name).type
            if column.type != ours:
                raise InvalidOption("schema", f"column {name} is {ours}, not {column.type}")
        return wanted

    def arrange(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Make the columns of `schema`, a part of this shape's, from columns of the store."""
        arrays = []
        for column in schema:
            source = self.source_of(column.name)
            if source is None:
                arrays.append(pa.nulls(batch.num_rows, column.type))
            else:
                arrays.append(as_type(batch.column(source), column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column of the store as Spark takes it."""
    if column.type == wanted:
        return column
    if wanted == BYTES and column.type == _LARGE_BINARY:
        return kernels.narrowed(column)
    return column.cast(wanted)


def spark_type(type: Any) -> Any:
    """Return the Arrow type that Spark takes for a type of the store.

    >>> spark_type(pa.large_binary()), spark_type(pa.int32())
    (DataType(binary), DataType(int32))
    """
    if pa.types.is_large_binary(type):
        return BYTES
    return TIME if pa.types.is_timestamp(type) else type


TUBESTORE = Shape(
    "tubestore",
    pa.schema([(field.name, spark_type(field.type)) for field in MESSAGE_SCHEMA]),
    {name: name for name in MESSAGE_SCHEMA.names},
    OLD_COLUMNS,
)

#: What a Kafka source gives, so that code for one reads a store too.
KAFKA_SCHEMA = pa.schema(
    [
        ("key", BYTES),
        ("value", BYTES),
        ("topic", TEXT),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIME),
        ("headers", HEADERS),
    ]
)
KAFKA = Shape(
    "kafka",
    KAFKA_SCHEMA,
    {
        "key": None,  # TubeMQ's format keeps none
        "value": "body",
        "topic": "topic",
        "partition": "partition",
        "offset": "offset",
        "timestamp": "received_time",
        "headers": "attributes",
    },
)
SHAPES = {shape.name: shape for shape in (TUBESTORE, KAFKA)}
