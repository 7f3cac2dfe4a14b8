"""Cross-checks of a store's directory: log, queues and index against each other; reads only.

Findings are rows {"path", "position", "reason", "message", "severity"}: `position` is a byte
of the file at `path`, `reason` one of `REASONS`. "error" is what a correct recovery cannot or
will not mend without a loss, or what a real broker takes for good; "warning" is what a
recovery mends from the log (a crash leaves such things), or what only looks strange.

Works on a store that will not open. In a store that is being written, queues and index may
lag behind the log: what is missing at their end is then no finding of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import tubestore
from rocketcompat.columns import RecordColumns
from rocketcompat.config_files import config_names, read_config
from rocketcompat.directory import ENDS, Region, StoreDirectory
from rocketcompat.formats import (
    ABORT_FILE,
    CHECKPOINT_FILE,
    CHECKPOINT_FILE_SIZE,
    CQ_PRE_FILL_SIZE,
    CQ_UNIT,
    INDEX_DIRECTORY,
    INDEX_ITEM,
    INT32_MAX,
    TUBE_DIRECTORY,
    parse_offset_name,
)
from rocketcompat.index_file import IndexFile
from rocketcompat.index_geometry import geometry_of
from rocketcompat.index_items import link_chains
from rocketcompat.log_jobs import LogRecords, places_of
from rocketcompat.messages import has_index_items, has_queue_unit
from rocketcompat.queue_view import UNIT_STATES, QueueView, QueueViews
from rocketcompat.store_checkpoint import StoreCheckpoint
from tubestore.check import check as check_shards
from tubestore.errors import CorruptRecord, InvalidMessage, InvalidName
from tubestore.filenames import check_topic_name
from tubestore.formats import PARTITIONS_PER_STORE, PAYLOAD_SIZE_MAX
from tubestore.kernels import Int64s

Finding = dict[str, Any]
EXTENSION_DIRECTORY = "consumequeue_ext"
#: Bytes of an extension's unit without a bitmap.
EXTENSION_SIZE_LEAST = 20

REASONS = {
    "name": "A file that no store has.",
    "size": "A file of a wrong length: a real broker refuses to start.",
    "file_missing": "The log goes on behind a file that is not there.",
    "damaged": "No sound records here, though sound ones follow: a real broker cuts the log here.",
    "torn": "The last record is not whole.",
    "stale": "Records that an earlier recovery cut off and left there; they may come back.",
    "unit_missing": UNIT_STATES["missing"],
    "unit_wrong": UNIT_STATES["wrong"],
    "unit_surplus": UNIT_STATES["surplus"],
    "unit_damaged": UNIT_STATES["damaged"],
    "unit_fill": "A unit between real ones stands for no message.",
    "index_geometry": "The number of slots is unknown, so the index was not checked.",
    "index_header": "The header does not fit the items.",
    "index_chain": "An item's chain is broken.",
    "item_surplus": "An item without a record that has such a key.",
    "item_missing": "A key of a record has no item.",
    "checkpoint": "The checkpoint is missing or has a wrong length.",
    "checkpoint_ahead": "The checkpoint speaks of messages that are not in the log.",
    "ext_missing": "A unit points to an extension that is not there: its filter matches nothing.",
    "shard_surplus": "A shard has a record that the log does not have there.",
    "shard_missing": "Records of the log are not in their shard.",
    "half_published": "A job is recorded and not finished: a real broker must wait for `recover`.",
    "config": "A configuration file cannot be read.",
}
_UNIT_REASONS = {
    "missing": ("unit_missing", "warning"),
    "wrong": ("unit_wrong", "error"),
    "surplus": ("unit_surplus", "error"),
    "damaged": ("unit_damaged", "warning"),
    "fill": ("unit_fill", "warning"),
}
#: Findings of one kind that are listed for a file; the last says how many more there are.
PER_FILE_MAX = 20


def check(
    root: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> Iterator[Finding]:
    """Yield all findings of the store at `root`; `options` have RocketMQ's names.

    NotAStore if it is none. An empty answer means that a real broker and ours see the same.
    """
    return check_store(StoreDirectory(root, options))


def check_store(directory: StoreDirectory) -> Iterator[Finding]:
    """Yield all findings, by structure: files, log, queues, index, checkpoint."""
    yield from check_jobs(directory)
    yield from check_files(directory)
    views = QueueViews(directory)
    log = LogKeys(directory)
    yield from log.findings
    for view in views:
        yield from check_queue(directory, view)
        yield from check_extensions(directory, view)
    yield from check_index(directory, log)
    yield from check_tube(directory)
    yield from check_checkpoint(directory, log)
    yield from check_config(directory)


def finding(path: str, position: int, reason: str, message: str, severity: str) -> Finding:
    """Return a finding as a row."""
    return {
        "path": path,
        "position": position,
        "reason": reason,
        "message": message,
        "severity": severity,
    }


def check_jobs(directory: StoreDirectory) -> Iterator[Finding]:
    """A job that is recorded and not finished: a writer is at it, or died."""
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
    """Names and lengths of the log's and the queues' files (spec §5.5)."""
    config = directory.config
    for path in directory.log.directories:
        yield from _check_sizes(directory, path, config.mapped_file_size_commit_log)
    for key in directory.queue_names():
        yield from _check_sizes(
            directory, directory.queue_path(*key), config.consume_queue_file_size
        )


def _check_sizes(directory: StoreDirectory, path: str, file_size: int) -> Iterator[Finding]:
    for name, is_directory, size in directory.vfs.entries(path):
        full = os.path.join(path, name)
        if is_directory or parse_offset_name(name) is None:
            what = "a directory" if is_directory else "a name"
            yield finding(full, 0, "name", f"{what} that does not belong here", "error")
        elif size != file_size:
            message = f"{size} bytes, not {file_size}"
            yield finding(full, min(size, file_size), "size", message, "error")


class LogKeys:
    """One pass over the log: what is wrong in it, and its keys for the index."""

    def __init__(self, directory: StoreDirectory) -> None:
        self.findings: list[Finding] = []
        hashes: list[Any] = [np.empty(0, np.int32)]
        offsets: list[Int64s] = [np.empty(0, np.int64)]
        self.end = directory.log.min_offset
        #: Store time of the youngest record, ms.
        self.last_timestamp = 0
        for piece in directory.scan_log():
            if isinstance(piece, Region):
                self.findings.append(self._of_region(directory, piece))
                if piece.state not in ENDS:
                    self.end = piece.end
                continue
            youngest = int(piece.column("store_timestamp").max())
            self.last_timestamp = max(self.last_timestamp, youngest)
            rows, found = self._keys(piece)
            hashes.append(found)
            offsets.append(piece.starts[rows] + piece.base)
            self.end = piece.base + int(piece.starts[-1] + piece.column("total_size")[-1])
        #: One entry a key, by physical offset and in the order of the keys.
        self.hashes, self.offsets = np.concatenate(hashes), np.concatenate(offsets)

    @staticmethod
    def _keys(piece: RecordColumns) -> tuple[Int64s, Any]:
        rows, hashes = piece.index_keys()
        wanted = has_index_items(piece.column("sys_flag"))[rows]
        return rows[wanted], hashes[wanted]

    @staticmethod
    def _of_region(directory: StoreDirectory, region: Region) -> Finding:
        size = region.end - region.start
        where = f"physical offset {region.start}, {size} bytes: {region.reason}"
        if region.state == "missing":
            return finding(region.path, region.start, "file_missing", where, "error")
        crashed = directory.vfs.exists(directory.path(ABORT_FILE))
        mended = region.state == "stale" or (region.state == "torn" and crashed)
        severity = "warning" if mended else "error"
        return finding(region.path, region.position, region.state, where, severity)


def check_queue(directory: StoreDirectory, view: QueueView) -> Iterator[Finding]:
    """Compare a queue's units with the log's records, a finding a run of units of one state."""
    states = view.states
    if len(states) == 0:
        return
    starts = np.flatnonzero(np.concatenate(([True], states[1:] != states[:-1])))
    ends = np.append(starts[1:], len(states))
    listed = 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        state = str(states[start])
        if state not in _UNIT_REASONS:
            continue
        listed += 1
        if listed > PER_FILE_MAX:
            yield finding(
                directory.queue_path(view.topic, view.queue_id), 0, "unit_wrong",
                "there are more findings in this queue", "error",
            )  # fmt: skip
            return
        yield _unit_finding(directory, view, start, end, state)


def _unit_finding(
    directory: StoreDirectory, view: QueueView, start: int, end: int, state: str
) -> Finding:
    reason, severity = _UNIT_REASONS[state]
    first, last = view.min_offset + start, view.min_offset + end - 1
    name_offset = (first - first % view.units_per_file) * CQ_UNIT.size
    path = os.path.join(directory.queue_path(view.topic, view.queue_id), f"{name_offset:020d}")
    which = f"unit {first}" if first == last else f"units {first} to {last}"
    position = first % view.units_per_file * CQ_UNIT.size
    return finding(path, position, reason, f"{which}: {UNIT_STATES[state]}", severity)


def check_index(directory: StoreDirectory, log: LogKeys) -> Iterator[Finding]:
    """Compare headers, chains and items of the index with each other and with the log's keys."""
    paths = directory.index_paths()
    if not paths:
        if len(log.offsets) and directory.config.message_index_enable:
            path, first = directory.path(INDEX_DIRECTORY), int(log.offsets[0])
            message = f"no index: {len(log.offsets)} keys, the first of the record at {first}"
            yield finding(path, 0, "item_missing", message, "warning")
        return
    try:
        geometry = geometry_of(directory)
    except InvalidMessage as error:
        yield finding(paths[0], 0, "index_geometry", str(error), "warning")
        return
    seen = np.zeros(len(log.hashes), bool)
    for path in paths:
        try:
            file = IndexFile.load(directory.vfs, path, geometry, writable=False)
        except CorruptRecord as error:
            yield finding(path, error.position, "size", error.reason, "error")
            continue
        yield from _check_index_file(file, log, seen)
        file.release()
    yield from _missing_items(paths, log, seen)


