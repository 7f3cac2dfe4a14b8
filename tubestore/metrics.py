"""A store's statistics for Prometheus; needs the extra `metrics` (prometheus-client).

    REGISTRY.register(tubestore.metrics.Collector(store))     # beside a program's own metrics
    print(tubestore.metrics.text(store))                       # once, as text

Every metric is `tubestore_<name>` with the labels `topic` and `store_id`, as `store.stats()`
has it of a shard; what goes up only ends in `_total`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol


class Measured(Protocol):
    """What is collected from: an open store."""

    def stats(self) -> dict[str, Any]:
        """Return its statistics."""


class Metric(NamedTuple):
    """One row of the table of metrics."""

    name: str
    kind: str
    help: str


METRICS = (
    Metric("appends", "counter", "Messages appended since the store was opened."),
    Metric("append_bytes", "counter", "Bytes of their records."),
    Metric("swaps", "counter", "How often the two buffers changed places."),
    Metric("stalls", "counter", "Appends that waited for room."),
    Metric("stall_seconds", "counter", "How long they waited."),
    Metric("busy", "counter", "Appends that gave up waiting."),
    Metric("syncs", "counter", "Syncs of the files."),
    Metric("sync_seconds", "counter", "How long they took."),
    Metric("sync_seconds_max", "gauge", "The longest of them."),
    Metric("reads", "counter", "Views taken by readers."),
    Metric("dirty_bytes", "gauge", "Bytes in the buffers and not in the files."),
    Metric("unsynced_bytes", "gauge", "Bytes in the files and not on stable storage."),
    Metric("oldest_unflushed_seconds", "gauge", "Age of the oldest message in the buffers."),
    Metric("failed", "gauge", "1 if the shard takes nothing until it is opened again."),
)
STORE_METRICS = (
    Metric("memory_bytes", "gauge", "Bytes that all buffers hold."),
    Metric("memory_bound_bytes", "gauge", "How many they may hold."),
    Metric("journal_bytes", "gauge", "Bytes in the journal of batches over many shards."),
    Metric("problems", "gauge", "What was found damaged or has failed."),
)
_LABELS = ("topic", "store_id")


class Collector:
    """Collects a store's statistics when Prometheus asks; register it with a registry."""

    def __init__(self, store: Measured) -> None:
        self._store = store

    def describe(self) -> list[Any]:
        """Return nothing: what there is, is told when it is asked for."""
        return []

    def collect(self) -> Iterator[Any]:
        """Go through the metric families."""
        from prometheus_client.core import (  # type: ignore[import-not-found,unused-ignore]
            CounterMetricFamily,
            GaugeMetricFamily,
        )

        families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        found = self._store.stats()
        for metric in STORE_METRICS:
            family = families[metric.kind](f"tubestore_{metric.name}", metric.help)
            family.add_metric((), found[metric.name])
            yield family
        for metric in METRICS:
            family = families[metric.kind](f"tubestore_{metric.name}", metric.help, labels=_LABELS)
            for name, topic in found["topics"].items():
                for store_id, shard in topic["shards"].items():
                    family.add_metric((name, str(store_id)), shard[metric.name])
            yield family


def text(store: Measured) -> str:
    """Return the statistics in Prometheus' text format."""
    from prometheus_client import (  # type: ignore[import-not-found,unused-ignore]
        CollectorRegistry,
        generate_latest,
    )

    registry = CollectorRegistry()
    registry.register(Collector(store))
    found: bytes = generate_latest(registry)
    return found.decode()
