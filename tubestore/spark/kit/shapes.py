"""The columns of a DataFrame, tubestore's or Kafka's, and the source of each.

The types are Arrow's as Spark takes them: a body is `binary` (Spark refuses `large_binary`), a
time is in µs. Everything is nullable, as it is in a schema that a user writes down.

Nothing here imports Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tubestore.core import kernels
from tubestore.errors import InvalidOption
from tubestore.messages import MESSAGE_SCHEMA

TEXT, BYTES, TIME = pa.string(), pa.binary(), pa.timestamp("us", "UTC")
_LARGE_BINARY = pa.large_binary()
HEADERS = pa.list_(pa.struct([("key", TEXT), ("value", BYTES)]))


@dataclass(frozen=True)
class Shape:
    """Columns by name and type, and the column of the store that each one is made from."""

    name: str
    schema: pa.Schema
    #: None: the format has nothing for it, the column is null.
    sources: Mapping[str, str | None]

    def sources_of(self, columns: Sequence[str]) -> list[str]:
        """Return the store's columns that some columns are made from."""
        found = (self.sources[name] for name in columns)
        return [name for name in dict.fromkeys(found) if name is not None]

    def chosen(self, wanted: pa.Schema) -> pa.Schema:
        """Check the schema that a user asked for: names and types of this shape, in any order."""
        for field in wanted:
            if field.name not in self.schema.names:
                known = ", ".join(self.schema.names)
                raise InvalidOption("schema", f"no column {field.name}; there are {known}")
            ours = self.schema.field(field.name).type
            if field.type != ours:
                raise InvalidOption("schema", f"column {field.name} is {ours}, not {field.type}")
        return wanted

    def arrange(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Make the columns of `schema`, a part of this shape's, from columns of the store."""
        arrays = []
        for field in schema:
            source = self.sources[field.name]
            if source is None:
                arrays.append(pa.nulls(batch.num_rows, field.type))
            else:
                arrays.append(as_type(batch.column(source), field.type))
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


_OWN = [name for name in MESSAGE_SCHEMA.names if name not in ("flag", "report_address")]
TUBESTORE = Shape(
    "tubestore",
    pa.schema([(name, spark_type(MESSAGE_SCHEMA.field(name).type)) for name in _OWN]),
    {name: name for name in _OWN},
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
        "partition": "partition_id",
        "offset": "offset",
        "timestamp": "received_time",
        "headers": "attributes",
    },
)
SHAPES = {shape.name: shape for shape in (TUBESTORE, KAFKA)}
