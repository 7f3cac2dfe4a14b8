"""The data source as Spark calls it: everything goes through pickle."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.spark.stores import write_store
from tubestore.spark.source import TubeStoreSource


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
