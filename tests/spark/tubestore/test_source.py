"""The data source as Spark calls it, without a JVM; everything goes through pickle, as there."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.stores import scanned_rows, write_store
from tubestore.errors import CorruptRecord, InvalidOption, NotAStore
from tubestore.spark.kit.shapes import KAFKA, SHAPES, TUBESTORE

pytest.importorskip("pyspark", reason="PySpark is not installed: make test-spark installs it")
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from tubestore.spark.source import TubeStoreSource


@pytest.fixture(autouse=True)
def shown_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_store(tmp_path, {"logs": 1000, "orders": 50})
    return tmp_path


def source(path: Any, **options: str) -> DataSource:
    return through_pickle(TubeStoreSource(CaseInsensitiveDict(path=str(path), **options)))


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def read(source: DataSource, schema: StructType | None = None) -> list[dict[str, Any]]:
    """Do what Spark does with a source, in its order."""
    schema = schema or source.schema()
    assert isinstance(schema, StructType)
    reader: DataSourceReader = through_pickle(source.reader(schema))
    expected = to_arrow_schema(schema, timezone="UTC")
    rows = []
    # Spark makes one partition of nothing where there is none.
    for partition in reader.partitions() or [InputPartition(None)]:
        for batch in through_pickle(reader).read(through_pickle(partition)):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema.equals(expected)
            rows += batch.to_pylist()
    return rows


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_our_arrow_types_are_those_that_spark_makes_of_the_schema(shape: Any) -> None:
    assert to_arrow_schema(from_arrow_schema(shape.schema), timezone="UTC").equals(shape.schema)


def test_the_schema_is_the_documented_one() -> None:
    assert from_arrow_schema(TUBESTORE.schema).simpleString() == (
        "struct<topic:string,store_id:int,partition:int,offset:bigint,received_time:timestamp,"
        "received_time_ms:bigint,filter_item:string,key_code:int,attributes:map<string,string>,"
        "body:binary,msg_id:bigint,state:string>"
    )
    assert from_arrow_schema(KAFKA.schema).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,headers:array<struct<key:string,value:binary>>>"
    )


def test_all_rows_are_read(root: Path) -> None:
    assert read(source(root)) == scanned_rows(root)
    assert read(source(root, maxSplitBytes="20000")) == scanned_rows(root)


def test_a_users_schema_chooses_columns_in_its_order(root: Path) -> None:
    schema = from_arrow_schema(pa.schema([("body", pa.binary()), ("offset", pa.int64())]))
    assert read(source(root), schema) == scanned_rows(root, columns=["body", "offset"])


def test_a_users_schema_may_refuse_nulls(root: Path) -> None:
    schema = StructType([StructField("offset", LongType(), nullable=False)])
    assert read(source(root), schema) == scanned_rows(root, columns=["offset"])


def test_nothing_to_read_is_no_row(root: Path) -> None:
    assert read(source(root, startingTimestamp="2100-01-01T00:00:00Z")) == []
    assert read(source(root, subscribePattern="none")) == []


def test_filters_are_not_pushed_down() -> None:
    """Spark 4.3.0 would give wrong rows (and refuses readers that define it, by default)."""
    from tubestore.spark.kit.tasks import SplitReader

    assert SplitReader.pushFilters is DataSourceReader.pushFilters


def test_the_planned_bytes_are_printed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read(source(root))
    said = capsys.readouterr().err
    assert f"{root}: planned 1 splits, at most 1,050 messages and " in said
    assert "where is not pushed down" in said


def test_bad_options_and_stores_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption):
        source(tmp_path, subscrib="x").schema()
    with pytest.raises(NotAStore):
        source(tmp_path / "nothing").schema()
    assert os.environ["SPARK_HIDE_TRACEBACK"]  # the user sees the sentence only


def test_damage_is_a_sentence_too(root: Path) -> None:
    data = next((root / "orders-0").glob("*.tube"))
    data.write_bytes(data.read_bytes()[:-1] + b"\0")
    with pytest.raises(CorruptRecord):
        read(source(root, subscribe="orders", verifyCrc="true"))
    assert os.environ["SPARK_HIDE_TRACEBACK"]