def _check_index_file(file: IndexFile, log: LogKeys, seen: Any) -> Iterator[Finding]:
    """Check one file; marks the keys of the log that its items stand for."""
    count = file.index_count - 1
    if count <= 0:
        return
    items = file.items()
    slots = items["key_hash"].astype(np.int64) % file.geometry.slots
    chains = link_chains(np.zeros(file.geometry.slots, np.int32), slots, 1)
    offsets = items["physical_offset"].astype(np.int64)
    header = file.header
    ends = (header.begin_physical_offset, header.end_physical_offset)
    if ends != (int(offsets[0]), int(offsets[-1])):
        message = f"begins and ends at {ends}, its items at {offsets[0]} and {offsets[-1]}"
        yield finding(file.path, 0, "index_header", message, "error")
    broken = np.flatnonzero(chains.previous != items["previous"])
    yield from _listed(file, broken, "index_chain", "item {} has a wrong predecessor", "error")
    stray = _strays(items["key_hash"].astype(np.int64), offsets, log, seen)
    yield from _listed(file, stray, "item_surplus", "item {}: no record has this key", "warning")


def _strays(hashes: Int64s, offsets: Int64s, log: LogKeys, seen: Any) -> Int64s:
    """Return the places of items without a record, expired ones aside; marks the keys found."""
    if len(log.offsets) == 0:
        return np.flatnonzero(offsets >= log.end)
    # Both sides as one number a pair: a record's keys are few, and its offset is far below 2^32
    # times the record size least; equal pairs of one side are equal keys of one message.
    ours = _pairs(log.hashes.astype(np.int64), log.offsets)
    theirs = _pairs(hashes, offsets)
    seen |= np.isin(ours, theirs)
    return np.flatnonzero(~np.isin(theirs, ours) & (offsets >= int(log.offsets[0])))


