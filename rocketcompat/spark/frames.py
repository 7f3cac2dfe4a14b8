"""DataFrames over a RocketMQ store: options checked here, where the caller sees the error.

Next to read: `source.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rocketcompat.directory import StoreDirectory
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.planning import check_topics
from rocketcompat.spark.shapes import SHAPES
from tubestore.spark.frames import as_text, columns_of, on_the_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    from pyspark.sql.pandas.types import from_arrow_schema

    from rocketcompat.spark.source import register

    texts = {name: as_text(value) for name, value in given.items()}
    options = RocketOptions.parse({**texts, "path": str(path)}, stream=stream)
    if on_the_driver(spark):
        path = os.path.abspath(options.path)
        check_topics(StoreDirectory(path), options)
    register(spark)
    reader = reader.format("rocketmq").options(**texts)
    if columns is not None:
        reader = reader.schema(from_arrow_schema(columns_of(SHAPES[options.shape].schema, columns)))
    frame: DataFrame = reader.load(str(path))
    return frame
