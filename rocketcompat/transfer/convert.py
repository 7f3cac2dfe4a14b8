"""A store copied into another form: other file sizes, BoltMQ to RocketMQ, log to shards and back.

A copy keeps records as they are, byte for byte except for their place (`copy.py`); queues and index
are built from the new log. Queue offsets stay, so the files in `config/` are right for the copy,
too: without `delayOffset.json` every delayed message would be delivered once more. An interrupted
copy continues: `<destination>/.tubestore/convert.json` records what is done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import rocketcompat
import tubestore
from rocketcompat.commitlog.copy import LogWriter
from rocketcompat.commitlog.walk import Gap
from rocketcompat.formats import (
    BATCH_CONSUME_QUEUE_DIRECTORY,
    BLANK,
    BODY_CRC_MASK,
    BOLTMQ_MAGIC,
    BOLTMQ_MAGIC_BLANK,
    CONFIG_DIRECTORY,
    CONSUME_QUEUE_DIRECTORY,
    INDEX_DIRECTORY,
    MAGIC_V1,
    MESSAGE_PREFIX,
    OWN_DIRECTORY,
    TUBE_DIRECTORY,
)
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.index_geometry import geometry_of
from rocketcompat.messages import NOT_DELAYED, Message
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.columns import RecordColumns
from rocketcompat.repair.rebuild import Watch, build, put_in_place
from rocketcompat.shards.record import from_tube
from tubestore.clock import Clock
from tubestore.core.kernels import Int64s, crc_each, gather, scatter
from tubestore.core.old_paths import renamed_keyword
from tubestore.core.quarantine import Quarantine
from tubestore.core.state_file import parse_json
from tubestore.core.trees import copy_file
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.errors import NotAStore

STATE_FILE = "convert.json"
#: Bytes of the source between two marks.
MARK_BYTES = 1 << 30
_STATE_FORMAT = 1
_ROWS = 10_000
#: Messages of shards between two calls of `watch`.
WATCHED_ROWS = 100
_SILENT: Watch = lambda _done, _all: None  # noqa: E731


@renamed_keyword("told", "watch")
def copy_store(
    source: StoreDirectory,
    target: str,
    options: Mapping[str, Any] | None = None,
    *,
    clock: Clock,
    watch: Watch = _SILENT,
) -> dict[str, int]:
    """Copy a RocketMQ or BoltMQ store to a new root with other options; returns what was copied.

    Every sound record is copied; damage is left out. {"records", "bytes", "left_out"}.
    """
    geometry = geometry_of(source)
    sizes = {"maxHashSlotNum": geometry.slots, "maxIndexNum": geometry.items}
    config = MessageStoreConfig.from_camel(
        {**source.inferred, **sizes, **source.options, **(options or {})}
    )
    config = config.changed(batch_topics=config.batch_topics | source.config.batch_topics)
    pieces = _bolt_pieces if is_boltmq(source) else _pieces
    vfs = source.vfs
    state = _State(vfs, source.root, target)
    if state.end is None:
        _check_new(vfs, target)
    writer = LogWriter(
        vfs, target, config.mapped_file_size_commit_log, start=source.log.min_offset,
        resume_at=state.end,
    )  # fmt: skip
    marked = state.next
    for data, starts, lengths, following in pieces(source, state.next, state):
        writer.append(data, starts, lengths)
        state.records += len(starts)
        watch(following - source.log.min_offset, source.log.size)
        state.next = following
        if following - marked >= MARK_BYTES:
            marked = following
            writer.sync()
            state.write(writer.end)
    writer.close()
    state.write(writer.end)
    build_structures(target, config, vfs, clock)
    _copy_config_files(vfs, source.root, target)
    state.forget()
    return {"records": state.records, "bytes": writer.end, "left_out": state.left_out}


def _copy_config_files(vfs: Vfs, source: str, target: str) -> None:
    """Copy the broker's files: their offsets are right for the copy."""
    old, new = (os.path.join(root, CONFIG_DIRECTORY) for root in (source, target))
    names = [name for name, is_directory, _ in vfs.entries(old) if not is_directory]
    if not names:
        return
    vfs.make_directories(new)
    for name in names:
        copy = copy_file(vfs, os.path.join(old, name), os.path.join(new, name))
        copy.sync()
        copy.close()
    vfs.sync_directory(new)