def _pairs(hashes: Int64s, offsets: Int64s) -> Any:
    pairs = np.empty(len(hashes), [("offset", np.int64), ("hash", np.int64)])
    pairs["offset"], pairs["hash"] = offsets, hashes
    # A mixture with an odd factor: equal only for equal pairs, but for one chance in 2^64.
    return pairs["offset"].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ (
        pairs["hash"].astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    )


def _listed(
    file: IndexFile, places: Int64s, reason: str, text: str, severity: str
) -> Iterator[Finding]:
    """Yield a finding for each place (item number - 1), the first of them one by one."""
    for place in places[:PER_FILE_MAX].tolist():
        position = file.geometry.item_position(place + 1)
        yield finding(file.path, position, reason, text.format(place + 1), severity)
    if len(places) > PER_FILE_MAX:
        more = f"{len(places) - PER_FILE_MAX} more of these"
        yield finding(file.path, 0, reason, more, severity)


def _missing_items(paths: list[str], log: LogKeys, seen: Any) -> Iterator[Finding]:
    """One finding for the keys without an item: from the first of them on, how many."""
    missing = np.flatnonzero(~seen)
    if len(missing):
        first = int(log.offsets[missing[0]])
        message = f"{len(missing)} keys have no item, the first is of the record at {first}"
        yield finding(paths[-1], INDEX_ITEM.size, "item_missing", message, "warning")


