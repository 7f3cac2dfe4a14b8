"""Jobs over RocketMQ stores: the log as shards of a tube root, every message once, in its order.

A task takes a split of the log and stages tube records of it, the same that the store itself
builds beside its log (`follower.py`), byte for byte; the driver publishes all of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rocketcompat.record.columns import RecordColumns
from rocketcompat.shards.record import fits, to_tube
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.planning import LogPlan, LogSplit, plan
from rocketcompat.spark.reading import pieces, wanted
from tubestore.core.old_paths import renamed_keyword
from tubestore.errors import CorruptRecord
from tubestore.spark.kit.loads import Load
from tubestore.spark.kit.publishing import (
    Published,
    load_arguments,
    stage_and_publish,
    staged_row,
)
from tubestore.spark.kit.running import Row, Watch, silent
from tubestore.spark.kit.write_options import WriteOptions
from tubestore.staging.writer import StagedWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = pa.schema([("topic", pa.string()), ("body", pa.binary()), ("partition", pa.int32())])


@dataclass(frozen=True)
class ConvertJob:
    """Stages splits of a log as tube records."""

    job_id: str
    load: Load
    options: RocketOptions
    sizes: dict[str, int]
    name: str = "convert"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that identify this job."""
        return load_arguments(self)

    def work(self, number: int, split: LogSplit) -> Row:
        """Stage one split; counts the records that a tube root cannot hold."""
        directory, out = self.options.directory(self.sizes), self.load.options
        records = left_out = 0
        with StagedWriter(out.path, self.job_id, f"{number}", options=out.store) as writer:
            for piece in pieces(directory, split, verify=True):
                if not isinstance(piece, RecordColumns):
                    if self.options.fail_on_corrupt:
                        reason = f"{piece.reason} (failOnCorrupt=false leaves it out)"
                        raise CorruptRecord(piece.path, piece.position, reason)
                    continue
                chosen = wanted(piece, self.options)
                records += len(chosen)
                left_out += len(chosen) - _stage(writer, chosen)
            staged = writer.finish()
        return staged_row(number, staged, left_out, records=records)


def _stage(writer: StagedWriter, records: RecordColumns) -> int:
    """Stage what a consumer would get of some records; returns how many."""
    mask, count = fits(records), 0
    for code, topic in enumerate(records.topic_names):
        rows = np.flatnonzero(mask & (records.topic_codes == code))
        if len(rows):
            writer.write_columns(topic, to_tube(records, rows))
            count += len(rows)
    return count


def plan_convert(
    root: str, out: str, job_id: str | None, given: Mapping[str, str]
) -> tuple[ConvertJob, LogPlan]:
    """Plan a conversion; the tube root may be there, or is made."""
    options = RocketOptions.parse({"path": root, **given})
    made = plan(options)
    name = job_id or f"convert-{uuid.uuid4()}"
    load = Load.prepare(WriteOptions.parse({"path": out, "jobId": name}), _SCHEMA)
    return ConvertJob(name, load, options, made.sizes), made


@renamed_keyword("told", "watch")
def convert(
    spark: SparkSession,
    root: str,
    out: str,
    *,
    job_id: str | None = None,
    watch: Watch = silent,
    **options: str,
) -> Published:
    """Append the messages of a log that `options` (those of `read`) choose to a tube root.

    All of them or none, one time only for each `job_id`. Partitions are the queues; a message's id
    is its physical offset. What a broker keeps from consumers (half messages) is left out.
    """
    job, made = plan_convert(root, out, job_id, options)
    return stage_and_publish(spark, job, made.splits, job.load, job.job_id, watch)
