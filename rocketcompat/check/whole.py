"""Cross-checks of a store's directory: log, queues and index against each other; reads only.

`findings.py` defines the findings.

Works on a store that will not open. In a store that is being written, queues and index may lag
behind the log: what is missing at their end is then not a finding of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rocketcompat.check.findings import Finding, finding
from rocketcompat.check.index import LogKeys, check_index
from rocketcompat.check.queues import check_extensions, check_kinds, check_queue
from rocketcompat.check.shards import ShardComparison, check_tube
from rocketcompat.commitlog.misplaced import lost_begin
from rocketcompat.commitlog.walk import Gap
from rocketcompat.files.checkpoint import StoreCheckpoint
from rocketcompat.files.config_files import config_names, read_config
from rocketcompat.files.progress import ProgressFile
from rocketcompat.formats import (
    ABORT_FILE,
    BATCH_CONSUME_QUEUE_DIRECTORY,
    CHECKPOINT_FILE,
    CHECKPOINT_FILE_SIZE,
    CONSUME_QUEUE_DIRECTORY,
    parse_offset_name,
)
from rocketcompat.inspect.batch_queues import BatchComparison
from rocketcompat.inspect.comparison import QueueComparison
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.log_units import LogUnits, ScannedEnd
from rocketcompat.record.columns import RecordColumns
from rocketcompat.staging.pieces import LogRecords, places_of
from tubestore.core.trees import list_by_start

Piece = RecordColumns | Gap


def check(
    root: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> Iterator[Finding]:
    """Yield all findings of the store at `root`; `options` have RocketMQ's names.

    NotAStore if there is none. An empty answer means that RocketMQ and this package read the same.
    """
    return check_store(StoreDirectory(root, options))


def check_store(directory: StoreDirectory) -> Iterator[Finding]:
    """Yield all findings, by structure: files, log, queues, index, checkpoint."""
    yield from check_jobs(directory)
    yield from check_files(directory)
    queues, batches = QueueComparison(directory), BatchComparison(directory)
    shards, log = ShardComparison(directory), LogKeys(directory)

    def take_region(region: Gap) -> None:
        queues.take_region(region)
        batches.take_region(region)

    units = LogUnits(
        directory, ordinary=queues.take, batches=batches.take, regions=take_region
    )  # fmt: skip
    yield from log.scan(handing_on(directory.scan_log(), units.take, shards.take))
    for stray in directory.misplaced:
        if stray.start >= units.log_end:
            yield finding(stray.path, 0, "misplaced", f"{stray.reason}; behind the log", "error")
    yield from check_kinds(directory)
    queues.finish(units.log_end)
    batches.finish(units.log_end)
    for key in queues.names():
        queue = queues.compared(key)
        yield from check_queue(directory, queue)
        yield from check_extensions(directory, queue)
    for key in batches.names():
        yield from check_queue(directory, batches.compared(key))
    yield from check_index(directory, log)
    yield from check_tube(directory, shards, log.end)
    yield from check_checkpoint(directory, log.end, log.last_timestamp)
    yield from check_config(directory)


def handing_on(pieces: Iterable[Piece], *takers: Callable[[Piece], None]) -> Iterator[Piece]:
    """Pass the pieces of a scan on, and hand each to the takers, too."""
    for piece in pieces:
        for take in takers:
            take(piece)
        yield piece


def check_jobs(directory: StoreDirectory) -> Iterator[Finding]:
    """Yield a finding for a job that is not finished: a writer is at work on it, or died."""
    records = LogRecords(directory.vfs, directory.root)
    record = records.pending()
    if record is None:
        return
    places = places_of(directory.vfs, directory.root, record)
    if records.pending() is None:
        return  # it was finished meanwhile
    staged = sum(place.is_staged for place in places)
    text = f"job {record.job_id!r}: {staged} of {len(places)} parts are not in the log yet"
    obstacle = next((place.obstacle for place in places if place.obstacle), None)
    text += f"; it cannot go on: {obstacle}" if obstacle else "; opening for writing finishes it"
    yield finding(records.path(record.number), 0, "half_published", text, "error")


def check_files(directory: StoreDirectory) -> Iterator[Finding]:
    """Check names and lengths of the log's and the queues' files."""
    config = directory.config
    known = ProgressFile(directory.vfs, directory.root).read()
    closed = known[0] if known and not directory.vfs.exists(directory.path(ABORT_FILE)) else None
    gap = lost_begin(directory.log, closed)
    if gap is not None:
        yield finding(gap.path, 0, "file_missing", f"{gap.size} bytes: {gap.reason}", "error")
    for path in directory.log.directories:
        yield from _check_sizes(directory, path, config.mapped_file_size_commit_log)
    sizes = {
        CONSUME_QUEUE_DIRECTORY: config.consume_queue_file_size,
        BATCH_CONSUME_QUEUE_DIRECTORY: config.mapper_file_size_batch_consume_queue,
    }
    for kind, size in sizes.items():
        for key in directory.queue_names(kind):
            yield from _check_sizes(directory, directory.queue_path(*key, kind), size)


def _check_sizes(directory: StoreDirectory, path: str, file_size: int) -> Iterator[Finding]:
    found = list_by_start(directory.vfs, path, parse_offset_name)
    for other, is_directory, _ in found.others:
        what = "a directory" if is_directory else "a name"
        yield finding(other, 0, "name", f"{what} that does not belong here", "error")
    for _, full, size in found.files:
        if size != file_size:
            message = f"{size} bytes, not {file_size}"
            yield finding(full, min(size, file_size), "size", message, "error")


def check_config(directory: StoreDirectory) -> Iterator[Finding]:
    """Check that the broker's own files can be read; one with a sound backup can be restored."""
    for name in config_names(directory.vfs, directory.root):
        found = read_config(directory.vfs, directory.root, name)
        if found.problem:
            severity = "warning" if found.from_backup else "error"
            kept = "its backup is sound" if found.from_backup else "there is no sound backup"
            yield finding(found.path, 0, "config", f"{found.problem}; {kept}", severity)


def check_checkpoint(
    directory: StoreDirectory, end: ScannedEnd, last_timestamp: int
) -> Iterator[Finding]:
    """Check that the checkpoint has 4096 bytes and no time behind the log's end."""
    path = directory.path(CHECKPOINT_FILE)
    try:
        size = len(directory.vfs.read_file(path))
    except FileNotFoundError:
        yield finding(path, 0, "checkpoint", "missing: a real broker starts from zeros", "warning")
        return
    if size != CHECKPOINT_FILE_SIZE:
        message = f"{size} bytes, not {CHECKPOINT_FILE_SIZE}"
        yield finding(path, 0, "checkpoint", message, "warning")
        return
    checkpoint = StoreCheckpoint(directory.vfs, path)
    latest = max(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)
    if latest > last_timestamp and last_timestamp and not end.has_moved():
        message = f"synced up to {latest} ms, and the log ends at {last_timestamp} ms"
        yield finding(path, 0, "checkpoint_ahead", message, "warning")