def check_extensions(directory: StoreDirectory, view: QueueView) -> Iterator[Finding]:
    """Units whose tag field is an address lead to a unit of the extension (spec §2.8)."""
    real = view.units[: view.max_offset - view.min_offset]
    codes = real["tags_code"].astype(np.int64)
    places = np.flatnonzero((codes < -(INT32_MAX + 1)) & (real["size"] != CQ_PRE_FILL_SIZE))
    if not len(places):
        return
    path = directory.path(EXTENSION_DIRECTORY, view.topic, str(view.queue_id))
    rows = [(parse_offset_name(n), n, s) for n, d, s in directory.vfs.entries(path) if not d]
    files = sorted((start, name, size) for start, name, size in rows if start is not None)
    starts = np.array([start for start, _, _ in files], np.int64)
    addresses = codes[places] - np.iinfo(np.int64).min
    owners = np.searchsorted(starts, addresses, side="right") - 1
    for owner in np.unique(owners).tolist():
        mine = np.flatnonzero(owners == owner)
        inside = addresses[mine] - (files[owner][0] if owner >= 0 else 0)
        bad = np.ones(len(mine), bool)
        if owner >= 0:
            raw = directory.vfs.read_file(os.path.join(path, files[owner][1]))
            short = np.frombuffer(raw + b"\0\0", np.uint8)
            fits = inside + EXTENSION_SIZE_LEAST <= len(raw)
            at = np.where(fits, inside, 0)
            sizes = (short[at].astype(np.int64) << 8) | short[at + 1]
            bad = ~fits | (sizes < EXTENSION_SIZE_LEAST) | (sizes > 0x7FFF)
        if bad.any():
            first = view.min_offset + int(places[mine[np.flatnonzero(bad)[0]]])
            message = f"{int(bad.sum())} units, the first is {first}, have no extension"
            yield finding(path, 0, "ext_missing", message, "error")


