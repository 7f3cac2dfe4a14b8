"""What a store measures, as lines for Prometheus."""

from __future__ import annotations

import pytest

from tubestore import metrics
from tubestore.shard.statistics import LARGEST, SUMMED
from tubestore.store.manager import MessageStoreManager


def test_every_metric_is_in_the_statistics(store: MessageStoreManager) -> None:
    store.create_topic("b").append(b"x")
    found = store.stats()
    shard = found["topics"]["b"]["shards"][0]
    assert {m.name for m in metrics.METRICS} == set(shard) == {*SUMMED, *LARGEST}
    assert {m.name for m in metrics.STORE_METRICS} <= set(found)


def test_prometheus_gets_a_line_a_shard(store: MessageStoreManager) -> None:
    pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")
    topic = store.create_topic("a", partitions=2, stores=2)
    topic.append(b"x", partition=0)
    topic.append(b"x", partition=10_000)
    lines = metrics.text(store).splitlines()
    assert 'tubestore_appends_total{store_id="0",topic="a"} 1.0' in lines
    assert 'tubestore_appends_total{store_id="1",topic="a"} 1.0' in lines
    assert "# TYPE tubestore_dirty_bytes gauge" in lines
    assert "tubestore_problems 0.0" in lines
