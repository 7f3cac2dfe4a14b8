"""A stream's positions are JSON for Spark, from its start to its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.spark.stores import read_plan, write_store
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.stream import TubeBatches


@pytest.fixture
def batches(tmp_path: Path) -> TubeBatches:
    write_store(tmp_path, {"logs": 40})
    return TubeBatches(ReadOptions.parse({"path": str(tmp_path)}, stream=True))


def test_batches_between_positions_of_json_have_every_message_once(batches: TubeBatches) -> None:
    at, found = batches.initial(), 0
    while True:
        end = json.loads(json.dumps(batches.latest(at, 15, None)))
        if end == at:
            break
        rows = read_plan(batches.plan(at, end))
        assert len(rows) <= 15
        found, at = found + len(rows), end
    assert found == 40
    batches.close()


def test_the_end_is_where_a_batch_without_limits_ends(batches: TubeBatches) -> None:
    assert batches.report()["shards"] == batches.latest(batches.initial(), None, None)["shards"]
    batches.close()


def test_a_frozen_stream_goes_to_what_was_there(batches: TubeBatches, tmp_path: Path) -> None:
    at = batches.initial()
    batches.freeze()
    write_store(tmp_path, {"logs": 5})
    assert len(read_plan(batches.plan(at, batches.latest(at, None, None)))) == 40
    batches.close()
