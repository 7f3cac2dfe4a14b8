"""Options of reading a log choose its rows."""

from __future__ import annotations

from pathlib import Path

from tests.spark.rocket_readings import root as root
from tests.spark.rocket_readings import template as template
from tests.spark.rocket_stores import planned, read_log


def test_topics_queues_tags_and_offsets_are_chosen(root: Path) -> None:
    made = planned(root)
    rows = read_log(root, made)
    assert read_log(root, made, subscribe="topic1") == [r for r in rows if r["topic"] == "topic1"]
    assert read_log(root, made, subscribePattern=".*[02]", queues="1,3") == [
        r for r in rows if r["topic"] != "topic1" and r["queue_id"] in (1, 3)
    ]
    assert read_log(root, made, tags="paid || sent") == [r for r in rows if r["tags"]]
    bounds = {
        "startingOffsets": '{"topic0":{"0":10}}',
        "endingOffsets": '{"topic0":{"0":20,"1":5}}',
    }
    assert read_log(root, made, **bounds) == [
        r
        for r in rows
        if r["topic"] != "topic0"
        or r["queue_id"] > 1
        or (r["queue_id"] == 0 and 10 <= r["queue_offset"] < 20)
        or (r["queue_id"] == 1 and r["queue_offset"] < 5)
    ]
