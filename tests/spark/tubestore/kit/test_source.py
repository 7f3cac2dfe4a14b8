"""What Spark calls of a data source: schemas and options are checked before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from tests.spark.sources import read, source
from tests.spark.sources import root as root
from tests.spark.stores import scanned_rows
from tubestore.errors import InvalidOption, NotAStore


@pytest.fixture(autouse=True)
def shown_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


def test_a_users_schema_chooses_columns_in_its_order(root: Path) -> None:
    schema = from_arrow_schema(pa.schema([("body", pa.binary()), ("offset", pa.int64())]))
    assert read(source(root), schema) == scanned_rows(root, columns=["body", "offset"])


def test_a_users_schema_may_refuse_nulls(root: Path) -> None:
    schema = StructType([StructField("offset", LongType(), nullable=False)])
    assert read(source(root), schema) == scanned_rows(root, columns=["offset"])


def test_bad_options_and_stores_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption):
        source(tmp_path, subscrib="x").schema()
    with pytest.raises(NotAStore):
        source(tmp_path / "nothing").schema()
    assert os.environ["SPARK_HIDE_TRACEBACK"]  # the user sees the sentence only
