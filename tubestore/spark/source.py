"""The data source `tubestore`: a store's topics as a DataFrame (`kit/source.py`)."""

from __future__ import annotations

from typing import ClassVar

from tubestore.core.vfs import OsVfs
from tubestore.spark.kit.loads import Load
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.kit.shapes import SHAPES
from tubestore.spark.kit.source import StoreKind, StoreSource
from tubestore.spark.kit.write_options import WriteOptions
from tubestore.spark.planning import choose_shards, plan
from tubestore.spark.stream import reading_of, stream_reader


class TubeStoreSource(StoreSource):
    """`spark.read.format("tubestore").load("/path")`, after `tubestore.spark.register(spark)`."""

    kind: ClassVar = StoreKind(
        "tubestore", ReadOptions, WriteOptions, Load, SHAPES,
        lambda options: choose_shards(OsVfs(), options), reading_of, plan, stream_reader,
    )  # fmt: skip


register = TubeStoreSource.register
