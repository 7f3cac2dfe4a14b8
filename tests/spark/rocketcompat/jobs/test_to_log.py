"""Shards become the end of a CommitLog; a log that was converted to shards and back is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rocketcompat
from rocketcompat import Message
from rocketcompat.check.whole import check
from rocketcompat.spark.jobs.to_log import convert_tube, plan_tube_convert
from rocketcompat.spark.jobs.to_shards import convert
from tests.spark.rocket_loads import GEOMETRY, SMALL
from tests.spark.rocket_stores import CONFIG, dumped, write_rocket_store
from tests.spark.stores import scanned_rows, write_store
from tests.support.rocket.cli import command_fixture as command_fixture
from tubestore.errors import InvalidOption, UnknownTopic

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
