"""`tubestore append` and `tubestore copy`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tubestore
from tubestore.cli.intake import (
    Block,
    blocks_of,
    check_readable,
    lines_of,
    rows_of,
    table_of,
    total_bytes,
)
from tubestore.cli.kit.arguments import InputFormat, note, parse_bound
from tubestore.cli.kit.errors import UsageMistake
from tubestore.cli.kit.output import Format, Output, emit_object
from tubestore.cli.kit.progress import watched, watching
from tubestore.cli.kit.text import Column
from tubestore.cli.opening import open_existing, open_or_make
from tubestore.disks.roots import disk_of
from tubestore.errors import NotAStore, TopicExists, TubeStoreError, UnknownTopic
from tubestore.options import Durability
from tubestore.record.names import check_topic_name
from tubestore.store.topic import Topic, copies

_DONE = (
    Column("topic"),
    Column("messages", "int64"),
    Column("bytes", "int64"),
    Column("empty_lines", "int64"),
    Column("durability"),
)
_COPIED = (Column("topic"), Column("messages", "int64"), Column("left_out", "int64"))


def append(
    root: str,
    topic: str,
    files: Sequence[str],
    *,
    input: InputFormat | None,
    partitions: int | None,
    defaults: Mapping[str, Any],
    durability: Durability,
    format: Format,
) -> None:
    """Append files one after the other and print how much that was."""
    if format not in (Format.TEXT, Format.JSONL):
        raise UsageMistake("append reports as text or jsonl")
    if partitions is None and not disk_of(root).exists(root):
        raise NotAStore(root, "no such directory; --partitions N makes a store and the topic")
    check_readable(files)
    objects = [name for name in files if name.endswith(".jsonl")]
    if input is None and objects:
        note(f"tubestore: {objects[0]}: each line is a body; --input jsonl appends its fields")
    done: dict[str, Any] = {"topic": topic, "messages": 0, "bytes": 0, "empty_lines": 0}
    total, taken = total_bytes(files), 0
    with (
        _open(root, topic, partitions) as store,
        watching("append", in_bytes=True) as watch,
    ):
        found = _topic(store, topic, partitions)
        for block in blocks_of(files):
            try:
                _append_block(found, block, input or InputFormat.LINES, defaults, durability, done)
            except (TubeStoreError, UsageMistake) as error:
                _explain(error, block, done["messages"])
            taken += len(block.data)
            watch(taken, total)
    emit_object({**done, "durability": durability}, _DONE, Output(format))


def copy(
    root: str,
    source: str,
    target: str,
    to: str | None,
    chosen: Mapping[str, Any],
    *,
    keep_times: bool,
    partitions: int | None,
    format: Format,
) -> bool:
    """Append a topic's messages to another one; returns whether none was left out.

    A missing target is made with `partitions`, or with the source's partitions and stores; so is a
    missing store for it. A source that is not there is refused before anything is made.
    """
    if format not in (Format.TEXT, Format.JSONL):
        raise UsageMistake("copy reports as text or jsonl")
    check_topic_name(target)
    chosen = {**chosen, **{name: parse_bound(chosen[name]) for name in ("start", "end")}}
    with contextlib.ExitStack() as opened:
        if to is None or os.path.realpath(to) == os.path.realpath(root):
            store = opened.enter_context(open_existing(root, source))
            seen = store.topic(source)
        else:
            seen = opened.enter_context(tubestore.open(root, mode="r")).topic(source)
            store = opened.enter_context(open_or_make(to, target))
        if target in store or partitions is not None:
            made = _topic(store, target, partitions)
        else:
            like = seen.options
            made = store.create_topic(target, partitions=like.partitions, stores=like.stores)
        parts = copies(made, seen, keep_times=keep_times, durability=None, **chosen)
        done = list(watched(parts, "messages", lambda part: part.messages + part.left_out))
    left_out = sum(part.left_out for part in done)
    row = {"topic": target, "messages": sum(part.messages for part in done), "left_out": left_out}
    emit_object(row, _COPIED, Output(format))
    return not left_out


def _open(root: str, topic: str, partitions: int | None) -> tubestore.MessageStoreManager:
    if partitions is not None:
        return open_or_make(root, topic)
    try:
        return open_existing(root, topic)
    except UnknownTopic as error:
        raise _no_topic(error) from error


def _topic(store: tubestore.MessageStoreManager, name: str, partitions: int | None) -> Topic:
    if name not in store and partitions is not None:
        return store.create_topic(name, partitions=partitions)
    try:
        found = store.topic(name)
    except UnknownTopic as error:
        raise _no_topic(error) from error
    if partitions not in (None, found.options.partitions):
        raise TopicExists(name, f"it has {found.options.partitions} partitions")
    return found


def _no_topic(error: UnknownTopic) -> UsageMistake:
    return UsageMistake(f"{error}; --partitions N creates it")


def _append_block(
    topic: Topic,
    block: Block,
    input: InputFormat,
    defaults: Mapping[str, Any],
    durability: Durability,
    done: dict[str, Any],
) -> None:
    read = lines_of if input is InputFormat.LINES else rows_of
    rows = read(block, defaults)
    done["empty_lines"] += block.lines - len(rows)
    if not rows:
        return
    topic.append_batch(table_of(rows), durability=durability)
    done["messages"] += len(rows)
    done["bytes"] += sum(len(row["body"]) for row in rows)


def _explain(error: Exception, block: Block, taken: int) -> None:
    """Name the place in the input, and that what came before is in the store."""
    where = f"{block.name}, lines {block.first_line} to {block.first_line + block.lines - 1}"
    text = f"{error} ({where}; {taken} messages before these were appended)"
    if isinstance(error, UsageMistake | ValueError):
        raise UsageMistake(text) from error
    raise TubeStoreError(text) from error
