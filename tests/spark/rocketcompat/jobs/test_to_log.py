"""Shards become the end of a CommitLog; a log that was converted to shards and back is the same."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import rocketcompat
import tubestore
from rocketcompat import Message
from rocketcompat.check.whole import check
from rocketcompat.spark.jobs.id_splits import by_ids
from rocketcompat.spark.jobs.to_log import convert_tube, plan_tube_convert
from rocketcompat.spark.jobs.to_shards import convert
from tests.spark.rocket_stores import CONFIG, dumped, write_rocket_store
from tests.spark.rocketcompat.test_loads import GEOMETRY, SMALL
from tests.spark.stores import scanned_rows, write_store
from tests.support.command import Command
from tests.support.rocket.cli import command_fixture  # noqa: F401
from tubestore.errors import InvalidOption, UnknownTopic
from tubestore.spark.jobs.compact import sound_columns
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.planning import plan

COUNT = 600


def files_of(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}


def test_a_log_that_was_converted_to_shards_and_back_is_the_same(
    small_waves: Any, tmp_path: Path
) -> None:
    spark: Any = None
    one, tube, two = tmp_path / "one", tmp_path / "tube", tmp_path / "two"
    write_rocket_store(one, COUNT)
    with rocketcompat.open(one, "w", CONFIG, background=False) as store:
        store.put_message(Message("topic1", b"raw", properties="a\x01b=c\x02", queue_id=1))
        store.put_message(Message("topic2", b"", born_host="[::1]:8", store_host="[::2]:9"))
    convert(spark, str(one), str(tube), job_id="there", maxSplitBytes="20000")
    for replayed in (False, True):
        done = convert_tube(
            spark, str(tube), str(two), job_id="back", maxSplitBytes="20000", **SMALL
        )
        assert (done.rows, done.replayed) == (COUNT + 2, replayed)
    assert len(small_waves) > 10
    assert files_of(two) == files_of(one)
    assert dumped(two) == dumped(one)
    assert list(check(two, GEOMETRY)) == []


def test_messages_that_never_were_in_a_log_keep_their_order_in_each_partition(
    small_waves: Any, tmp_path: Path
) -> None:
    spark: Any = None
    write_store(tmp_path / "tube", {"logs": 300, "orders": 100})
    done = convert_tube(spark, str(tmp_path / "tube"), str(tmp_path / "log"), **SMALL)
    assert done.rows == 400
    rows, out = scanned_rows(tmp_path / "tube"), dumped(tmp_path / "log")
    for key in {(row["topic"], row["partition"]) for row in rows}:
        wanted = [
            (row["body"], row["received_time_ms"], row["filter_item"])
            for row in rows
            if (row["topic"], row["partition"]) == key
        ]
        found = [row for row in out if (row["topic"], row["queue_id"]) == key]
        assert [
            (row["body"], row["store_timestamp"], dict(row["properties"]).get("TAGS"))
            for row in found
        ] == wanted
        assert [row["queue_offset"] for row in found] == list(range(len(found)))
    assert list(check(tmp_path / "log", GEOMETRY)) == []


def test_a_store_that_is_there_goes_on_and_what_is_wanted_can_be_chosen(
    small_waves: Any, tmp_path: Path
) -> None:
    spark: Any = None
    write_store(tmp_path / "tube", {"logs": 30, "orders": 10})
    write_rocket_store(tmp_path / "log", 50)
    done = convert_tube(spark, str(tmp_path / "tube"), str(tmp_path / "log"), subscribe="orders")
    assert done.rows == 10
    assert [row["topic"] for row in dumped(tmp_path / "log")][50:] == ["orders"] * 10
    with pytest.raises(InvalidOption, match="whole topics"):
        plan_tube_convert(str(tmp_path / "tube"), str(tmp_path / "log"), None, {"partitions": "0"})
    with pytest.raises(UnknownTopic):
        plan_tube_convert(str(tmp_path / "tube"), str(tmp_path / "log"), None, {"subscribe": "no"})


def test_the_command_names_which_way_it_goes_and_what_it_would_read(
    tmp_path: Path, command: Command
) -> None:
    write_store(tmp_path / "tube", {"logs": 30})
    write_rocket_store(tmp_path / "log", 50)
    there = command("spark", "convert", tmp_path / "log", tmp_path / "new", "--dry-run")
    back = command("spark", "convert", tmp_path / "tube", tmp_path / "new", "--dry-run")
    assert (there.code, back.code) == (0, 0)
    assert "bytes of CommitLog" in there.out
    assert "30 messages" in back.out
    assert not (tmp_path / "new").exists()


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
