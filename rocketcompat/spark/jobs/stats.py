"""Statistics of a CommitLog from the heads of its records: by topic, queue and hour.

Every record counts, the prepared and the rolled back ones too; bodies are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.columns import RecordColumns
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.planning import LogPlan, LogSplit, log_end, plan_range
from rocketcompat.spark.reading import pieces
from tubestore.core.old_paths import renamed_keyword
from tubestore.disks.roots import absolute_root
from tubestore.spark.jobs.stats import StatsResult, added_up, by_topic, merged
from tubestore.spark.kit.running import Row, Watch, run, silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIELDS = ("queue_id", "store_timestamp", "total_size")


@dataclass(frozen=True)
class LogStatsJob:
    """Adds the records of splits of a log up."""

    root: str
    #: Of the store, by RocketMQ's names: the place of its log, sizes of its files.
    options: Mapping[str, Any]
    name: str = "stats"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that identify this job."""
        return {"root": self.root, "options": dict(self.options)}

    def work(self, number: int, split: LogSplit) -> Row:
        """Add one split up: a list a group, in the order of `tubestore.spark.jobs.stats`."""
        directory, count = StoreDirectory(self.root, self.options), 0
        topics: dict[str, list[Any]] = {}
        for piece in pieces(directory, split):
            if isinstance(piece, RecordColumns):
                count += len(piece)
                columns = np.array([piece.column(name) for name in _FIELDS], np.int64)
                for code, topic in enumerate(piece.topic_names):
                    found = columns[:, piece.topic_codes == code]
                    if found.shape[1]:
                        topics.setdefault(topic, []).append(found)
        groups: list[Any] = []
        for topic, parts in sorted(topics.items()):
            groups += added_up(topic, *np.concatenate(parts, axis=1))
        return {"split": number, "rows": count, "groups": groups}


def plan_stats(root: str, options: Mapping[str, Any] | None = None) -> LogPlan:
    """Plan the statistics of a log as it is now; `options` are the store's. NotAStore."""
    directory = StoreDirectory(absolute_root(root), options)
    given = RocketOptions.parse({"path": directory.root})
    return plan_range(directory, given, directory.log.min_offset, log_end(directory))


@renamed_keyword("told", "watch")
def stats(
    spark: SparkSession, root: str, *, job_id: str | None = None,
    options: Mapping[str, Any] | None = None, watch: Watch = silent,
) -> StatsResult:  # fmt: skip
    """Add a log up in tasks: rows a queue (`queue_id`) and hour, and sums by topic.

    `options` are the store's, by RocketMQ's names, such as storePathCommitLog.
    """
    made = plan_stats(root, options)
    job = LogStatsJob(made.root, {**made.sizes, **(options or {})})
    done = run(spark, job, made.splits, job_id=job_id, watch=watch)
    hours = merged(done.rows)
    topics = [_renamed(row, "partitions", "queues") for row in by_topic(hours)]
    return StatsResult([_renamed(row, "partition", "queue_id") for row in hours], topics, done)


def _renamed(row: Row, old: str, new: str) -> Row:
    return {new if name == old else name: value for name, value in row.items()}
