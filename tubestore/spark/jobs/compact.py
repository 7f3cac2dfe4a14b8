"""A copy of a store with what is wanted of it, in a new one: topics, and messages since a time.

Records are verified and copied as they lie: message ids, sender's addresses, flags, times. Only
offsets are new, since they count bytes of the index. Damaged messages end the job, unless they
are left out on purpose; they are counted.

The place of a split's rows in the other store follows from the index alone: behind the rows that
are there, and behind the splits before it. Tasks write the offsets of that place, so that nothing
is left to do when the job is published. If the place differs (another process wrote meanwhile, or
messages were left out), the files concerned are rewritten then.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tubestore.core import kernels
from tubestore.core.old_paths import renamed_keyword
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.disks.roots import disk_of
from tubestore.errors import CorruptRecord, InvalidOption
from tubestore.options import StoreOptions
from tubestore.reading.sources import Filter
from tubestore.record.layouts import DATA_HEADER
from tubestore.record.names import store_key
from tubestore.record.records import (
    ENTRY_SIZE,
    HEADER_SIZE,
    EncodedBatch,
    RecordColumns,
    verify_entries,
)
from tubestore.segments.shard_bytes import ShardBytes, Window
from tubestore.spark.kit.loads import Load
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.kit.publishing import (
    Published,
    load_arguments,
    stage_and_publish,
    staged_row,
)
from tubestore.spark.kit.running import Row, Watch, silent
from tubestore.spark.kit.write_options import WriteOptions
from tubestore.spark.planning import (
    Plan,
    Portion,
    Split,
    journal_of,
    list_shards,
    plan,
    with_journal,
)
from tubestore.spark.reading import portion_entries
from tubestore.staging.writer import Place, StagedWriter
from tubestore.store.directory import StoreDirectory
from tubestore.store.topics import load_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = pa.schema([("topic", pa.string()), ("body", pa.binary()), ("partition", pa.int32())])


@dataclass(frozen=True, slots=True)
class PlacedSplit(Split):
    """A split, and the expected place of its rows in the copy, by topic and store id."""

    places: Mapping[tuple[str, int], Place]


@dataclass(frozen=True)
class CompactJob:
    """Stages splits of one store for another."""

    job_id: str
    load: Load
    options: ReadOptions
    name: str = "compact"

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that identify this job."""
        return load_arguments(self)

    def work(self, number: int, split: PlacedSplit) -> Row:
        """Stage one split."""
        left_out = 0
        out = self.load.options
        # No sum: a job that comes again stages nothing that could be compared.
        with StagedWriter(
            out.path,
            self.job_id,
            f"{number}",
            options=out.store,
            places=split.places,
            content=False,
        ) as writer:
            for portion in split.portions:
                for entries, window, bad in _sound_entries(portion, self.options):
                    left_out += bad
                    if len(entries):
                        writer.write_records(portion.shard.topic, _records_of(entries, window))
            staged = writer.finish()
        return staged_row(number, staged, left_out)


def sound_columns(portion: Portion, options: ReadOptions) -> Iterator[tuple[RecordColumns, int]]:
    """Go through the sound messages that are wanted: (columns, how many were damaged)."""
    for entries, window, bad in _sound_entries(portion, options):
        yield columns_of(entries, window), bad


def _sound_entries(portion: Portion, options: ReadOptions) -> Iterator[tuple[Any, Window, int]]:
    """Go through what is wanted: (entries of sound records, their bytes, how many were damaged)."""
    bytes_ = ShardBytes(disk_of(options.path), portion.shard)
    try:
        for _, entries in portion_entries(bytes_, portion):
            wanted = _chosen(entries, options.filter.mask(entries))
            for window in bytes_.windows(wanted):
                part = wanted[window.first : window.end]
                good = _sound(part, window)
                if not good.all() and options.fail_on_corrupt:
                    place = int(part["data_offset"][int(np.argmin(good))])
                    reason = "a damaged message (failOnCorrupt=false leaves it out)"
                    raise CorruptRecord(portion.shard.directory, place, reason)
                yield _chosen(part, good), window, int((~good).sum())
    finally:
        bytes_.close()