def check_tube(directory: StoreDirectory) -> Iterator[Finding]:
    """The shards: sound by themselves, and each with the log's messages, exactly once (D2)."""
    path = directory.path(TUBE_DIRECTORY)
    if not directory.vfs.exists(path):
        return
    for found in check_shards(path, vfs=directory.vfs):
        yield finding(found.path, found.position, str(found.reason), found.message, found.severity)
    wanted = _ids_by_topic(directory)
    with tubestore.open(path, mode="r", vfs=directory.vfs, on_damage="isolate") as store:
        for name in sorted({*store.topics(), *wanted}):
            known = name in store.topics()
            there = np.empty(0, np.int64)
            if known:
                table = store.topic(name).scan(columns=["msg_id"]).read_all()
                there = np.sort(table["msg_id"].fill_null(-1).to_numpy())
            yield from _compare_ids(directory, os.path.join(path, f"{name}-0"), there,
                                    wanted.get(name, there[:0]))  # fmt: skip


def _compare_ids(
    directory: StoreDirectory, path: str, there: Int64s, wanted: Int64s
) -> Iterator[Finding]:
    there = there[there >= directory.log.min_offset]  # shards may be kept for longer
    twice = np.count_nonzero(there[1:] == there[:-1])
    surplus = there[~_among(there, wanted)]
    if twice or len(surplus):
        what = f"{len(surplus)} records that the log does not have, {twice} twice"
        yield finding(path, 0, "shard_surplus", what, "error")
    missing = wanted[~_among(wanted, there)]
    if len(missing):
        last = len(there) == 0 or missing[0] > there[-1]
        what = f"{len(missing)} records are missing, from offset {int(missing[0])} on"
        yield finding(path, 0, "shard_missing", what, "warning" if last else "error")


def _among(values: Int64s, ascending: Int64s) -> Any:
    """Mask of the values that are in an ascending column; numpy's own sorts and hashes first."""
    places = np.searchsorted(ascending, values)
    return np.append(ascending, -1)[places] == values


def _ids_by_topic(directory: StoreDirectory) -> dict[str, Int64s]:
    """Return the physical offsets of the records that have to be in a shard, by topic."""
    parts: dict[str, list[Int64s]] = {}
    for piece in directory.scan_log():
        if isinstance(piece, Region):
            continue
        offsets = piece.starts + piece.base
        queue_ids = piece.column("queue_id")
        wanted = has_queue_unit(piece.column("sys_flag")) & (queue_ids >= 0)
        wanted &= queue_ids < PARTITIONS_PER_STORE * PARTITIONS_PER_STORE
        wanted &= piece.column("body_length") <= PAYLOAD_SIZE_MAX - (1 << 16)
        for code, name in enumerate(piece.topic_names):
            parts.setdefault(name, []).append(offsets[wanted & (piece.topic_codes == code)])
    found = {name: np.concatenate(arrays) for name, arrays in parts.items() if _is_topic(name)}
    return {name: ids for name, ids in found.items() if len(ids)}


def _is_topic(name: str) -> bool:
    """Whether a shard's directory can have the name."""
    try:
        check_topic_name(name)
    except InvalidName:
        return False
    return True


def check_config(directory: StoreDirectory) -> Iterator[Finding]:
    """The broker's own files hold what can be read; one with a sound backup can be restored."""
    for name in config_names(directory.vfs, directory.root):
        found = read_config(directory.vfs, directory.root, name)
        if found.problem:
            severity = "warning" if found.from_backup else "error"
            kept = "its backup is sound" if found.from_backup else "there is no sound backup"
            yield finding(found.path, 0, "config", f"{found.problem}; {kept}", severity)


def check_checkpoint(directory: StoreDirectory, log: LogKeys) -> Iterator[Finding]:
    """The checkpoint has 4096 bytes (spec §4.1), and knows no messages that are not there."""
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
    if latest > log.last_timestamp and log.last_timestamp:
        message = f"synced up to {latest} ms, and the log ends at {log.last_timestamp} ms"
        yield finding(path, 0, "checkpoint_ahead", message, "warning")
