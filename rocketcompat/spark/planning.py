"""The CommitLog cut into splits: a file always begins with a whole record, so a file can be one.

A split names physical offsets [start, end). Its start is the start of a file, or a record inside a
large one that was searched for there. Only the last file is followed to its end, since its length
is no evidence (files are pre-sized): what a live broker adds later, or has half written now, is not
in a plan.

Nothing here imports Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rocketcompat.commitlog.walk import find_record
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.record.columns import RecordColumns
from rocketcompat.spark.options import RocketOptions
from tubestore.core.vfs import Vfs
from tubestore.errors import UnknownTopic


@dataclass(frozen=True, slots=True)
class LogSplit:
    """Physical offsets [start, end) of the log; the chain of records goes through `start`."""

    start: int
    end: int

    @property
    def bytes(self) -> int:
        """Bytes of the log."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class LogPlan:
    """All splits of a job in the order of the log."""

    root: str
    splits: tuple[LogSplit, ...]
    #: Sizes of files, by RocketMQ's names: what the tasks open the directory with.
    sizes: dict[str, int]

    def describe(self) -> str:
        """Describe what is going to be read."""
        size = sum(split.bytes for split in self.splits)
        return f"{self.root}: planned {len(self.splits)} splits, {size:,} bytes of CommitLog"


def plan(options: RocketOptions, vfs: Vfs | None = None) -> LogPlan:
    """Plan the reading of a store as it is now; NotAStore, UnknownTopic."""
    directory = options.directory(vfs=vfs)
    check_topics(directory, options)
    log = directory.log
    start = log.min_offset
    if options.begin_ms is not None:
        start = directory.first_file_since(options.begin_ms)
    return plan_range(directory, options, start, log_end(directory))


def check_topics(directory: StoreDirectory, options: RocketOptions) -> None:
    """Raise UnknownTopic for a topic without a queue in the store, if it has queues at all.

    InvalidOption for a pattern that matches none.
    """
    known = {topic for topic, _ in directory.queue_names()}
    if not known:
        return
    for topic in options.topics or ():
        if topic not in known:
            raise UnknownTopic(topic, known)
    options.check_pattern(known)


def plan_range(directory: StoreDirectory, options: RocketOptions, start: int, end: int) -> LogPlan:
    """Cut [start, end) of the log, both places of its chain, into splits."""
    most = options.max_split_bytes
    if options.min_partitions > 1:
        most = max(1, min(most, -(-(end - start) // options.min_partitions)))
    splits = tuple(_splits(directory, start, end, most))
    return LogPlan(directory.root, splits, directory.inferred)


def _splits(directory: StoreDirectory, start: int, end: int, most: int) -> Iterator[LogSplit]:
    """Cut at the borders of files, a large file within itself; small ones share a split."""
    low, high = start, start
    for place in [*_places(directory, start, end, most), end]:
        if place - low > most and high > low:
            yield LogSplit(low, high)
            low = high
        high = place
    if high > low:
        yield LogSplit(low, high)


def _places(directory: StoreDirectory, start: int, end: int, most: int) -> Iterator[int]:
    """Yield places of the chain between start and end, ascending, about `most` bytes apart.

    Within a file a record is one that has its magic code, its length, its checksum and its own
    physical offset: bytes inside a body that have all of these do not come about by chance.
    """
    log = directory.log
    for file in log.files:
        low = max(start, file.file_from_offset)
        high = min(file.file_from_offset + log.file_size, end)
        if low > start and low < end:
            yield low
        while low < high and high - low > most:
            found = find_record(log, low + most, high)
            if found is None:
                break
            yield found
            low = found


def log_end(directory: StoreDirectory, start: int | None = None) -> int:
    """Return the offset behind the last sound record, following the chain from a place of it."""
    log = directory.log
    position = start
    if position is None:
        filled = [f for f in log.files if f.read(0, 8).strip(b"\0")]
        if not filled:
            return int(log.min_offset)
        position = filled[-1].file_from_offset
    for piece in directory.scan_log(position, chained=True):
        if isinstance(piece, RecordColumns):
            position = piece.records_end
        elif piece.state in ("damaged", "missing"):
            position = piece.end
    return int(position)
