"""Messages of shards in the order of their ids, split by ranges of ids."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import tubestore
from rocketcompat.check.whole import check
from rocketcompat.spark.jobs.id_splits import by_ids
from rocketcompat.spark.jobs.to_log import convert_tube
from tests.spark.rocket_loads import GEOMETRY, SMALL
from tests.spark.rocket_stores import dumped
from tubestore.spark.jobs.compact import sound_columns
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.planning import plan


def test_splits_have_every_message_once_each_a_range_of_ids(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, segment_size_bytes=8 << 10) as store:
        for name in ("a", "b", "c"):
            store.create_topic(name, partitions=2, stores=2)
        for number in range(500):
            store["abc"[number % 3]].append(b"%03d" % number * 20, partition=number % 2 * 10_000)
    portions = [
        portion
        for split in plan(ReadOptions.parse({"path": str(tmp_path)})).splits
        for portion in split.portions
    ]
    total = sum(portion.bytes for portion in portions)
    splits = by_ids(portions, total // 10)
    assert 8 <= len(splits) <= 11
    assert sum(split.rows for split in splits) == 500
    ranges = []
    for split in splits:
        ids = []
        with tubestore.open(tmp_path, "r") as store:
            for portion in split.portions:
                for row in store[portion.shard.topic].scan(
                    columns=["store_id", "offset", "msg_id"]
                ):
                    ids += [
                        found["msg_id"]
                        for found in row.to_pylist()
                        if found["store_id"] == portion.shard.store_id
                        and portion.start <= found["offset"] < portion.end
                    ]
        ranges.append((min(ids), max(ids)))
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    assert by_ids([], 1) == ()


def test_portions_of_a_split_that_follow_each_other_are_one(tmp_path: Path) -> None:
    with tubestore.open(tmp_path, segment_size_bytes=8 << 10) as store:
        topic = store.create_topic("a", partitions=2)
        for number in range(500):
            topic.append(b"%03d" % number * 20)
    options = ReadOptions.parse({"path": str(tmp_path), "maxSplitBytes": "10000"})
    portions = [portion for split in plan(options).splits for portion in split.portions]
    splits = by_ids(portions, 16_000)
    assert len(portions) > len(splits) > 2
    assert [len(split.portions) for split in splits] == [1] * len(splits)
    spans = [(split.portions[0].start, split.portions[0].end) for split in splits]
    assert [before[1] for before in spans[:-1]] == [after[0] for after in spans[1:]]
    found = []
    for split in splits:
        for columns, bad in sound_columns(split.portions[0], options):
            assert not bad
            found += columns.payloads[0].to_pylist()
    assert found == [b"%03d" % number * 20 for number in range(500)]


def test_what_several_shards_have_at_one_time_is_merged_by_its_ids(
    small_waves: Any, tmp_path: Path
) -> None:
    spark: Any = None
    with tubestore.open(tmp_path / "tube", segment_size_bytes=8 << 10) as store:
        for name in ("a", "b"):
            store.create_topic(name, partitions=2, stores=2)
        for number in range(400):
            topic, partition = "ab"[number // 3 % 2], number // 7 % 2 * 10_000
            store[topic].append(b"%03d" % number, partition=partition)
    done = convert_tube(spark, str(tmp_path / "tube"), str(tmp_path / "log"), **SMALL)
    assert done.rows == 400
    assert [row["body"] for row in dumped(tmp_path / "log")] == [b"%03d" % n for n in range(400)]
    assert list(check(tmp_path / "log", GEOMETRY)) == []
