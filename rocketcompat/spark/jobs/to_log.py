"""Jobs from tube roots to RocketMQ stores: shards become the end of a CommitLog.

A task takes a range of message ids of all shards, makes log records of them in the order of their
ids and stages those; the driver publishes all of them, in the order of the ranges. Records that
came from a log are what they were, byte for byte, but for their offsets, which the log gives: a
log that was converted to shards and back is the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rocketcompat.record.columns import RecordColumns
from rocketcompat.shards.to_log import to_log
from rocketcompat.spark.jobs.id_splits import by_ids
from rocketcompat.spark.loads import RocketLoad
from rocketcompat.spark.write_options import STORE_TABLE, RocketWriteOptions
from rocketcompat.staging.writer import StagedLogWriter, blocks_of
from tubestore.core.kernels import Int64s, bytes_of, offsets_of
from tubestore.core.old_paths import renamed_keyword
from tubestore.disks.roots import disk_of
from tubestore.errors import InvalidOption
from tubestore.spark.jobs.compact import sound_columns
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.kit.publishing import (
    Published,
    load_arguments,
    stage_and_publish,
    staged_row,
)
from tubestore.spark.kit.running import Row, Watch, silent
from tubestore.spark.planning import Plan, Split, plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A task holds its split a few times over.
_SPLIT_BYTES = 64 << 20
_STORE_OPTIONS = {option.name.lower() for option in STORE_TABLE}


@dataclass(frozen=True)
class TubeConvertJob:
    """Stages splits of shards as log records."""

    job_id: str
    load: RocketLoad
    options: ReadOptions
    name: str = "convert-tube"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that identify this job."""
        return load_arguments(self)

    def work(self, number: int, split: Split) -> Row:
        """Stage one split."""
        with self.load.writer(self.job_id, f"{number}") as writer:
            left_out = self._stage(writer, split)
            staged = writer.finish()
        return staged_row(number, staged, left_out)

    def _stage(self, writer: StagedLogWriter, split: Split) -> int:
        """Stage the records of a split in the order of their ids; returns how many are damaged."""
        records, keys, left_out = [], [np.empty(0, np.int64)], 0
        directories = (portion.shard.directory for portion in split.portions)
        highest = dict.fromkeys(directories, np.iinfo(np.int64).min)
        for portion in split.portions:
            shard = portion.shard
            for tube, bad in sound_columns(portion, self.options):
                left_out += bad
                if not len(tube):
                    continue
                made = to_log(shard.topic, tube, self.load.config)
                if len(highest) == 1:  # a shard has its order
                    _write(writer, made)
                    continue
                records.append(made)
                # What is not in the order of the ids keeps that of its shard.
                ids = np.maximum.accumulate(np.append(highest[shard.directory], tube.msg_ids))
                keys.append(ids[1:])
                highest[shard.directory] = ids[-1]
        _write_merged(writer, records, np.concatenate(keys))
        return left_out


def _write_merged(writer: StagedLogWriter, records: list[Any], keys: Int64s) -> None:
    """Stage records in the order of their keys; equal ones as they are."""
    if (keys[1:] >= keys[:-1]).all():
        for some in records:
            _write(writer, some)
        return
    joined, order = pa.concat_arrays(records), np.argsort(keys, kind="stable")
    records.clear()
    bounds = np.frombuffer(joined.buffers()[1], np.int64)[: len(joined) + 1]
    for first, end in blocks_of(offsets_of(np.diff(bounds)[order])):
        _write(writer, joined.take(pa.array(order[first:end])))


def _write(writer: StagedLogWriter, records: Any) -> None:
    """Stage whole records, about a MiB at a time."""
    buffers = records.buffers()
    bounds, data = np.frombuffer(buffers[1], np.int64)[: len(records) + 1], bytes_of(buffers[2])
    for first, end in blocks_of(bounds):
        piece = data[bounds[first] : bounds[end]]
        writer.write_records(RecordColumns(piece.data, bounds[first:end] - bounds[first], 0))


def plan_tube_convert(
    root: str, out: str, job_id: str | None, given: Mapping[str, str]
) -> tuple[TubeConvertJob, Plan]:
    """Plan a conversion; the RocketMQ store may be there, or is made.

    `given`: options of `tubestore.spark.read`, and those of a store that is made.
    """
    store = {name: text for name, text in given.items() if name.lower() in _STORE_OPTIONS}
    texts = {name: text for name, text in given.items() if name not in store}
    texts = {"maxSplitBytes": str(_SPLIT_BYTES), "path": root, **texts}
    options = ReadOptions.parse(texts)
    name = job_id or f"convert-{uuid.uuid4()}"
    load = RocketLoad.prepare(RocketWriteOptions.parse({"path": out, "jobId": name, **store}), None)
    made = plan(options)
    portions = [portion for split in made.splits for portion in split.portions]
    if any(portion.limits or not portion.others for portion in portions):
        raise InvalidOption("partitions", "a conversion has whole topics, from begin to end")
    splits = by_ids(portions, options.max_split_bytes, disk_of(options.path))
    return TubeConvertJob(name, load, options), replace(made, splits=splits)


@renamed_keyword("told", "watch")
def convert_tube(
    spark: SparkSession,
    root: str,
    out: str,
    *,
    job_id: str | None = None,
    watch: Watch = silent,
    **options: str,
) -> Published:
    """Append the messages of a tube root to a RocketMQ store: all of them or none.

    Once for ever by `job_id`. Queues are the partitions; queue offsets are given anew, in order;
    store times are the received times.
    """
    job, made = plan_tube_convert(root, out, job_id, options)
    return stage_and_publish(spark, job, made.splits, job.load, job.job_id, watch)
