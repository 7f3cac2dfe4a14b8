"""How far a stream is behind, and where its query is."""

from __future__ import annotations

import json
from pathlib import Path

from tests.spark.stores import scanned_rows
from tests.spark.streams import root as root
from tests.spark.streams import stream
from tubestore.spark.lag import lag_behind, position_of


def test_the_lag_counts_what_was_not_read_by_partition(root: Path) -> None:
    batches = stream(root)
    end = batches.latest(batches.initial(), 700)
    unread = [
        (r["topic"], r["partition"])
        for r in scanned_rows(root)
        if r["offset"] >= end.shards[f"{r['topic']}-0"]
    ]
    found = lag_behind(str(root), end)
    assert {(t, p): n for t, counts in found.items() for p, n in counts.items()} == {
        pair: unread.count(pair) for pair in set(unread)
    }
    assert lag_behind(str(root), batches.end()) == {}


def test_the_position_of_a_query_is_in_its_progress(root: Path) -> None:
    end = stream(root).end()
    progress = {"sources": [{"endOffset": "5"}, {"endOffset": json.dumps(end.as_json())}]}
    assert position_of(progress, str(root)).shards == end.shards
    assert position_of({"sources": []}, str(root)).shards == {}
