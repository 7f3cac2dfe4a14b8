"""What a store is: its files, its settings, what its log and its queues span. Reads only.

Answers what an operator asks first of a broker that is down: was it stopped cleanly, which
sizes was it configured with, from when to when do the messages of a queue reach, and is the
one at this offset still there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from rocketcompat.commitlog.reads import read_record
from rocketcompat.files.config_files import bad_offsets, config_names, consumer_offsets, read_config
from rocketcompat.formats import (
    ABORT_FILE,
    COMMIT_LOG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
    LOCK_FILE,
    OWN_DIRECTORY,
    TUBE_DIRECTORY,
)
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.index_geometry import geometry_of
from rocketcompat.inspect.queues import QueueViews
from tubestore.core.kernels import Int64s
from tubestore.errors import InvalidMessage

Row = dict[str, Any]

#: Directories of a store, in the order of the output.
STRUCTURES = (
    COMMIT_LOG_DIRECTORY, CONSUME_QUEUE_DIRECTORY, "consumequeue_ext", "batchconsumequeue",
    INDEX_DIRECTORY, TUBE_DIRECTORY, "config", "compaction", "timerlog", "timerwheel",
    OWN_DIRECTORY,
)  # fmt: skip
#: What only some writers leave behind.
_TRACES = (
    (("abort.bak",), "RocketMQ 5"),
    (("compaction",), "RocketMQ 5"),
    (("config", "delayOffset.json"), "RocketMQ 4"),
    ((OWN_DIRECTORY,), "tubestore"),
)
_BLOCK = 512


def describe(directory: StoreDirectory, views: QueueViews) -> Row:
    """Return the whole as one object; rows under "queues", "settings" and "structures"."""
    owners = directory.vfs.lock_owners(directory.path(LOCK_FILE))
    holder = owners[0] if owners else None
    crashed = directory.vfs.exists(directory.path(ABORT_FILE))
    rows = list(span_rows(directory, views))
    times = [row[name] for row in rows for name in ("first_timestamp", "last_timestamp")]
    known = [time for time in times if time is not None]
    return {
        "root": directory.root,
        "state": "running" if holder is not None else "crashed" if crashed else "closed",
        "abort": crashed,
        "locked_by": holder,
        "written_by": _writers(directory),
        "min_physical_offset": directory.log.min_offset,
        "max_physical_offset": views.log_end,
        "damaged_regions": len(views.regions),
        "first_timestamp": min(known, default=None),
        "last_timestamp": max(known, default=None),
        "queues": rows,
        "settings": list(setting_rows(directory)),
        "structures": list(structure_rows(directory)),
    }


def span_rows(directory: StoreDirectory, views: QueueViews) -> Iterator[Row]:
    """Yield a row a queue: its offsets, and the store times of its first and last message."""
    for view in views:
        offsets = view.record_offsets
        yield {
            "topic": view.topic,
            "queue_id": view.queue_id,
            "min_offset": view.min_offset,
            "max_offset": view.max_offset,
            "messages": view.message_count,
            "first_timestamp": _time_of_one(directory, offsets),
            "last_timestamp": _time_of_one(directory, offsets[::-1]),
        }


def setting_rows(directory: StoreDirectory) -> Iterator[Row]:
    """Yield the sizes that the store was configured with, and how that is known."""
    config, inferred = directory.config, directory.inferred
    names = {
        "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": config.consume_queue_file_size,
    }
    for name, value in names.items():
        found = "the files' length" if name in inferred else "default"
        source = "given" if name in directory.options else found
        yield {"name": name, "value": value, "source": source}
    if not directory.index_paths():
        return
    try:
        geometry = geometry_of(directory)
    except InvalidMessage as error:
        yield {"name": "maxHashSlotNum", "value": None, "source": str(error)}
        return
    for name, value in (("maxHashSlotNum", geometry.slots), ("maxIndexNum", geometry.items)):
        source = "given" if name in directory.options else "the index's chains"
        yield {"name": name, "value": value, "source": source}


def structure_rows(directory: StoreDirectory) -> Iterator[Row]:
    """Yield a row a directory of the store: files, their length, and what they take on disk."""
    logs = [os.path.relpath(path, directory.root) for path in directory.log.directories]
    more = [name if not name.startswith(os.pardir) else os.path.abspath(directory.path(name))
            for name in logs if name != COMMIT_LOG_DIRECTORY]  # fmt: skip
    for name in (*more, *STRUCTURES):
        path = directory.path(name)
        if not directory.vfs.exists(path):
            continue
        files = length = taken = 0
        for base, _, names in os.walk(path):
            for file in names:
                status = os.stat(os.path.join(base, file))
                files, length = files + 1, length + status.st_size
                taken += status.st_blocks * _BLOCK
        yield {"structure": name, "files": files, "bytes": length, "bytes_on_disk": taken}


def held_row(directory: StoreDirectory, views: QueueViews, key: tuple[str, int], at: int) -> Row:
    """Return whether the message at a queue offset is still there, and why not."""
    view = views.find(*key)
    row: Row = {"topic": key[0], "queue_id": key[1], "queue_offset": at, "held": False}
    if view is None:
        return row | {"verdict": "unknown-queue"}
    row |= {"min_offset": view.min_offset, "max_offset": view.max_offset}
    if at < view.min_offset:
        return row | {"verdict": "expired"}
    if at >= view.max_offset:
        return row | {"verdict": "not-yet"}
    record = read_record(directory.log, view.record_offset(at))
    if record is None:
        return row | {"verdict": "damaged"}
    row |= {
        "physical_offset": record.physical_offset,
        "store_timestamp": record.store_timestamp,
    }
    return row | {"held": True, "verdict": "held"}


def lag_problem(directory: StoreDirectory) -> str | None:
    """Return what is wrong with the file that `lag_rows` reads; None if all of it was read."""
    if "consumerOffset" not in config_names(directory.vfs, directory.root):
        return None
    found = read_config(directory.vfs, directory.root, "consumerOffset")
    if found.content is None:
        return f"{found.path}: {found.problem}; there is no sound backup"
    bad = bad_offsets(found.content)
    if not bad:
        return None
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    return f"{found.path}: no offset of a group: {bad[0]}{more}"


def lag_rows(directory: StoreDirectory, views: QueueViews) -> Iterator[Row]:
    """Yield a row a queue that a group consumes: how far it is, and what it may have missed.

    From `config/consumerOffset.json`. `lost` is how many messages expired before the group came to
    them. A group with an offset beyond the queue's end would get none of the next messages.
    """
    if "consumerOffset" not in config_names(directory.vfs, directory.root):
        return
    content = read_config(directory.vfs, directory.root, "consumerOffset").content or {}
    table = {(group, topic, queue): at for (topic, group, queue), at in
             consumer_offsets(content).items()}  # fmt: skip
    for (group, topic, queue_id), offset in sorted(table.items()):
        view = views.find(topic, queue_id)
        row: Row = {"group": group, "topic": topic, "queue_id": queue_id, "offset": offset}
        if view is None:
            yield row | {"verdict": "unknown-queue"}
            continue
        verdict = "held"
        if offset < view.min_offset:
            verdict = "expired"
        elif offset > view.max_offset:
            verdict = "beyond"
        yield row | {
            "min_offset": view.min_offset,
            "max_offset": view.max_offset,
            "lag": max(0, view.max_offset - max(offset, view.min_offset)),
            "lost": max(0, view.min_offset - offset),
            "verdict": verdict,
        }


def _writers(directory: StoreDirectory) -> list[str]:
    found = [who for names, who in _TRACES if directory.vfs.exists(directory.path(*names))]
    return sorted(set(found))


def _time_of_one(directory: StoreDirectory, offsets: Int64s) -> int | None:
    """Return the store time of the first of these records that can be read."""
    for offset in offsets:
        record = read_record(directory.log, int(offset))
        if record is not None:
            return record.store_timestamp
    return None