@renamed_keyword("told", "watch")
def to_tubestore(
    source: StoreDirectory, target: str, *, clock: Clock, watch: Watch = _SILENT
) -> dict[str, int]:
    """Build the shards of a log as a tubestore root of its own at `target`, a new directory."""
    vfs = source.vfs
    _check_new(vfs, target)
    parent = os.path.dirname(os.path.abspath(target))
    vfs.make_directories(parent)
    built = build(source, [TUBE_DIRECTORY], clock=clock, watch=watch, work=f"{target}.new")
    if vfs.exists(target):
        vfs.remove_directory(target)
    vfs.rename(os.path.join(built.root, TUBE_DIRECTORY), target)
    built.remove(vfs)
    vfs.sync_directory(parent)
    return {"records": built.records, "bytes": built.log_end, "left_out": len(built.regions)}


@renamed_keyword("told", "watch")
def from_tubestore(
    source: str, target: str, options: Mapping[str, Any] | None = None, *, watch: Watch = _SILENT
) -> dict[str, int]:
    """Put the messages of a tubestore or TubeMQ root into a new RocketMQ root.

    Partition ids become queue ids, filter items tags, attributes properties. Queue offsets are
    given anew, in the order of the partition. A record that came from a log becomes what it was.
    `watch` gets the number of messages that are put, and of all.
    """
    config = MessageStoreConfig.from_camel(options or {}).changed(
        layouts=frozenset({"consume_queue", "index"})
    )
    _check_new(OsVfs(), target)
    count = size = 0
    with (
        tubestore.open(source, mode="r", on_damage="isolate") as shards,
        rocketcompat.open(target, "w", config) as store,
    ):
        there = sum(sum(topic.partitions()["count"].to_pylist()) for topic in shards.values())
        for name in shards.topics():
            for batch in shards.topic(name).scan():
                for row in batch.to_pylist():
                    if row.get("state", "ok") == "ok":
                        put = store.put_message(_message_of(name, row))
                        count, size = count + 1, put.physical_offset + put.size
                        if count % WATCHED_ROWS == 0:
                            watch(count, max(there, count))
        watch(count, count)
    return {"records": count, "bytes": size, "left_out": 0}


def _check_new(vfs: Vfs, target: str) -> None:
    """Raise NotAStore if the target has content that a copy would be mixed with."""
    if vfs.entries(target):
        raise NotAStore(target, "holds something already; a new directory is needed")


def is_boltmq(directory: StoreDirectory) -> bool:
    """True if the log begins with a record of BoltMQ's."""
    raw = directory.log.read(directory.log.min_offset, BLANK.size)
    if len(raw) < BLANK.size:
        return False
    return BLANK.unpack_from(raw).magic_code in (BOLTMQ_MAGIC, BOLTMQ_MAGIC_BLANK)


class _State:
    """The progress of a copy: the source's next offset, and the end of what was written for it."""

    def __init__(self, vfs: Vfs, source: str, target: str) -> None:
        self._vfs, self._source = vfs, os.path.abspath(source)
        self._path = os.path.join(target, OWN_DIRECTORY, STATE_FILE)
        self.next, self.records, self.left_out = 0, 0, 0
        self.end: int | None = None
        try:
            known = parse_json(vfs.read_file(self._path))
            names = ("next", "end", "records", "left_out")
            numbers = [int(known[name]) for name in names]
            same = known["format"] == _STATE_FORMAT and known["source"] == self._source
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return
        if same:
            self.next, self.end, self.records, self.left_out = numbers

    def write(self, end: int) -> None:
        """Record that everything before `next` is on stable storage, up to `end`."""
        content = {
            "format": _STATE_FORMAT, "source": self._source, "next": self.next, "end": end,
            "records": self.records, "left_out": self.left_out,
        }  # fmt: skip
        self._vfs.make_directories(os.path.dirname(self._path))
        self._vfs.replace_file(self._path, json.dumps(content).encode())

    def forget(self) -> None:
        """Remove the state: the copy is complete."""
        if self._vfs.exists(self._path):
            self._vfs.remove(self._path)


_Piece = tuple[Any, Int64s, Int64s, int]


def _pieces(source: StoreDirectory, start: int, state: _State) -> Iterator[_Piece]:
    """Yield (data, starts, sizes, next offset) of the sound records."""
    for piece in source.scan_log(start or None, chained=start > source.log.min_offset):
        if isinstance(piece, Gap):
            state.left_out += 1
            continue
        sizes = piece.column("total_size").astype(np.int64)
        yield piece.data, piece.starts, sizes, piece.records_end


