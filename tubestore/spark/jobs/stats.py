"""Statistics from the index alone: messages, bytes and times by topic, partition and hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tubestore.core.old_paths import renamed_keyword
from tubestore.disks.roots import disk_of
from tubestore.segments.shard_bytes import ShardBytes
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.kit.running import Done, Row, Watch, run, silent
from tubestore.spark.planning import Portion, Split, plan
from tubestore.spark.reading import portion_entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Array = np.ndarray[Any, Any]

HOUR_MS = 3_600_000
#: A row of the result: key, then what was added up.
COLUMNS = ("topic", "partition", "hour", "messages", "bytes", "least", "most", "first", "last")


@dataclass(frozen=True)
class StatsJob:
    """Adds the entries of splits up."""

    root: str
    name: str = "stats"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that identify this job."""
        return {"root": self.root}

    def work(self, number: int, split: Split) -> Row:
        """Add one split up: a list a group, in the order of `COLUMNS`."""
        vfs, groups = disk_of(self.root), []
        for portion in split.portions:
            bytes_ = ShardBytes(vfs, portion.shard)
            try:
                groups += _added(portion, bytes_)
            finally:
                bytes_.close()
        return {"split": number, "rows": split.rows, "groups": groups}


def _added(portion: Portion, bytes_: ShardBytes) -> list[list[Any]]:
    parts = [entries for _, entries in portion_entries(bytes_, portion)]
    if not parts:
        return []
    entries = np.concatenate(parts)
    names = ("partition_id", "received_time", "data_size")
    return added_up(portion.shard.topic, *(entries[name].astype(np.int64) for name in names))


def added_up(topic: str, ids: Array, times: Array, sizes: Array) -> list[list[Any]]:
    """Add messages of a topic up by partition and hour: lists in the order of `COLUMNS`.

    `ids` are their partitions, `times` ms, `sizes` bytes: int64, shape (n,), n > 0.
    """
    hours = times // HOUR_MS
    low, span = int(hours.min()), int(hours.max() - hours.min()) + 1
    keys, order, counts = _grouped(ids * span + (hours - low))
    bounds = np.concatenate(([0], np.cumsum(counts)))[:-1]
    sizes, times = sizes[order], times[order]
    columns = (
        counts,
        np.add.reduceat(sizes, bounds),
        np.minimum.reduceat(sizes, bounds),
        np.maximum.reduceat(sizes, bounds),
        np.minimum.reduceat(times, bounds),
        np.maximum.reduceat(times, bounds),
    )
    return [
        [topic, key // span, key % span + low, *values]
        for key, *values in zip(keys.tolist(), *(c.tolist() for c in columns), strict=True)
    ]


def _grouped(keys: Array) -> tuple[Array, Array, Array]:
    """Group rows by key: (the keys, rows in their order, how many rows each has).

    A few partitions and hours are numbers of 16 bits, which NumPy sorts in a pass or two: five
    times as fast as others.
    """
    low, high = int(keys.min()), int(keys.max())
    if high - low >= 1 << 16:
        found, codes, counts = np.unique(keys, return_inverse=True, return_counts=True)
        return found, np.argsort(codes, kind="stable"), counts
    codes = (keys - low).astype(np.uint16)
    totals = np.bincount(codes)
    places = np.flatnonzero(totals)
    return places + low, np.argsort(codes, kind="stable"), totals[places]


def merged(rows: list[Row]) -> list[Row]:
    """Return the statistics of all splits: a row for each topic, partition and hour."""
    found: dict[tuple[str, int, int], list[int]] = {}
    for row in rows:
        for topic, partition, hour, *values in row["groups"]:
            known = found.get((topic, partition, hour))
            if known is None:
                found[topic, partition, hour] = values
            else:
                known[0] += values[0]
                known[1] += values[1]
                known[2], known[4] = min(known[2], values[2]), min(known[4], values[4])
                known[3], known[5] = max(known[3], values[3]), max(known[5], values[5])
    return [
        dict(zip(COLUMNS, (topic, partition, hour * HOUR_MS, *values), strict=True))
        for (topic, partition, hour), values in sorted(found.items())
    ]


@dataclass(frozen=True, slots=True)
class StatsResult:
    """Rows of `COLUMNS` (`hour` as ms, `bytes` those of records), and sums by topic."""

    hours: list[Row]
    topics: list[Row]
    done: Done


@renamed_keyword("told", "watch")
def stats(
    spark: SparkSession,
    root: str,
    *,
    job_id: str | None = None,
    watch: Watch = silent,
) -> StatsResult:
    """Add a store up, without reading its data."""
    made = plan(ReadOptions.parse({"path": root}))
    done = run(spark, StatsJob(root), made.splits, job_id=job_id, watch=watch)
    hours = merged(done.rows)
    return StatsResult(hours, by_topic(hours), done)


def by_topic(hours: list[Row]) -> list[Row]:
    """Return a row a topic: sums, rate a second, and skew: the largest partition over the mean."""
    found: dict[str, list[Row]] = {}
    for row in hours:
        found.setdefault(row["topic"], []).append(row)
    topics = []
    for topic, rows in found.items():
        partitions: dict[int, int] = {}
        for row in rows:
            before = partitions.get(row["partition"], 0)
            partitions[row["partition"]] = before + row["messages"]
        messages, size = sum(r["messages"] for r in rows), sum(r["bytes"] for r in rows)
        first, last = min(r["first"] for r in rows), max(r["last"] for r in rows)
        topics.append(
            {
                "topic": topic,
                "partitions": len(partitions),
                "messages": messages,
                "bytes": size,
                "mean_bytes": size // messages,
                "messages_per_second": round(messages / max(1, last - first) * 1000, 1),
                "skew": round(max(partitions.values()) * len(partitions) / messages, 2),
                "first": first,
                "last": last,
            }
        )
    return topics
