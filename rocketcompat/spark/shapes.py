"""The columns of a DataFrame over a RocketMQ store: its own, or Kafka's.

`columns_of` makes only the columns that are asked for.

Nothing here imports Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rocketcompat.formats import MESSAGE_FIELD_COLUMNS, PROPERTY_KEYS
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.message_table import bodies_of, property_maps, states_of, table_of
from rocketcompat.record.rows import MESSAGE_SCHEMA
from tubestore.core.kernels import slices
from tubestore.spark.kit.shapes import BYTES, KAFKA_SCHEMA, TEXT, TIME, Shape, spark_type

#: What a row has besides the columns of `message_rows`: of its properties, and as a time.
EXTRA = pa.schema([("tags", TEXT), ("keys", TEXT), ("store_time", pa.timestamp("ms", "UTC"))])
ROCKETMQ_SCHEMA = pa.schema(
    [(f.name, spark_type(f.type)) for f in [*MESSAGE_SCHEMA, *EXTRA] if f.name != "store_time"]
    + [("store_time", TIME)]
)
ROCKETMQ = Shape("rocketmq", ROCKETMQ_SCHEMA, {name: name for name in ROCKETMQ_SCHEMA.names})
KAFKA = Shape(
    "kafka",
    KAFKA_SCHEMA,
    {
        "key": "keys",
        "value": "body",
        "topic": "topic",
        "partition": "queue_id",
        "offset": "queue_offset",
        "timestamp": "store_time",
        "headers": "properties",
    },
)
SHAPES = {shape.name: shape for shape in (ROCKETMQ, KAFKA)}


def columns_of(records: RecordColumns, names: Sequence[str]) -> pa.RecordBatch:
    """Return some columns of sound records."""
    whole: pa.Table | None = None
    arrays = []
    for name in names:
        made = _column(records, name)
        if made is None:
            whole = table_of(records) if whole is None else whole
            made = whole.column(name).combine_chunks()
        arrays.append(made)
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _column(records: RecordColumns, name: str) -> Any:
    """Return a column that is made by itself; None for one of `table_of`."""
    if name in MESSAGE_FIELD_COLUMNS:
        return pa.array(records.column(name))
    if name == "topic":
        return pa.array(records.topic_names, TEXT).take(pa.array(records.topic_codes))
    if name == "physical_offset":
        return pa.array(records.starts + records.base)
    if name == "store_size":
        return pa.array(records.column("total_size"))
    if name == "body":
        return bodies_of(records)
    if name == "properties":
        return property_maps(records)
    if name == "state":
        return states_of(records)
    if name == "tags":
        return _text(records.tags())
    if name == "keys":
        return _text(keys_of(records))
    if name == "store_time":
        return pa.array(records.column("store_timestamp"), pa.timestamp("ms", "UTC"))
    return None


def keys_of(records: RecordColumns) -> Any:
    """Return the keys of each row as they are stored, null without any."""
    return _property(records, PROPERTY_KEYS)


def _property(records: RecordColumns, name: str) -> Any:
    """Return the value of a property of each row, null without one."""
    rows, starts, ends = records.property_values(name)
    values = slices(records.property_bytes, starts, ends - starts)
    places = np.full(len(records), -1, np.int64)
    places[rows] = np.arange(len(rows))
    return values.take(pa.array(places, mask=places < 0))


def _text(values: Any) -> Any:
    try:
        return values.cast(TEXT)
    except pa.ArrowInvalid:
        texts = [v and v.decode("utf-8", "replace") for v in values.to_pylist()]
        return pa.array(texts, TEXT)


def unreadable(names: Sequence[str], start: int, size: int, state: str) -> pa.RecordBatch:
    """Return the row of a part of the log that holds no record."""
    known = {"physical_offset": start, "store_size": min(size, (1 << 31) - 1), "state": state}
    arrays = []
    for name in names:
        kind = EXTRA.field(name).type if name in EXTRA.names else MESSAGE_SCHEMA.field(name).type
        arrays.append(pa.array([known.get(name)], kind))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


assert BYTES.equals(ROCKETMQ_SCHEMA.field("body").type)
