"""Rows of a DataFrame become messages of RocketMQ; what cannot is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketcompat.spark.shapes import ROCKETMQ_SCHEMA
from tests.spark.rocket_loads import batch, load_of, run, sound
from tests.spark.rocket_stores import dumped, planned, read_log, write_rocket_store
from tubestore.errors import InvalidMessage


def test_a_dataframe_over_a_store_gives_the_same_messages(tmp_path: Path) -> None:
    write_rocket_store(tmp_path / "one", 200)
    for number, shape in enumerate(("rocketmq", "kafka")):
        rows = read_log(tmp_path / "one", planned(tmp_path / "one"), schema=shape)
        schema = ROCKETMQ_SCHEMA if shape == "rocketmq" else None
        copy = tmp_path / f"copy{number}"
        batches = [pa.RecordBatch.from_pylist(rows, schema)] if schema else kafka_batches(rows)
        run(copy, batches)
        given_anew = {"physical_offset", "store_timestamp", "msg_id"}
        if shape == "kafka":  # which knows no such fields; its key is a property
            given_anew |= {"born_timestamp", "born_host", "store_host"}
        for old, new in zip(dumped(tmp_path / "one"), dumped(copy), strict=True):
            for name in old.keys() - given_anew:
                if name == "properties":
                    assert dict(old[name]) == dict(new[name])
                elif name != "store_size":
                    assert old[name] == new[name], name
        assert sound(copy)


def kafka_batches(rows: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    from rocketcompat.spark.shapes import KAFKA

    return [pa.RecordBatch.from_pylist(rows, KAFKA.schema)]


def test_rows_without_a_queue_take_turns(tmp_path: Path) -> None:
    rows = batch(0, 6).drop_columns(["topic"])
    run(tmp_path, [rows], topic="logs", numQueues="3")
    found = [(row["topic"], row["queue_id"], row["body"]) for row in dumped(tmp_path)]
    assert found == [("logs", n % 3, b"%d" % n) for n in range(6)]


def test_what_an_insert_fills_with_null_counts_as_not_given(tmp_path: Path) -> None:
    row = dict.fromkeys(ROCKETMQ_SCHEMA.names) | {"topic": "logs", "body": b"one"}
    run(tmp_path, [pa.RecordBatch.from_pylist([row], ROCKETMQ_SCHEMA)])
    (found,) = dumped(tmp_path)
    assert (found["topic"], found["body"], found["queue_id"]) == ("logs", b"one", 0)
    assert sound(tmp_path)


def test_tags_and_keys_count_before_the_properties(tmp_path: Path) -> None:
    maps = pa.array([[("KEYS", "old"), ("a", "b")]], pa.map_(pa.string(), pa.string()))
    run(tmp_path, [batch(0, 1, properties=maps, keys=["new"], tags=["t"], flag=[7])])
    (row,) = dumped(tmp_path)
    assert dict(row["properties"]) == {"KEYS": "new", "TAGS": "t", "a": "b"}
    assert row["flag"] == 7


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"colour": ["red"]}, "column colour: not known"),
        ({"queue_id": ["a"]}, "column queue_id: int is needed"),
        ({"value": [b"x"]}, "columns body and value: one of them"),
    ],
)
def test_columns_that_cannot_be_taken_are_named(
    columns: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        load_of(tmp_path / "new", batch(0, 1, **columns).schema)
    assert not (tmp_path / "new").exists()
