"""What each partition has is counted once, and right whatever came in between."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tubestore
from tests.support.tube import encode_rows, make_rows
from tubestore.segments import summaries
from tubestore.segments.summaries import NOTHING, PartitionTotals, totals_of
from tubestore.store.topic import Topic

SMALL = {"segment_size_bytes": 3000, "index_segment_size_bytes": 20 * 28}


def plainly(topic: Topic) -> list[dict[str, Any]]:
    """Count message by message."""
    rows = []
    for partition in topic.partition_ids:
        mine = list(topic.messages(partition))
        end = topic.next_offset(partition)
        rows.append(
            {
                "partition": partition,
                "first": mine[0].offset if mine else end,
                "next": end,
                "count": len(mine),
                "oldest": min((m.received_time_ms for m in mine), default=None),
            }
        )
    return rows


def test_partitions_agree_with_counting_whatever_is_done_in_between(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with (
        tubestore.open(tmp_path, background=False, **SMALL) as store,
        tubestore.open(tmp_path, "r") as reader,
    ):
        topic = store.create_topic("t", partitions=4, stores=2)
        reader.refresh()
        for _ in range(20):
            for _ in range(chance.randrange(12)):
                partition = chance.choice(topic.partition_ids[:-1])
                body = b"x" * chance.randrange(1, 60)
                topic.append(body, partition=partition, received_time=chance.randrange(10**12))
            if chance.random() < 0.2:
                topic.retain(max_bytes=5000)
            reader.refresh()
            for one in (topic, reader["t"]):
                rows = one.partitions().drop_columns(["bytes"])
                times = rows["oldest"].cast(pa.int64())
                assert rows.set_column(4, "oldest", times).to_pylist() == plainly(one)


def test_entries_that_were_counted_are_not_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    honest = summaries.totals_of

    def counting(entries: Any, *place: int) -> Any:
        counted.append(len(entries))
        return honest(entries, *place)

    monkeypatch.setattr(summaries, "totals_of", counting)
    with tubestore.open(tmp_path, background=False, **SMALL) as store:
        topic = store.create_topic("t", partitions=3)
        topic.append_batch({"body": [b"x"] * 100})
        topic.append_batch({"body": [b"x"] * 10})
        assert sum(topic.partitions()["count"].to_pylist()) == 110
        assert sum(counted) == 110
        topic.append_batch({"body": [b"x"] * 5})
        assert sum(topic.partitions()["count"].to_pylist()) == 115
        assert sum(counted) == 115


def test_an_older_view_is_counted_as_it_was() -> None:
    entries = encode_rows(make_rows(10), 0, 0).entries
    totals = PartitionTotals(0, 0)
    assert totals.of(entries).messages.sum() == 10
    assert totals.of(entries[:4]).messages.sum() == 4
    assert totals.covered == 10
    assert totals.ends_with(entries[9].tobytes())


def test_entries_of_other_shards_are_left_out() -> None:
    entries = encode_rows(make_rows(6), 0, 0).entries
    assert totals_of(entries, 0, 10_000) is NOTHING
    assert len(NOTHING.up_to(3).oldest) == 3
    assert np.array_equal(NOTHING.and_then(NOTHING).messages, NOTHING.messages)
