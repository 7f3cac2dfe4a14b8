"""Stores in an object storage through Spark itself: the executors get all they need in the path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.rocket_stores import planned as planned_log
from tests.spark.rocket_stores import read_log, write_rocket_store
from tests.spark.stores import scanned_rows, write_store
from tests.support.engine.objects import S3, s3

__all__ = ["s3"]


def public_copy(s3: S3, root: Path, name: str) -> str:
    """Copy a store; returns a URI that is read without credentials.

    Spark's Python workers inherit the environment of the moment when the session starts, which is
    before the server: the credentials that the fixture `s3` sets do not reach them.
    """
    return s3.copy(root, name) + "&anonymous=true"


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return [row for batch in frame.toArrow().to_batches() for row in batch.to_pylist()]


def test_a_dataframe_over_s3_has_the_rows_of_the_store(spark: Any, s3: S3, tmp_path: Path) -> None:
    from tubestore.spark import read

    write_store(tmp_path / "store", {"logs": 300, "orders": 40})
    frame = read(spark, public_copy(s3, tmp_path / "store", "tube"), maxSplitBytes=10_000)
    assert rows_of(frame) == scanned_rows(tmp_path / "store")


def test_a_dataframe_over_a_log_in_s3_has_the_rows_of_the_log(
    spark: Any, s3: S3, tmp_path: Path
) -> None:
    from rocketcompat.spark import read

    write_rocket_store(tmp_path / "store", 200)
    expected = read_log(tmp_path / "store", planned_log(tmp_path / "store"))
    copy = public_copy(s3, tmp_path / "store", "log")
    found = rows_of(read(spark, copy, columns=["physical_offset", "body", "topic"]))
    assert found == [{name: row[name] for name in found[0]} for row in expected]


def test_what_writes_or_streams_is_refused_in_one_sentence(spark: Any) -> None:
    from pyspark.errors import AnalysisException

    root = "s3://bucket/none"
    lines = spark.range(3).selectExpr("'logs' AS topic", "CAST(id AS STRING) AS body")
    writer = lines.write.format("tubestore").mode("append").option("jobId", "one")
    with pytest.raises(AnalysisException, match="only a directory that every node can see"):
        writer.save(root)
    from tubestore.errors import InvalidOption
    from tubestore.spark import read_stream

    with pytest.raises(InvalidOption, match="a stream needs a directory"):
        read_stream(spark, root)
