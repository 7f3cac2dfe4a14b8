"""The columns of a log's DataFrame, RocketMQ's or Kafka's."""

from __future__ import annotations

from pathlib import Path

from tests.spark.rocket_readings import root as root
from tests.spark.rocket_readings import template as template
from tests.spark.rocket_stores import planned, read_log


def test_tags_keys_and_the_store_time_are_columns(root: Path) -> None:
    row = read_log(root, planned(root))[4]
    assert (row["tags"], row["keys"]) == ("sent", "k-4")
    assert int(row["store_time"].timestamp() * 1000) == row["store_timestamp"]


def test_kafkas_columns_hold_the_same_messages(root: Path) -> None:
    rows = read_log(root, planned(root))
    found = read_log(root, planned(root), schema="kafka")
    for ours, kafkas in zip(rows, found, strict=True):
        assert kafkas["key"] == ours["keys"].encode()
        assert (kafkas["value"], kafkas["topic"]) == (ours["body"], ours["topic"])
        assert (kafkas["partition"], kafkas["offset"]) == (ours["queue_id"], ours["queue_offset"])
        headers = {h["key"]: h["value"].decode() for h in kafkas["headers"]}
        assert headers == dict(ours["properties"])
