"""A store's statistics for Prometheus; needs the extra `metrics` (prometheus-client).

    REGISTRY.register(tubestore.metrics.Collector(store))     # beside a program's own metrics
    print(tubestore.metrics.text(store))                       # once, as text

Every metric is `tubestore_<name>` with the labels `topic` and `store_id`, as `store.stats()`
has it of a shard; what goes up only ends in `_total`. Groups of consumers have the labels `group`
and `topic`, as `store.describe_group()` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tubestore.clock import Clock, SystemClock
from tubestore.errors import InvalidMessage


class Measured(Protocol):
    """What is collected from: an open store."""

    def stats(self) -> dict[str, Any]:
        """Return its statistics."""

    def groups(self) -> list[str]:
        """Return the names of its groups."""

    def describe_group(self, group: str) -> Any:
        """Return members, positions and lag of a group."""


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
    Metric("refused", "counter", "Appends not taken: the disk is full, or the shard has failed."),
    Metric("syncs", "counter", "Syncs of the files."),
    Metric("sync_seconds", "counter", "How long they took."),
    Metric("sync_seconds_max", "gauge", "The longest of them."),
    Metric("reads", "counter", "Views taken by readers."),
    Metric("dirty_bytes", "gauge", "Bytes in the buffers and not in the files."),
    Metric("unsynced_bytes", "gauge", "Bytes in the files and not on stable storage."),
    Metric("oldest_unflushed_seconds", "gauge", "Age of the oldest message in the buffers."),
    Metric("disk_full", "gauge", "1 while the shard has no room on its disk."),
    Metric("failed", "gauge", "1 if the shard takes nothing until it is opened again."),
)
STORE_METRICS = (
    Metric("memory_bytes", "gauge", "Bytes that all buffers hold."),
    Metric("memory_bound_bytes", "gauge", "How many they may hold."),
    Metric("journal_bytes", "gauge", "Bytes in the root's journals."),
    Metric("journal_syncs", "counter", "Syncs of them, each for all threads that wait."),
    Metric("problems", "gauge", "What was found damaged or has failed."),
)
#: Of a shard's files as they lie (`tubestore stat`).
FILE_METRICS = (
    Metric("index_min", "gauge", "First offset of the index that is there."),
    Metric("index_max", "gauge", "Offset behind the last entry."),
    Metric("data_min", "gauge", "First position of the data that is there."),
    Metric("data_max", "gauge", "Position behind the last record."),
    Metric("entries", "gauge", "Entries of the index."),
    Metric("data_files", "gauge", "Data files."),
    Metric("index_files", "gauge", "Index files."),
)
_LABELS = ("topic", "store_id")
GROUP_METRICS = (
    Metric("group_lag", "gauge", "Messages that the group has not processed."),
    Metric("group_age_seconds", "gauge", "Age of the oldest of them, by when it was received."),
    Metric("group_partitions", "gauge", "Partitions of the topic."),
    Metric("group_partitions_held", "gauge", "Partitions that a member has."),
)
_GROUP_LABELS = ("group", "topic")


class Collector:
    """Collects a store's statistics when Prometheus asks; register it with a registry."""

    def __init__(self, store: Measured, clock: Clock | None = None) -> None:
        self._store, self._clock = store, clock or SystemClock()

    def describe(self) -> list[Any]:
        """Return nothing: the metrics are known only when they are collected."""
        return []

    def collect(self) -> Iterator[Any]:
        """Go through the metric families."""
        found = self._store.stats()
        yield from families_of("tubestore", STORE_METRICS, (), [found])
        shards = [
            {**shard, "topic": name, "store_id": store_id}
            for name, topic in found["topics"].items()
            for store_id, shard in topic["shards"].items()
        ]
        yield from families_of("tubestore", METRICS, _LABELS, shards)
        groups = [row for name in self._store.groups() for row in self._rows_of_group(name)]
        yield from families_of("tubestore", GROUP_METRICS, _GROUP_LABELS, groups)

    def _rows_of_group(self, group: str) -> list[dict[str, Any]]:
        """Return a row a topic."""
        now, rows = self._clock.now_ms(), dict[str, dict[str, Any]]()
        try:
            found = self._store.describe_group(group)
        except InvalidMessage:
            return []  # it was deleted meanwhile
        for each in found.partitions:
            row = rows.setdefault(
                each.topic,
                {
                    "group": group,
                    "topic": each.topic,
                    **dict.fromkeys((metric.name for metric in GROUP_METRICS), 0),
                },
            )
            row["group_lag"] += each.lag or 0
            row["group_partitions"] += 1
            row["group_partitions_held"] += each.member is not None
            if each.waiting_since_ms is not None:
                age = max(0, now - each.waiting_since_ms) / 1000
                row["group_age_seconds"] = max(row["group_age_seconds"], age)
        return list(rows.values())


def text(store: Measured) -> str:
    """Return the statistics in Prometheus' text format."""
    return text_of(Collector(store).collect)


def rows_text(
    prefix: str, metrics: Sequence[Metric], labels: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> str:
    """Return rows in Prometheus' text format: a metric a column, `labels` name the row.

    What a row does not have, or has as None, is left out.
    """
    listed = list(rows)
    return text_of(lambda: families_of(prefix, metrics, labels, listed))


def families_of(
    prefix: str, metrics: Sequence[Metric], labels: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> Iterator[Any]:
    """Go through the metric families of rows; as `rows_text`."""
    from prometheus_client.core import (  # type: ignore[import-not-found,unused-ignore]
        CounterMetricFamily,
        GaugeMetricFamily,
    )

    families = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    for metric in metrics:
        family = families[metric.kind](f"{prefix}_{metric.name}", metric.help, labels=labels)
        for row in rows:
            value = row.get(metric.name)
            if value is not None:
                family.add_metric([str(row[label]) for label in labels], value)
        yield family


def text_of(collect: Callable[[], Iterable[Any]]) -> str:
    """Return metric families in Prometheus' text format; ImportError without its package."""
    from prometheus_client import (  # type: ignore[import-not-found,unused-ignore]
        CollectorRegistry,
        generate_latest,
    )

    class Once:
        def describe(self) -> list[Any]:
            return []

        def collect(self) -> Iterable[Any]:
            return collect()

    registry = CollectorRegistry()
    registry.register(Once())
    found: bytes = generate_latest(registry)
    return found.decode()
