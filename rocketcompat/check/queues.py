"""Queues of all kinds against the log, and the extensions that units lead to."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from rocketcompat.check.findings import PER_FILE_MAX, Finding, finding
from rocketcompat.formats import (
    CONSUME_QUEUE_EXT_DIRECTORY,
    offset_name,
    parse_offset_name,
)
from rocketcompat.inspect.batch_queues import BatchQueueView
from rocketcompat.inspect.comparison import ComparedQueue
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.queues import UNIT_STATES, QueueView
from rocketcompat.queues.files import PLAIN
from tubestore.core.kernels import Int64s
from tubestore.core.trees import files_by_start

#: Bytes of an extension's unit without a bitmap.
EXTENSION_SIZE_LEAST = 20
_STEP_BYTES = 1 << 20
_UNIT_REASONS = {
    "missing": ("unit_missing", "warning"),
    "wrong": ("unit_wrong", "error"),
    "surplus": ("unit_surplus", "error"),
    "damaged": ("unit_damaged", "warning"),
    "fill": ("unit_fill", "warning"),
}


def check_queue(
    directory: StoreDirectory, queue: ComparedQueue | BatchQueueView
) -> Iterator[Finding]:
    """Yield what is wrong with a queue's units, a finding a run of units of one state."""
    if queue.kind is PLAIN:
        yield from _check_last_file(directory, directory.queue_path(queue.topic, queue.queue_id))
    listed = 0
    for start, end, state in queue.runs:
        if state not in _UNIT_REASONS:
            continue
        listed += 1
        if listed > PER_FILE_MAX:
            path = directory.queue_path(queue.topic, queue.queue_id, queue.kind.directory)
            more = "there are more findings in this queue"
            yield finding(path, 0, "unit_wrong", more, "error")
            return
        yield _unit_finding(directory, queue, start, end - 1, state)


def _check_last_file(directory: StoreDirectory, base: str) -> Iterator[Finding]:
    """Yield a finding for an empty last file behind another: RocketMQ makes a unit of it (R2)."""
    files = files_by_start(directory.vfs, base, parse_offset_name)
    if len(files) < 2:
        return
    path = files[-1][1]
    file = directory.vfs.open(path, writable=False)
    position = file.next_data(0)
    while position is not None and (data := file.pread(_STEP_BYTES, position)):
        if any(data):
            break
        position = file.next_data(position + len(data))
    else:
        what = "no unit: a real broker takes the zeros for one; `repair` removes the file"
        yield finding(path, 0, "empty_queue_file", what, "warning")
    file.close()


def _unit_finding(
    directory: StoreDirectory, queue: ComparedQueue | BatchQueueView, first: int, last: int,
    state: str,
) -> Finding:  # fmt: skip
    reason, severity = _UNIT_REASONS[state]
    name_offset = (first - first % queue.units_per_file) * queue.kind.layout.size
    base = directory.queue_path(queue.topic, queue.queue_id, queue.kind.directory)
    which = f"unit {first}" if first == last else f"units {first} to {last}"
    position = first % queue.units_per_file * queue.kind.layout.size
    path = os.path.join(base, offset_name(name_offset))
    return finding(path, position, reason, f"{which}: {UNIT_STATES[state]}", severity)


def check_kinds(directory: StoreDirectory) -> Iterator[Finding]:
    """Check that a topic has queues of one kind."""
    for path in directory.misplaced_queues():
        what = "ordinary queues of a topic of batches: a real broker refuses to start"
        yield finding(path, 0, "queue_kind", what, "error")


def check_extensions(
    directory: StoreDirectory, queue: ComparedQueue | QueueView
) -> Iterator[Finding]:
    """Check that units with an address as their tag lead to a unit of the extension."""
    path = directory.path(CONSUME_QUEUE_EXT_DIRECTORY, queue.topic, str(queue.queue_id))
    bad: dict[int, tuple[int, int]] = {}
    for places, codes in queue.addresses():
        for owner, first, count in _without_extension(directory, path, places, codes):
            before = bad.get(owner, (first, 0))
            bad[owner] = before[0], before[1] + count
    for owner in sorted(bad):
        first, count = bad[owner]
        message = f"{count} units, the first is {first}, have no extension"
        yield finding(path, 0, "ext_missing", message, "error")


def _without_extension(
    directory: StoreDirectory, path: str, places: Int64s, codes: Int64s
) -> Iterator[tuple[int, int, int]]:
    """Yield (file, first unit, number of units) of units with addresses that lead to no unit."""
    files = files_by_start(directory.vfs, path, parse_offset_name)
    starts = np.array([start for start, _, _ in files], np.int64)
    addresses = codes - np.iinfo(np.int64).min
    owners = np.searchsorted(starts, addresses, side="right") - 1
    for owner in np.unique(owners).tolist():
        mine = np.flatnonzero(owners == owner)
        inside = addresses[mine] - (files[owner][0] if owner >= 0 else 0)
        bad = np.ones(len(mine), bool)
        if owner >= 0:
            raw = directory.vfs.read_file(files[owner][1])
            short = np.frombuffer(raw + b"\0\0", np.uint8)
            fits = inside + EXTENSION_SIZE_LEAST <= len(raw)
            at = np.where(fits, inside, 0)
            sizes = (short[at].astype(np.int64) << 8) | short[at + 1]
            bad = ~fits | (sizes < EXTENSION_SIZE_LEAST) | (sizes > 0x7FFF)
        if bad.any():
            yield owner, int(places[mine[np.flatnonzero(bad)[0]]]), int(bad.sum())
