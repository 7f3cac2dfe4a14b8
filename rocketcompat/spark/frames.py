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
from tubestore.spark.frames import as_text, loaded, on_the_driver

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
    from rocketcompat.spark.source import register

    texts = {name: as_text(value) for name, value in given.items()}
    options = RocketOptions.parse({**texts, "path": str(path)}, stream=stream)
    if on_the_driver(spark):
        path = os.path.abspath(options.path)
        check_topics(StoreDirectory(path), options)
    register(spark)
    return loaded(reader.format("rocketmq"), path, SHAPES[options.shape].schema, columns, texts)
