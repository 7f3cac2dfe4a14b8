"""A copy of a store with what is wanted of it, in a new one: topics, and messages since a time.

Headers and payloads are copied as they are: message ids, sender's addresses, flags, times. Only
offsets are new, since they count bytes of the index. Damaged messages end the job, unless they
are left out on purpose; they are counted.

Next to read: `running.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import tubestore
from tubestore import kernels
from tubestore.errors import CorruptRecord, InvalidOption
from tubestore.formats import DATA_HEADER
from tubestore.options import StoreOptions
from tubestore.records import HEADER_SIZE, RecordColumns, verify_entries
from tubestore.shard_bytes import ShardBytes, Window
from tubestore.spark.jobs.publishing import (
    Published,
    load_arguments,
    stage_and_publish,
    staged_row,
)
from tubestore.spark.jobs.running import Row, Told, silent
from tubestore.spark.loads import Load
from tubestore.spark.options import ReadOptions
from tubestore.spark.planning import Plan, Portion, Split, plan
from tubestore.spark.reading import portion_entries
from tubestore.spark.write_options import WriteOptions
from tubestore.staging import StagedWriter
from tubestore.store_directory import StoreDirectory
from tubestore.topic_settings import load_topics
from tubestore.vfs import OsVfs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = pa.schema([("topic", pa.string()), ("body", pa.binary()), ("partition", pa.int32())])


@dataclass(frozen=True)
class CompactJob:
    """Stages splits of one store for another."""

    job_id: str
    load: Load
    options: ReadOptions
    name: str = "compact"

    def arguments(self) -> Mapping[str, Any]:
        """Return what tells this job from another."""
        return load_arguments(self)

    def work(self, number: int, split: Split) -> Row:
        """Stage one split."""
        left_out = 0
        out = self.load.options
        with StagedWriter(out.path, self.job_id, f"{number}", options=out.store) as writer:
            for portion in split.portions:
                for columns, bad in sound_columns(portion, self.options):
                    left_out += bad
                    writer.write_columns(portion.shard.topic, columns)
            staged = writer.finish()
        return staged_row(number, staged, left_out)


def sound_columns(portion: Portion, options: ReadOptions) -> Iterator[tuple[RecordColumns, int]]:
    """Go through the sound messages that are wanted: (columns, how many were damaged)."""
    bytes_ = ShardBytes(OsVfs(), portion.shard)
    try:
        for _, entries in portion_entries(bytes_, portion):
            wanted = entries[options.filter.mask(entries)]
            for window in bytes_.windows(wanted):
                part = wanted[window.first : window.end]
                good = _sound(part, window)
                if not good.all() and options.fail_on_corrupt:
                    place = int(part["data_offset"][int(np.argmin(good))])
                    reason = "a damaged message (failOnCorrupt=false leaves it out)"
                    raise CorruptRecord(portion.shard.directory, place, reason)
                yield columns_of(part[good], window), int((~good).sum())
    finally:
        bytes_.close()


def _sound(entries: Any, window: Window) -> Any:
    if window.data is None:
        return np.zeros(len(entries), bool)
    return verify_entries(entries, 0, window.data, window.data_start, own_offset=False)


def columns_of(entries: Any, window: Window) -> RecordColumns:
    """Return sound records as the columns that a writer takes, payloads as they are."""
    data = window.data if window.data is not None else memoryview(b"")
    starts = entries["data_offset"].astype(np.int64) - window.data_start
    sizes = entries["data_size"].astype(np.int64)
    headers = kernels.gather(kernels.bytes_of(data), starts, DATA_HEADER.dtype)
    payloads = kernels.slices(data, starts + HEADER_SIZE, sizes - HEADER_SIZE)
    native = {name: headers[name].astype(headers.dtype[name].newbyteorder("=")) for name in _FIELDS}
    return RecordColumns(
        native["partition_id"],
        native["key_code"],
        native["received_time"],
        native["report_address"],
        native["msg_id"],
        native["flag"],
        [payloads],
    )


_FIELDS = ("partition_id", "key_code", "received_time", "report_address", "msg_id", "flag")


def plan_compact(
    root: str, out: str, job_id: str | None, given: Mapping[str, str]
) -> tuple[CompactJob, Plan]:
    """Plan a copy; the other store may be there, or is made."""
    options = ReadOptions.parse({"path": root, **given})
    if options.partitions is not None or options.assigned is not None:
        raise InvalidOption("partitions", "a copy has whole topics")
    name = job_id or f"compact-{uuid.uuid4()}"
    load = Load.prepare(WriteOptions.parse({"path": out, "jobId": name}), _SCHEMA)
    return CompactJob(name, load, options), plan(options)


def compact(
    spark: SparkSession,
    root: str,
    out: str,
    *,
    job_id: str | None = None,
    told: Told = silent,
    **options: str,
) -> Published:
    """Copy what `options` (those of `read`) choose into another store, all of it or nothing."""
    job, made = plan_compact(root, out, job_id, options)
    _copy_settings(job)
    return stage_and_publish(spark, job, made.splits, job.load, job.job_id, told)


def _copy_settings(job: CompactJob) -> None:
    """Make the topics as they are in the old store."""
    directory = StoreDirectory(OsVfs(), job.options.path, "r")
    settings = load_topics(directory, StoreOptions()).settings
    wanted = {name: known for name, known in settings.items() if job.options.wants_topic(name)}
    with tubestore.open(job.load.options.path, background=False) as store:
        store.ensure_topics(wanted)
