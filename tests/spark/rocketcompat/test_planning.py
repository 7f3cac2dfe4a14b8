"""Splits of a log: every message once, in order, and no more than was planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.rocket_readings import COUNT, numbers
from tests.spark.rocket_readings import root as root
from tests.spark.rocket_readings import template as template
from tests.spark.rocket_stores import (
    check_shared_out,
    dumped,
    of_dump,
    planned,
    read_log,
    write_rocket_store,
    write_skewed_log,
)
from tubestore.errors import (
    InvalidOption,
    NotAStore,
    UnknownTopic,
)


@pytest.mark.parametrize("most", ["2000", "10000", "64k", "1m"])
def test_all_splits_together_are_the_whole_log_in_order(root: Path, most: str) -> None:
    made = planned(root, maxSplitBytes=most)
    assert [of_dump(row) for row in read_log(root, made)] == dumped(root)
    assert [s.start for s in made.splits[1:]] == [s.end for s in made.splits[:-1]]
    if most == "10000":
        assert len(made.splits) > 20
        assert max(s.bytes for s in made.splits) < 12_000


@pytest.mark.parametrize("asked", [{"maxSplitBytes": "10000"}, {"minPartitions": "8"}])
def test_a_queue_that_holds_half_of_all_records_is_read_by_several_tasks(
    tmp_path: Path, asked: dict[str, str]
) -> None:
    write_skewed_log(tmp_path / "store")
    check_shared_out(tmp_path / "store", planned(tmp_path / "store", **asked))


def test_what_is_not_there_is_refused(root: Path, tmp_path_factory: Any) -> None:
    with pytest.raises(UnknownTopic):
        planned(root, subscribe="nope")
    with pytest.raises(InvalidOption, match=r"'x\.\*' matches no topic; there are: topic0"):
        planned(root, subscribePattern="x.*")
    with pytest.raises(NotAStore, match="not a RocketMQ store"):
        planned(tmp_path_factory.mktemp("empty"))
    with pytest.raises(InvalidOption, match="option partitions: not known"):
        planned(root, partitions="0")


def test_a_plan_does_not_see_what_is_put_later(root: Path) -> None:
    made = planned(root)
    write_rocket_store(root, 50, COUNT)
    assert numbers(read_log(root, made)) == list(range(COUNT))
    assert numbers(read_log(root, planned(root))) == list(range(COUNT + 50))
