"""The data source as Spark calls it, without a JVM; everything goes through pickle, as there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

import tubestore
from tests.spark.sources import read, source
from tests.spark.sources import root as root
from tests.spark.stores import scanned_rows
from tubestore.spark.kit.shapes import KAFKA, SHAPES, TUBESTORE

pytest.importorskip("pyspark", reason="PySpark is not installed: make test-spark installs it")


@pytest.fixture(autouse=True)
def shown_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_our_arrow_types_are_those_that_spark_makes_of_the_schema(shape: Any) -> None:
    assert to_arrow_schema(from_arrow_schema(shape.schema), timezone="UTC").equals(shape.schema)


def test_the_schema_is_the_documented_one() -> None:
    assert from_arrow_schema(TUBESTORE.schema).simpleString() == (
        "struct<topic:string,store_id:int,partition:int,offset:bigint,received_time:timestamp,"
        "received_time_ms:bigint,filter_item:string,key_code:int,attributes:map<string,string>,"
        "body:binary,msg_id:bigint,flag:int,report_address:int,state:string>"
    )
    assert from_arrow_schema(KAFKA.schema).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,headers:array<struct<key:string,value:binary>>>"
    )


def test_all_rows_are_read(root: Path) -> None:
    assert read(source(root)) == scanned_rows(root)
    assert read(source(root, maxSplitBytes="20000")) == scanned_rows(root)


def test_nothing_to_read_is_no_row(root: Path) -> None:
    assert read(source(root, startingTimestamp="2100-01-01T00:00:00Z")) == []
    with tubestore.open(root / "none") as store:
        store.create_topic("none")
    assert read(source(root / "none")) == read(source(root / "none", subscribe="none")) == []


def test_the_column_of_attributes_can_be_left_out(root: Path) -> None:
    for shape, name in (("tubestore", "attributes"), ("kafka", "headers")):
        plain = source(root, schema=shape, includeHeaders="false")
        rows = read(source(root, schema=shape))
        assert read(plain) == [{k: v for k, v in row.items() if k != name} for row in rows]


def test_filters_are_not_pushed_down() -> None:
    """Spark 4.3.0 would give wrong rows (and refuses readers that define it, by default)."""
    from tubestore.spark.kit.tasks import SplitReader

    assert SplitReader.pushFilters is DataSourceReader.pushFilters