def _chosen(entries: Any, keep: Any) -> Any:
    return entries if keep.all() else kernels.rows_at(entries, np.flatnonzero(keep))


def _sound(entries: Any, window: Window) -> Any:
    if window.data is None:
        return np.zeros(len(entries), bool)
    return verify_entries(entries, 0, window.data, window.data_start, own_offset=False)


def _records_of(entries: Any, window: Window) -> EncodedBatch:
    """Return sound records, one at least, as they lie, in a copy."""
    assert window.data is not None
    starts = entries["data_offset"].astype(np.int64) - window.data_start
    data, bounds = kernels.joined(window.data, starts, entries["data_size"].astype(np.int64))
    if not data.flags.writeable:  # a part of the window
        data = data.copy()
    return EncodedBatch(data, entries.copy(), bounds[:-1])


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
    made = plan(options)
    if any(portion.limits for split in made.splits for portion in split.portions):
        raise InvalidOption("startingOffsets", "a copy has whole topics")
    source = StoreDirectory(disk_of(options.path), options.path, "r")
    settings = load_topics(source, StoreOptions()).settings
    load = replace(
        load, settings={name: its for name, its in settings.items() if options.wants_topic(name)}
    )
    splits = placed_splits(made, _ends_of(load.path), options.filter)
    return CompactJob(name, load, options), replace(made, splits=splits)


def placed_splits(
    made: Plan, ends: Mapping[tuple[str, int], Place], wanted: Filter
) -> tuple[PlacedSplit, ...]:
    """Return the place of each split's rows if all go behind `ends` in order."""
    vfs, placed, now = disk_of(made.root), [], dict(ends)
    for split in made.splits:
        places: dict[tuple[str, int], Place] = {}
        for portion in split.portions:
            key = (portion.shard.topic, portion.shard.store_id)
            index_end, data_end = now.setdefault(key, (0, 0))
            places.setdefault(key, (index_end, data_end))
            rows, size = _expected(vfs, portion, wanted)
            now[key] = (index_end + rows * ENTRY_SIZE, data_end + size)
        placed.append(PlacedSplit(split.portions, places))
    return tuple(placed)


def _expected(vfs: Vfs, portion: Portion, wanted: Filter) -> tuple[int, int]:
    """Return (rows, bytes of their records) of a portion, by the index alone.

    Where all rows are wanted, by its ends: records follow each other, or almost always do.
    """
    if wanted.is_empty:
        return portion.rows, portion.bytes - portion.rows * ENTRY_SIZE
    rows = size = 0
    bytes_ = ShardBytes(vfs, portion.shard)
    try:
        for _, entries in portion_entries(bytes_, portion):
            keep = wanted.mask(entries)
            rows += int(np.count_nonzero(keep))
            size += int(entries["data_size"].sum(where=keep, dtype=np.int64))
    finally:
        bytes_.close()
    return rows, size


def _ends_of(root: str) -> dict[tuple[str, int], Place]:
    """Return where the shards of a store end, by their files: (index, data)."""
    vfs = OsVfs()
    if not vfs.exists(root):
        return {}
    found, journal = {}, journal_of(vfs, root)
    for listed in list_shards(root, vfs, journal, with_pending=True):
        parts = journal.of(store_key(listed.topic, listed.store_id))
        shard = with_journal(vfs, root, listed, parts)
        ends = shard.statistics()
        found[shard.topic, shard.store_id] = (ends["index_max"], ends["data_max"])
    return found


@renamed_keyword("told", "watch")
def compact(
    spark: SparkSession,
    root: str,
    out: str,
    *,
    job_id: str | None = None,
    watch: Watch = silent,
    **options: str,
) -> Published:
    """Copy what `options` (those of `read`) choose into another store, all of it or nothing."""
    job, made = plan_compact(root, out, job_id, options)
    return stage_and_publish(spark, job, made.splits, job.load, job.job_id, watch)
