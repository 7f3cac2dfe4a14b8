"""What a task does with its split of the log: records in, columns out, some MiB at a time.

Nothing here imports Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.commitlog.walk import Gap, scan
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.columns import RecordColumns
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.planning import LogSplit
from rocketcompat.spark.shapes import columns_of, keys_of, unreadable
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord, DataLoss
from tubestore.spark.kit.options import EARLIEST, LATEST, Offsets
from tubestore.spark.kit.pushdown import Pushed
from tubestore.spark.kit.shapes import Shape


@dataclass(frozen=True)
class LogReading:
    """How splits are read; sent to every task, without a split."""

    shape: Shape
    #: The columns that come out, in this order.
    schema: pa.Schema
    options: RocketOptions
    sizes: dict[str, int]

    def batches(self, split: LogSplit, vfs: Vfs | None = None) -> Iterator[pa.RecordBatch]:
        """Read a split in the order of the log.

        CorruptRecord at damage if `failOnCorrupt`, else a row with the state of the damage;
        DataLoss if a file is no longer there.
        """
        directory = self.options.directory(self.sizes, vfs)
        names = self.shape.sources_of(self.schema.names)
        for piece in pieces(directory, split, verify=self.options.verify_crc):
            if isinstance(piece, RecordColumns):
                chosen = wanted(piece, self.options)
                if len(chosen):
                    yield self.shape.arrange(columns_of(chosen, names), self.schema)
                continue
            self._refuse(piece)
            if self.options.pushed:
                continue  # such a row has nothing that could be compared
            size = piece.end - piece.start
            batch = unreadable(names, piece.start, size, piece.state)
            yield self.shape.arrange(batch, self.schema)

    def _refuse(self, region: Gap) -> None:
        """Raise for what is no record, unless rows are wanted for it."""
        size = region.end - region.start
        text = f"{size} bytes from physical offset {region.start}: {region.reason}"
        if region.state == "missing" and self.options.fail_on_data_loss:
            raise DataLoss(f"{self.options.path}: {text} (failOnDataLoss=false goes on)")
        if self.options.fail_on_corrupt and region.state != "missing":
            reason = f"{text} (failOnCorrupt=false gives a row with this state)"
            raise CorruptRecord(region.path, region.position, reason)


def pieces(
    directory: StoreDirectory, split: LogSplit, *, verify: bool = False
) -> Iterator[RecordColumns | Gap]:
    """Go through a split: sound records, and regions that hold none, clipped to the split."""
    position = split.start
    log = directory.log
    if not verify:
        for piece in scan(log, position, split.end, check_crc=False):
            if piece.fault is not None:
                break
            yield from _clipped(RecordColumns(piece.data, piece.starts, piece.base), split)
            position = piece.end
    if position >= split.end:
        return
    # Damage, or checksums are wanted: the careful way, which finds where the log goes on.
    for found in directory.scan_log(position, split.end, chained=True):
        yield from _clipped(found, split)


def _clipped(found: RecordColumns | Gap, split: LogSplit) -> Iterator[RecordColumns | Gap]:
    if isinstance(found, Gap):
        if found.start < split.end and found.end > found.start and found.state != "stale":
            end = min(found.end, split.end)
            yield Gap(found.start, end, found.state, found.reason, found.path, found.position)
        return
    starts = found.starts[found.starts + found.base < split.end]
    if len(starts):
        yield RecordColumns(found.data, starts, found.base, found.path)


def wanted(records: RecordColumns, options: RocketOptions) -> RecordColumns:
    """Return the records that the options choose."""
    keep = np.ones(len(records), bool)
    if options.topics is not None or options.topic_pattern is not None:
        names = np.array([options.wants_topic(name) for name in records.topic_names], bool)
        keep &= names[records.topic_codes]
    if options.queues is not None:
        keep &= np.isin(records.column("queue_id"), sorted(options.queues))
    if options.begin_ms is not None:
        keep &= records.column("store_timestamp") >= options.begin_ms
    if options.end_ms is not None:
        keep &= records.column("store_timestamp") < options.end_ms
    keep &= _bounded(records, options.starting, lower=True)
    keep &= _bounded(records, options.ending, lower=False)
    if options.tags is not None:
        tags = pa.array([tag.encode() for tag in options.tags], pa.large_binary())
        keep &= pc.is_in(records.tags(), tags).to_numpy(zero_copy_only=False)
    keep &= _pushed(records, options.pushed)
    if keep.all():
        return records
    return RecordColumns(records.data, records.starts[keep], records.base, records.path)


def _pushed(records: RecordColumns, pushed: Pushed) -> Any:
    """Return which records are within what was pushed down; times are among the options."""
    keep = np.ones(len(records), bool)
    for name, bound in pushed.bounds.items():
        if name == "topic":
            topics = np.array([bound.holds(topic) for topic in records.topic_names], bool)
            keep &= topics[records.topic_codes]
        elif name in ("tags", "keys"):
            values = records.tags() if name == "tags" else keys_of(records)
            texts = pa.array([text.encode() for text in sorted(bound.among or ())], values.type)
            keep &= pc.is_in(values, texts).to_numpy(zero_copy_only=False)
        else:
            keep &= bound.mask(records.column(name))
    return keep


def _bounded(records: RecordColumns, given: int | Offsets, *, lower: bool) -> Any:
    """Return which records lie inside the bounds of their queues."""
    keep = np.ones(len(records), bool)
    if isinstance(given, int):
        return keep
    offsets, queues = records.column("queue_offset"), records.column("queue_id")
    for code, topic in enumerate(records.topic_names):
        for queue, bound in given.get(topic, {}).items():
            if bound not in (EARLIEST, LATEST):
                rows = (records.topic_codes == code) & (queues == queue)
                keep &= ~rows | ((offsets >= bound) if lower else (offsets < bound))
    return keep
