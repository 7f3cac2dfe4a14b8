"""The columns of a DataFrame: tubestore's or Kafka's, in the order that was asked for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.spark.readings import root as root
from tests.spark.stores import planned, read_plan, scanned_rows
from tubestore.errors import InvalidOption
from tubestore.spark.kit.shapes import KAFKA, TUBESTORE
from tubestore.spark.reading import Reading


def test_a_fixed_schema_with_the_former_name_partition_id_is_read(root: Path) -> None:
    """Spark's catalog keeps the schema of a table for ever."""
    expected = scanned_rows(root)
    columns = ["offset", "partition_id"]
    with pytest.warns(DeprecationWarning, match="partition_id is named partition"):
        schema = TUBESTORE.part(columns)
    assert schema.names == TUBESTORE.chosen(schema).names == columns
    reading = Reading(TUBESTORE, schema, str(root))
    batches = [b for s in planned(root).splits for b in reading.batches(s)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert rows == [{"offset": r["offset"], "partition_id": r["partition"]} for r in expected]


def test_columns_come_in_the_order_that_was_asked_for(root: Path) -> None:
    rows = read_plan(planned(root), columns=["body", "offset"])
    assert list(rows[0]) == ["body", "offset"]
    assert rows == scanned_rows(root, columns=["body", "offset"])


def test_kafkas_columns_hold_the_same_messages(root: Path) -> None:
    rows = read_plan(planned(root), shape=KAFKA)
    for ours, kafkas in zip(scanned_rows(root), rows, strict=True):
        assert kafkas["key"] is None
        assert kafkas["value"] == ours["body"]
        assert (kafkas["topic"], kafkas["partition"]) == (ours["topic"], ours["partition"])
        assert (kafkas["offset"], kafkas["timestamp"]) == (ours["offset"], ours["received_time"])
        headers = kafkas["headers"] and [(h["key"], h["value"].decode()) for h in kafkas["headers"]]
        assert headers == ours["attributes"]


def test_a_schema_may_only_name_columns_that_are_there() -> None:
    with pytest.raises(InvalidOption, match="no column bodies; there are topic, store_id"):
        TUBESTORE.chosen(pa.schema([("bodies", pa.binary())]))
    with pytest.raises(InvalidOption, match="column offset is int64, not int32"):
        TUBESTORE.chosen(pa.schema([("offset", pa.int32())]))