def _bolt_pieces(source: StoreDirectory, start: int, state: _State) -> Iterator[_Piece]:
    """As `_pieces`, of BoltMQ's log, with RocketMQ's magic code and checksums of 31 bits."""
    for file in source.log.files:
        if file.file_from_offset + file.file_size <= start:
            continue
        data = bytearray(file.read(0, file.file_size))
        starts, sizes = _bolt_chain(data, file.file_from_offset)
        raw = np.frombuffer(data, np.uint8)
        first = int(np.searchsorted(starts + file.file_from_offset, start))
        starts, sizes = starts[first:], sizes[first:]
        if not len(starts):
            continue
        magic_at, crc_at = map(MESSAGE_PREFIX.position, ("magic_code", "body_crc"))
        scatter(raw, starts + magic_at, np.full(len(starts), MAGIC_V1, ">i4"))
        crcs = gather(raw, starts + crc_at, np.dtype(">i4")).astype(np.int64) & BODY_CRC_MASK
        scatter(raw, starts + crc_at, crcs.astype(">i4"))
        sound = _sound(data, starts, file.file_from_offset, crcs)
        state.left_out += int((~sound).sum())
        following = file.file_from_offset + int(starts[-1] + sizes[-1])
        yield data, starts[sound], sizes[sound], following


def _bolt_chain(data: bytearray, base: int) -> tuple[Int64s, Int64s]:
    """Follow the chain of a file of BoltMQ's."""
    starts, sizes, position = [], [], 0
    while position + MESSAGE_PREFIX.size <= len(data):
        prefix = MESSAGE_PREFIX.unpack_from(data, position)
        fits = MESSAGE_PREFIX.size < prefix.total_size <= len(data) - position
        if prefix.magic_code != BOLTMQ_MAGIC or not fits:
            break
        if prefix.physical_offset != base + position:
            break
        starts.append(position)
        sizes.append(prefix.total_size)
        position += prefix.total_size
    return np.array(starts, np.int64), np.array(sizes, np.int64)


def _sound(data: bytearray, starts: Int64s, base: int, crcs: Int64s) -> Any:
    """Return a mask of the records with bodies that match their own checksums."""
    records = RecordColumns(bytes(data), starts, base)
    bodies, lengths = records.body_places
    inside = (lengths >= 0) & (bodies + lengths <= len(data))
    ends = np.where(inside, bodies + lengths, bodies)
    return inside & (crc_each(data, bodies, ends, BODY_CRC_MASK) == crcs)


def build_structures(target: str, config: MessageStoreConfig, vfs: Vfs, clock: Clock) -> None:
    """Build queues and index of a new log."""
    options = {
        "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
        "maxHashSlotNum": config.max_hash_slot_num,
        "maxIndexNum": config.max_index_num,
        "batchTopics": config.batch_topics,
        "mapperFileSizeBatchConsumeQueue": config.mapper_file_size_batch_consume_queue,
        "enableConsumeQueueExt": config.enable_consume_queue_ext,
        "mappedFileSizeConsumeQueueExt": config.mapped_file_size_consume_queue_ext,
        "messageDelayLevel": config.message_delay_level,
    }
    directory = StoreDirectory(target, options, vfs)
    names = [CONSUME_QUEUE_DIRECTORY, *([INDEX_DIRECTORY] if config.message_index_enable else [])]
    if config.batch_topics:
        names.append(BATCH_CONSUME_QUEUE_DIRECTORY)
    built = build(directory, names, clock=clock, watch=_SILENT)
    for name in names:
        put_in_place(directory, built, name, Quarantine(vfs, target))
    built.remove(vfs)


def _message_of(topic: str, row: Mapping[str, Any]) -> Message:
    """Return a shard's message as one for the log."""
    record = from_tube(
        topic, row["partition"], row["received_time_ms"], row["msg_id"],
        _attribute_text(row["attributes"]), row["body"],
    ) if row.get("attributes") else None  # fmt: skip
    if record is not None:
        return Message(
            topic, record.body, properties=record.properties_text, queue_id=record.queue_id,
            flag=record.flag, sys_flag=record.sys_flag, born_timestamp=record.born_timestamp,
            born_host=record.born_host, store_host=record.store_host,
            reconsume_times=record.reconsume_times, delay_level=NOT_DELAYED,
            prepared_transaction_offset=record.prepared_transaction_offset,
        )  # fmt: skip
    attributes = dict(row.get("attributes") or {})
    tags = row.get("filter_item")
    properties = {k: v for k, v in attributes.items() if v and not k.startswith("$msg")}
    return Message(
        topic, row["body"] or b"", tags=tags, properties=properties or None,
        queue_id=row["partition"], born_timestamp=row["received_time_ms"],
        delay_level=NOT_DELAYED,
    )  # fmt: skip


def _attribute_text(attributes: Any) -> bytes:
    return ",".join(
        f"{k}={v}" if v is not None else k for k, v in dict(attributes).items()
    ).encode()
