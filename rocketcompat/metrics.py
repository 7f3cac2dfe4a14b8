"""A RocketMQ store's statistics for Prometheus; needs the extra `metrics` (prometheus-client).

    REGISTRY.register(rocketcompat.metrics.Collector(store))   # beside a program's own metrics
    print(rocketcompat.metrics.text(store))                     # once, as text

Every metric is `rocketcompat_<name>`; what goes up only ends in `_total`. Prometheus
computes rates. `rocketcompat info --prometheus` prints what the files of a closed store show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tubestore import metrics
from tubestore.metrics import Measured, Metric, families_of, text_of

_PREFIX = "rocketcompat"
#: Section of `store.stats()` -> its metrics, by the names that they have there.
METRICS: dict[str, tuple[Metric, ...]] = {
    "totals": (
        Metric("put_messages", "counter", "Messages put since the store was opened."),
        Metric("put_bytes", "counter", "Bytes of their records."),
        Metric("get_found", "counter", "Pulls, and pages of queues, that found something."),
        Metric("get_missed", "counter", "Those that found nothing."),
        Metric("get_messages", "counter", "Messages that they returned."),
        Metric("get_bytes", "counter", "Bytes of their records."),
    ),
    "log": (
        Metric("min_offset", "gauge", "Physical offset of the log's first byte."),
        Metric("max_offset", "gauge", "Physical offset behind the log's last record."),
        Metric("synced_offset", "gauge", "Everything below is on stable storage."),
        Metric("files", "gauge", "Files of the log."),
        Metric("syncs", "counter", "How often the log was synced."),
        Metric("dispatch_behind_bytes", "gauge", "Bytes that queues, index, shards do not know."),
        Metric("damaged_regions", "gauge", "Damaged regions of the log."),
        Metric("failed", "gauge", "1 if nothing is taken until the store is opened again."),
        Metric("full", "gauge", "1 if the last write found no room."),
        Metric("refusing", "gauge", "1 while the disk is too full for more messages."),
        Metric("refused_messages", "counter", "Messages that were refused, for any reason."),
    ),
    "dispatch": (
        Metric("full", "gauge", "1 while queues, index, shards wait for room on the disk."),
        Metric("stopped", "gauge", "1 if nothing is handed over until the store is reopened."),
    ),
    "disk": (
        Metric("commit_log_percent", "gauge", "Used percent of the log's disk."),
        Metric("consume_queue_percent", "gauge", "Used percent of the queues' disk."),
    ),
    "replication": (
        Metric("connections", "gauge", "Slaves of a master; of a slave 1 while it is connected."),
        Metric("bytes", "counter", "Bytes of the log that were sent, or received by a slave."),
        Metric("lag_bytes", "gauge", "Bytes that the slave furthest behind has not acknowledged."),
    ),
    "queues": (Metric("count", "gauge", "Queues."),),
    "index": (
        Metric("files", "gauge", "Index files."),
        Metric("items", "gauge", "Items of the index."),
    ),
}
DELETED = (Metric("deleted_files", "counter", "Files deleted by age or for room."),)
#: Of an open store: what follows the log, and the threads.
STATES: dict[str, tuple[Metric, ...]] = {
    "structure": (
        Metric("behind_bytes", "gauge", "Bytes of the log that it has not been handed."),
        Metric("stopped", "gauge", "1 if it stopped after an error, until the store is reopened."),
    ),
    "slave": (
        Metric("sent", "gauge", "Physical offset up to which it was sent the log."),
        Metric("acknowledged", "gauge", "Physical offset that it has acknowledged."),
        Metric("lag_bytes", "gauge", "Bytes of the log that it has not acknowledged."),
    ),
    "service": (
        Metric("running", "gauge", "1 if its thread runs."),
        Metric("stopped", "gauge", "1 if it ended after an error, until the store is reopened."),
    ),
}
#: Of a store as it lies (`info`): the whole, a queue, a directory.
STORE_METRICS = (
    Metric("min_physical_offset", "gauge", "Physical offset of the log's first byte."),
    Metric("max_physical_offset", "gauge", "Physical offset behind the log's last record."),
    Metric("damaged_regions", "gauge", "Damaged regions of the log."),
    Metric("abort", "gauge", "1 if the store was not closed cleanly, or is open."),
    Metric("running", "gauge", "1 if a process holds the store's lock."),
)
QUEUE_METRICS = (
    Metric("min_offset", "gauge", "First queue offset that is kept."),
    Metric("max_offset", "gauge", "The next queue offset."),
    Metric("messages", "gauge", "Messages that are kept."),
    Metric("first_timestamp", "gauge", "Store time of the first message, ms."),
    Metric("last_timestamp", "gauge", "Store time of the last message, ms."),
)
STRUCTURE_METRICS = (
    Metric("files", "gauge", "Files."),
    Metric("bytes", "gauge", "Their length."),
    Metric("bytes_on_disk", "gauge", "What they take on the disk."),
)


class Collector(metrics.Collector):
    """Collects a store's statistics when Prometheus asks; register it with a registry."""

    def collect(self) -> Iterator[Any]:
        """Go through the metric families."""
        found = self._store.stats()
        for section, table in METRICS.items():
            prefix = _PREFIX if section == "totals" else f"{_PREFIX}_{section}"
            rows = [found[section]] if found[section] else []
            yield from families_of(prefix, table, (), rows)
        deleted = [{"structure": name, "deleted_files": count}
                   for name, count in found["deleted_files"].items()]  # fmt: skip
        yield from families_of(_PREFIX, DELETED, ("structure",), deleted)
        for label, table in STATES.items():
            rows = [{label: name, **state} for name, state in found[f"{label}s"].items()]
            yield from families_of(f"{_PREFIX}_{label}", table, (label,), rows)


def text(store: Measured) -> str:
    """Return the statistics in Prometheus' text format."""
    return text_of(Collector(store).collect)


def directory_text(described: Mapping[str, Any]) -> str:
    """Return what `rocketcompat info` prints in Prometheus' text format."""
    whole = {**described, "running": described["state"] == "running"}

    def collect() -> Iterator[Any]:
        yield from families_of(_PREFIX, STORE_METRICS, (), [whole])
        queues, labels = described["queues"], ("topic", "queue_id")
        yield from families_of(f"{_PREFIX}_queue", QUEUE_METRICS, labels, queues)
        rows = described["structures"]
        yield from families_of(f"{_PREFIX}_structure", STRUCTURE_METRICS, ["structure"], rows)

    return text_of(collect)
