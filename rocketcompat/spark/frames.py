"""DataFrames over a RocketMQ store: options checked here, where the caller sees the error."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rocketcompat.spark.loads import RocketLoad
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.planning import check_topics
from rocketcompat.spark.shapes import SHAPES
from rocketcompat.spark.write_options import RocketWriteOptions
from tubestore.errors import InvalidOption
from tubestore.spark.frames import (
    append,
    arrow_schema,
    as_text,
    loaded,
    on_the_driver,
    path_for,
    start,
    texts_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def load(
    spark: SparkSession,
    reader: Any,
    path: str,
    columns: Sequence[str] | None,
    given: Mapping[str, Any],
    *,
    stream: bool,
) -> DataFrame:
    """Return the DataFrame of a store; see `rocketcompat.spark.read`."""
    from rocketcompat.spark.source import register

    texts = {name: as_text(value) for name, value in given.items()}
    options = RocketOptions.parse({**texts, "path": str(path)}, stream=stream)
    if on_the_driver(spark):
        path = os.path.abspath(options.path)
        check_topics(options.directory(), options)
    register(spark)
    return loaded(reader.format("rocketmq"), path, SHAPES[options.shape], columns, texts)


def write_frame(
    df: DataFrame,
    path: str,
    job_id: str | None,
    order_by: str | Sequence[str] | None,
    given: Mapping[str, Any],
) -> None:
    """Append a DataFrame to a store; see `rocketcompat.spark.write`."""
    texts = texts_of(given, job_id)
    path, load = _load(df, path, texts, stream=False)
    if order_by is not None:
        assert load.intake is not None
        columns = load.intake.columns
        if "queue_id" not in columns:
            raise InvalidOption("order_by", "a column queue_id (or partition) is needed")
        groups = [columns[name] for name in ("topic", "queue_id") if name in columns]
        wanted = [order_by] if isinstance(order_by, str) else list(order_by)
        df = df.repartition(*groups).sortWithinPartitions(*groups, *wanted)
    append(df, "rocketmq", path, texts)


def write_stream_frame(
    df: DataFrame,
    path: str,
    checkpoint: str,
    trigger: Mapping[str, Any] | None,
    given: Mapping[str, Any],
) -> StreamingQuery:
    """Start a query that appends to a store; see `rocketcompat.spark.write_stream`."""
    texts = texts_of(given)
    path, _ = _load(df, path, texts, stream=True)
    return start(df, "rocketmq", path, texts, checkpoint, trigger)


def _load(
    df: DataFrame, path: str, texts: Mapping[str, str], *, stream: bool
) -> tuple[str, RocketLoad]:
    """Check what can be checked here: (the path for Spark, the load)."""
    from rocketcompat.spark.source import register

    options = RocketWriteOptions.parse({**texts, "path": str(path)}, stream=stream)
    options = replace(options, path=path_for(df, options.path))
    register(df.sparkSession)
    return options.path, RocketLoad.prepare(options, arrow_schema(df))
