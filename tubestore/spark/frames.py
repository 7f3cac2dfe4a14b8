"""DataFrames over a store: options checked here, where the caller sees the error."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tubestore.core.vfs import OsVfs
from tubestore.spark.kit.loads import Load
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.kit.shapes import SHAPES, Shape
from tubestore.spark.kit.write_options import WriteOptions
from tubestore.spark.planning import choose_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def read_frame(
    spark: SparkSession, path: str, columns: Sequence[str] | None, given: Mapping[str, Any]
) -> DataFrame:
    """Return the DataFrame of a store; see `tubestore.spark.read`."""
    return _loaded(spark, spark.read, path, columns, given, stream=False)


def read_stream_frame(
    spark: SparkSession, path: str, columns: Sequence[str] | None, given: Mapping[str, Any]
) -> DataFrame:
    """Return the streaming DataFrame of a store; see `tubestore.spark.read_stream`."""
    return _loaded(spark, spark.readStream, path, columns, given, stream=True)


def _loaded(
    spark: SparkSession,
    reader: Any,
    path: str,
    columns: Sequence[str] | None,
    given: Mapping[str, Any],
    *,
    stream: bool,
) -> DataFrame:
    from tubestore.spark.source import register

    texts = {name: as_text(value) for name, value in given.items()}
    options = ReadOptions.parse({**texts, "path": str(path)}, stream=stream)
    if on_the_driver(spark):
        path = os.path.abspath(options.path)  # Spark was started in another directory, maybe
        choose_shards(OsVfs(), replace(options, path=path))
    register(spark)
    return loaded(reader.format("tubestore"), path, SHAPES[options.shape], columns, texts)


def loaded(
    reader: Any, path: str, shape: Shape, columns: Sequence[str] | None, texts: Mapping[str, str]
) -> DataFrame:
    """Load from a reader with a chosen format; `shape` has the columns of that format."""
    from pyspark.sql.pandas.types import from_arrow_schema

    reader = reader.options(**texts)
    if columns is not None:
        reader = reader.schema(from_arrow_schema(shape.part(columns)))
    frame: DataFrame = reader.load(str(path))
    return frame


def as_text(value: Any) -> str:
    """Return the text of an option that was given as a Python value.

    >>> as_text(True), as_text(["a", "b"]), as_text({"t": [0]})
    ('true', 'a,b', '{"t": [0]}')
    """
    import json
    from datetime import datetime

    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return json.dumps({k: dict(v) if isinstance(v, Mapping) else v for k, v in value.items()})
    if isinstance(value, list | tuple | set | frozenset | range):
        return ",".join(str(v) for v in value)
    return str(value)


def on_the_driver(spark: SparkSession) -> bool:
    """True if this process runs where Spark plans: a Connect client may be anywhere."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def write_frame(
    df: DataFrame,
    path: str,
    job_id: str | None,
    order_by: str | Sequence[str] | None,
    given: Mapping[str, Any],
) -> None:
    """Append a DataFrame to a store; see `tubestore.spark.write`."""
    texts = texts_of(given, job_id)
    path, load = _load(df, path, texts, stream=False)
    if order_by is not None:
        df = ordered(df, load, [order_by] if isinstance(order_by, str) else list(order_by))
    append(df, "tubestore", path, texts)


def append(df: DataFrame, format: str, path: str, texts: Mapping[str, str]) -> None:
    """Append a DataFrame by a format with checked options."""
    df.write.format(format).mode("append").options(**texts).save(path)


def texts_of(given: Mapping[str, Any], job_id: str | None = None) -> dict[str, str]:
    """Return options as texts, with the job's id."""
    named = {} if job_id is None else {"jobId": job_id}
    return {name: as_text(value) for name, value in {**given, **named}.items()}


def write_stream_frame(
    df: DataFrame,
    path: str,
    checkpoint: str,
    trigger: Mapping[str, Any] | None,
    given: Mapping[str, Any],
) -> StreamingQuery:
    """Start a query that appends to a store; see `tubestore.spark.write_stream`."""
    texts = texts_of(given)
    path, _ = _load(df, path, texts, stream=True)
    return start(df, "tubestore", path, texts, checkpoint, trigger)


def start(
    df: DataFrame,
    format: str,
    path: str,
    texts: Mapping[str, str],
    checkpoint: str,
    trigger: Mapping[str, Any] | None,
) -> StreamingQuery:
    """Start a query that appends by a format with checked options."""
    writer = df.writeStream.format(format).options(**texts)
    writer = writer.option("checkpointLocation", checkpoint)
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.start(path)


def _load(df: DataFrame, path: str, texts: Mapping[str, str], *, stream: bool) -> tuple[str, Load]:
    """Check what can be checked here: (the path for Spark, the load)."""
    from tubestore.spark.source import register

    options = WriteOptions.parse({**texts, "path": str(path)}, stream=stream)
    options = replace(options, path=path_for(df, options.path))
    register(df.sparkSession)
    return options.path, Load.prepare(options, arrow_schema(df))


def path_for(df: DataFrame, path: str) -> str:
    """Return a store's path as Spark's processes find it."""
    return os.path.abspath(path) if on_the_driver(df.sparkSession) else path


def arrow_schema(df: DataFrame) -> Any:
    """Return a DataFrame's schema as the sinks see it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(df.schema, timezone="UTC")


def ordered(df: DataFrame, load: Load, columns: list[str]) -> DataFrame:
    """Bring each partition's rows into one task, sorted by columns."""
    from pyspark.sql.types import IntegerType, StructField, StructType

    added = None
    if not load.intake.has_partitions:
        added = StructField("partition", IntegerType())
        df = df.mapInArrow(load.with_partitions, StructType([*df.schema.fields, added]))
    groups = [load.intake.columns[n] for n in ("topic", "partition") if n in load.intake.columns]
    groups += [added.name] if added else []
    return df.repartition(*groups).sortWithinPartitions(*groups, *columns)
