"""Rows of a DataFrame become messages, whatever shape they have; what cannot is named."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tubestore
from tests.spark.stores import T0, planned, read_plan, scanned_rows, write_store
from tubestore.errors import InvalidMessage
from tubestore.spark.kit.intake import Intake, as_maps, split_system
from tubestore.spark.kit.shapes import HEADERS, KAFKA, TUBESTORE

MAPS = pa.map_(pa.string(), pa.string())


def taken(batch: pa.RecordBatch, topic: str | None = "t") -> list[dict[str, Any]]:
    intake: Intake = pickle.loads(pickle.dumps(Intake(batch.schema, topic)))
    return intake.table(batch).to_pylist()  # type: ignore[no-any-return]


def refused(schema: Any, topic: str | None = "t") -> str:
    with pytest.raises(InvalidMessage) as caught:
        Intake(pa.schema(schema), topic)
    return str(caught.value)


def test_kafkas_columns_are_taken() -> None:
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "key": b"k",
                "value": b"v",
                "topic": "orders",
                "timestamp": T0 * 1000,
                "headers": [{"key": "a", "value": b"1"}],
            }
        ],
        pa.schema([f for f in KAFKA.schema if f.name not in ("partition", "offset")]),
    )
    (row,) = taken(batch, None)
    assert (row["body"], row["key"], row["topic"]) == (b"v", b"k", "orders")
    assert row["received_time"].timestamp() * 1000 == T0
    assert row["attributes"] == [("a", "1")]
    assert row["filter_item"] is None


def test_the_option_topic_beats_the_column() -> None:
    batch = pa.RecordBatch.from_pylist([{"topic": "a", "body": "text"}])
    assert taken(batch, "b") == [{"topic": "b", "body": "text"}]
    assert taken(batch, None) == [{"topic": "a", "body": "text"}]


def test_what_a_frame_over_a_store_has_is_taken_or_given_anew(tmp_path: Path) -> None:
    write_store(tmp_path, {"logs": 30})
    sender = 10 << 24 | 7
    with tubestore.open(tmp_path) as store:
        store["logs"].append_batch({"body": [b"b"], "report_address": [sender]})
    rows = read_plan(planned(tmp_path))
    assert [(r["flag"], r["report_address"]) for r in rows].count((0, sender)) == 1
    found = taken(pa.RecordBatch.from_pylist(rows, TUBESTORE.schema), None)
    for ours, row in zip(rows, found, strict=True):
        assert set(row) == {
            "topic", "partition", "received_time_ms", "filter_item", "attributes", "body", "msg_id",
            "report_address",
        }  # fmt: skip
        assert row["report_address"] == ours["report_address"]
        assert row["filter_item"] == ours["filter_item"]
        assert not row["attributes"]  # TubeMQ's own two are written from the item and the time


def test_kafkas_columns_of_a_store_are_taken_back(tmp_path: Path) -> None:
    write_store(tmp_path, {"logs": 30})
    rows = read_plan(planned(tmp_path), shape=KAFKA)
    found = taken(pa.RecordBatch.from_pylist(rows, KAFKA.schema), None)
    assert [r["filter_item"] for r in found] == [r["filter_item"] for r in scanned_rows(tmp_path)]


def test_what_an_insert_fills_with_null_counts_as_not_given() -> None:
    row = dict.fromkeys(TUBESTORE.schema.names) | {"topic": "logs", "body": b"b"}
    rows = [row, row | {"filter_item": "x"}]
    found = taken(pa.RecordBatch.from_pylist(rows, TUBESTORE.schema), None)
    nothing = {"topic": "logs", "body": b"b", "attributes": None}
    assert found == [nothing | {"filter_item": None}, nothing | {"filter_item": "x"}]


def test_a_key_chooses_where_no_row_has_a_partition() -> None:
    schema = pa.schema({"body": pa.binary(), "key": pa.string(), "partition": pa.int32()})
    row = {"body": b"b", "key": "k", "partition": None}
    assert taken(pa.RecordBatch.from_pylist([row], schema)) == [
        {"body": b"b", "key": "k", "topic": "t"}
    ]
    rows = [row, row | {"partition": 3}]
    found = taken(pa.RecordBatch.from_pylist(rows, schema))
    assert [(r.get("key"), r["partition"]) for r in found] == [(None, None), (None, 3)]


@pytest.mark.parametrize("start", [0, 1, 3])
def test_system_attributes_are_taken_out_also_of_a_slice(start: int) -> None:
    rows = [
        [("$msgType$", "x"), ("a", "1"), ("$msgTime$", "202401010000")],
        None,
        [],
        [("b", "2"), ("$msgType$", "y")],
        [("c", "3"), ("d", "4")],
    ]
    left = [[("a", "1")], None, [], [("b", "2")], [("c", "3"), ("d", "4")]]
    own, items = split_system(pa.array(rows, MAPS).slice(start))
    assert own.to_pylist() == left[start:]
    assert items.to_pylist() == ["x", None, None, "y", None][start:]


def test_a_filter_item_counts_before_the_attribute_of_its_name() -> None:
    schema = pa.schema({"body": pa.binary(), "filter_item": pa.string(), "attributes": MAPS})
    row = {"body": b"b", "filter_item": "x", "attributes": [("$msgType$", "y"), ("a", "1")]}
    rows = [row, row | {"filter_item": None}]
    found = taken(pa.RecordBatch.from_pylist(rows, schema))
    assert [(r["filter_item"], r["attributes"]) for r in found] == [
        ("x", [("a", "1")]),
        (None, [("a", "1")]),
    ]


def test_a_null_value_stays_one_for_the_store_to_refuse() -> None:
    headers = pa.array([[{"key": "a", "value": None}]], HEADERS)
    assert as_maps(headers).to_pylist() == [[("a", None)]]


def test_headers_that_are_no_text_are_refused() -> None:
    with pytest.raises(InvalidMessage, match="a value is not UTF-8"):
        as_maps(pa.array([[{"key": "a", "value": b"\xff"}]], HEADERS))
    with pytest.raises(InvalidMessage, match="a key is null"):
        as_maps(pa.array([[{"key": None, "value": b"x"}]], HEADERS))
    rows = as_maps(pa.array([[{"key": "a", "value": b"x"}], None, []], HEADERS)).to_pylist()
    assert rows == [[("a", "x")], None, []]


def test_headers_whose_parts_are_never_null_are_taken() -> None:
    """Spark gives literals such a type."""
    never = pa.struct(
        [
            pa.field("key", pa.string(), nullable=False),
            pa.field("value", pa.binary(), nullable=False),
        ]
    )
    schema = pa.schema([("body", pa.binary()), ("headers", pa.list_(pa.field("x", never, False)))])
    assert Intake(schema, "t").columns["attributes"] == "headers"
    rows = as_maps(pa.array([[{"key": "a", "value": b"x"}]], schema.field("headers").type))
    assert rows.to_pylist() == [[("a", "x")]]


@pytest.mark.parametrize(
    ("schema", "topic", "says"),
    [
        ([("topic", pa.string())], None, "a column body (or value) is needed"),
        ([("body", pa.binary())], None, "a column topic is needed, or the option topic"),
        ([("body", pa.binary()), ("colour", pa.string())], "t", "column colour: not known"),
        ([("body", pa.int64())], "t", "column body: binary or string is needed, not int64"),
        ([("body", pa.binary()), ("value", pa.binary())], "t", "columns body and value: one of"),
        ([("body", pa.binary()), ("partition", pa.string())], "t", "column partition: int is"),
        ([("body", pa.binary()), ("headers", MAPS)], "t", "array<struct<key:string,value:binary>>"),
    ],
)
def test_columns_that_cannot_be_taken_are_named(schema: Any, topic: str | None, says: str) -> None:
    assert says in refused(schema, topic)
