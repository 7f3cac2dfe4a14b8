"""Batches of a log that grows: in order, within limits, and refused over another log."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rocketcompat.spark.log_batches import LogBatches
from rocketcompat.spark.options import RocketOptions
from tests.spark.rocket_readings import COUNT, numbers
from tests.spark.rocket_readings import root as root
from tests.spark.rocket_readings import template as template
from tests.spark.rocket_stores import (
    CONFIG,
    check_shared_out,
    planned,
    read_log,
    write_rocket_store,
    write_skewed_log,
)
from tubestore.errors import (
    DataLoss,
    NotAStore,
)


def drain(root: Path, batches: LogBatches, at: Any, **limits: int) -> tuple[Any, list[Any]]:
    found = []
    while True:
        end = batches.latest(at, limits.get("rows"), limits.get("size"))
        if end == at:
            return at, found
        found.append(read_log(root, batches.plan(at, end)))
        at = end


def batches_of(root: Path, **given: str) -> LogBatches:
    return LogBatches(RocketOptions.parse({"path": str(root), **given}, stream=True))


def test_a_log_on_several_disks_is_read_as_a_batch_and_as_a_stream(tmp_path: Path) -> None:
    root = tmp_path / "store"
    given = {"storePathCommitLog": f"{tmp_path / 'disk0'};{tmp_path / 'disk1'}",
             "multiPathSplitter": ";"}  # fmt: skip
    write_rocket_store(root, COUNT, config=CONFIG.changed(
        store_path_commit_log=given["storePathCommitLog"], multi_path_splitter=";",
    ))  # fmt: skip
    assert all(list((tmp_path / disk).iterdir()) for disk in ("disk0", "disk1"))
    assert numbers(read_log(root, planned(root, **given), **given)) == list(range(COUNT))
    batches = batches_of(root, **given)
    made = batches.plan(batches.initial(), batches.end())
    assert numbers(read_log(root, made, **given)) == list(range(COUNT))


def test_a_batch_waits_for_enough_records_and_counts_each_once(root: Path) -> None:
    batches = batches_of(root)
    start = batches.initial()
    assert batches.latest(start, min_rows=COUNT + 1) == start
    write_rocket_store(root, 1, COUNT)
    end = batches.latest(start, min_rows=COUNT + 1)
    assert numbers(read_log(root, batches.plan(start, end))) == list(range(COUNT + 1))
    assert batches.latest(end, min_rows=1) == end
    assert batches.report()["behindBytes"] == 0
    write_rocket_store(root, 1, COUNT + 1)
    assert batches.report()["behindBytes"] > 0


def test_batches_are_the_log_in_order_within_their_limits(root: Path) -> None:
    batches = batches_of(root)
    _, found = drain(root, batches, batches.initial(), rows=70)
    assert [n for batch in found for n in numbers(batch)] == list(range(COUNT))
    assert {len(batch) for batch in found[:-1]} == {70}
    _, found = drain(root, batches, batches.initial(), size=9000)
    assert [n for batch in found for n in numbers(batch)] == list(range(COUNT))
    assert max(sum(row["store_size"] for row in batch) for batch in found) <= 9000


@pytest.mark.parametrize("asked", [{"maxSplitBytes": "10000"}, {"minPartitions": "8"}])
def test_a_queue_that_holds_half_of_a_batch_is_read_by_several_tasks(
    tmp_path: Path, asked: dict[str, str]
) -> None:
    write_skewed_log(tmp_path / "store")
    batches = batches_of(tmp_path / "store", **asked)
    start = batches.initial()
    check_shared_out(tmp_path / "store", batches.plan(start, batches.latest(start)))


def test_a_stream_follows_a_broker_and_is_frozen_if_asked_for(root: Path) -> None:
    batches = batches_of(root, startingOffsets="latest")
    at = batches.initial()
    assert drain(root, batches, at)[1] == []
    write_rocket_store(root, 300, COUNT)
    at, found = drain(root, batches, at)
    assert numbers(found[0]) == list(range(COUNT, COUNT + 300))
    batches.freeze()
    write_rocket_store(root, 5, COUNT + 300)
    assert drain(root, batches, at)[1] == []


def test_a_log_that_was_cleaned_fails_the_stream_or_is_skipped_and_counted(root: Path) -> None:
    at = batches_of(root).initial()
    first, second = sorted((root / "commitlog").iterdir())[:2]
    first.unlink()
    size = int(second.name)
    text = rf"offsets 0 to {size} of the log \(topic1\), {size} bytes, were removed before they "
    with pytest.raises(DataLoss, match=text + r"were read; what is kept begins at \d{4}-\d\d-"):
        batches_of(root, subscribe="topic1").latest(at)
    said: list[str] = []
    options = RocketOptions.parse({"path": str(root), "failOnDataLoss": "false"}, stream=True)
    lenient = LogBatches(options, note=said.append)
    end = lenient.latest(at)
    assert numbers(read_log(root, lenient.plan(at, end))) == numbers(read_log(root, planned(root)))
    assert lenient.skipped == size
    assert len(said) == 1
    assert said[0].endswith(f"skipped, {size} bytes in all")


@pytest.mark.parametrize(
    "position", [{}, {"v": 2, "store": None, "log": 0}, {"v": 1, "store": "other", "log": 0}]
)
def test_a_checkpoint_of_something_else_is_refused(root: Path, position: dict[str, Any]) -> None:
    with pytest.raises(NotAStore):
        batches_of(root).latest(position)


@pytest.mark.parametrize("count", [COUNT, 40])
def test_a_stream_refuses_another_log_under_the_same_path(
    root: Path, tmp_path: Path, count: int
) -> None:
    batches = batches_of(root)
    at, _ = drain(root, batches, batches.initial(), rows=70)
    shutil.rmtree(root)
    write_rocket_store(root, count, 5000)
    error = "another log: the first record of .* differs" if count == COUNT else "up to .* end at"
    for other in (batches, batches_of(root)):
        with pytest.raises((NotAStore, DataLoss), match=error):
            other.latest(at)


def test_a_position_without_its_files_first_record_is_taken(root: Path) -> None:
    """Those of earlier versions."""
    batches = batches_of(root)
    at, _ = drain(root, batches, {"v": 1, "store": None, "log": 0})
    assert at == batches.end()
