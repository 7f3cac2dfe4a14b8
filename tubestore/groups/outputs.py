"""Output that a group commits together with its positions: exactly once from topic to topic.

A frame of the positions' log (`positions.py`, kind OUTPUT) has both, so one write decides. The
output is then appended to its topics, and a frame COMPLETE follows. All of it happens under the
group's lock, in the process that writes the store.

| killed, or a power cut at `fsync` | positions | output |
| --- | --- | --- |
| before the frame is whole | as before | none: the messages are read again |
| after it, before the output is appended, or in between | new | the next opening appends the rest |
| after it, before COMPLETE | new | the next opening finds all of it |

What of the output is in its topics is found by the message ids in each shard, from the end that
the shard had before. After a power cut shards may have lost messages, and all of a shard is
searched. A topic that was deleted since gets nothing. Messages that retention has passed were
appended.

The output is an Arrow stream: the rows as they were given, with partition, message id and time;
its metadata has the topics' ids, the shards' ends and the boot of the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tubestore.core.kernels import rows_at
from tubestore.core.layout import Buffer
from tubestore.errors import InvalidMessage
from tubestore.messages import BatchAck, Message
from tubestore.options import PARTITIONS_PER_STORE, Durability
from tubestore.reading.sources import Rows
from tubestore.reading.view import ShardView
from tubestore.record.columns import columns_for
from tubestore.record.ingest import own_attributes
from tubestore.record.layouts import ATTRIBUTE_TIME, ATTRIBUTE_TYPE
from tubestore.record.names import store_key

Array = np.ndarray[Any, Any]
_FACTS = b"tubestore"
#: What the text of attributes cannot hold, and what takes its place.
_FIT = {",": ";", "=": ":", ATTRIBUTE_TYPE: "msgType", ATTRIBUTE_TIME: "msgTime"}
_UNFIT = re.compile("|".join(map(re.escape, _FIT)))
_IDS = columns_for(("partition", "msg_id"))


class Prepared(Protocol):
    """Messages that were checked and have their partitions and ids."""

    def encoded(self) -> Buffer:
        """Return them as `encode_output` does."""

    def append(self, level: Durability) -> BatchAck:
        """Append them."""


class RecordedOutput(NamedTuple):
    """Output as it was recorded: topics' ids, ends of the shards (by key) before it."""

    table: pa.Table
    topics: Mapping[str, int]
    ends: Mapping[str, int]
    boot_id: str


def in_files(level: Durability) -> Durability:
    """Return a level that survives a kill, as positions do."""
    return "page_cache" if level == "memory" else level


def put_aside_row(message: Message, topic: str, reason: str, group: str | None) -> dict[str, Any]:
    """Return a row for another topic: a message, where it comes from, and why it is there."""
    if not isinstance(message, Message):
        raise InvalidMessage(f"message: {message!r:.60} is not a Message, as a poll returns it")
    if message.body is None:
        raise InvalidMessage(f"{message.topic}@{message.offset}: no body, it is {message.state}")
    if not isinstance(reason, str) or not reason.strip():
        raise InvalidMessage("reason: a text is needed")
    origin = {
        "origin-topic": message.topic,
        "origin-partition": str(message.partition),
        "origin-offset": str(message.offset),
        "origin-time": str(message.received_time_ms),
    }
    if group is not None:
        origin["origin-group"] = group
    attributes = {
        _fitting(name): _fitting(value)
        for name, value in own_attributes(message.attributes).items()
        if name.strip() and value.strip()
    }
    if "origin-topic" not in attributes:
        attributes |= origin
    attributes["reason"] = _fitting(reason)
    return {
        "topic": topic,
        "body": message.body,
        "filter_item": message.filter_item and _fitting(message.filter_item),
        "attributes": attributes,
    }


def _fitting(text: str) -> str:
    """Return a text without what attributes cannot hold."""
    return _UNFIT.sub(lambda match: _FIT[match[0]], text)


def encode_output(output: RecordedOutput) -> Buffer:
    """Return the bytes of some output."""
    facts = {"topics": output.topics, "ends": output.ends, "boot_id": output.boot_id}
    table = output.table.replace_schema_metadata({_FACTS: json.dumps(facts)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def decode_output(data: Buffer) -> RecordedOutput:
    """Return what `encode_output` was given."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        table = reader.read_all()
    facts = json.loads(table.schema.metadata[_FACTS])
    return RecordedOutput(table, facts["topics"], facts["ends"], facts["boot_id"])


def rows_to_append(
    output: RecordedOutput,
    topic_id: Callable[[str], int | None],
    view: Callable[[str, int], ShardView | None],
    boot_id: str,
) -> Array:
    """Return which rows are not in their topics; `topic_id` returns None for a deleted topic."""
    names = output.table.column("topic").to_pylist()
    partitions = output.table.column("partition").to_numpy()
    lacking = np.zeros(len(names), bool)
    shards: dict[tuple[str, int], list[int]] = {}
    for row, (name, store_id) in enumerate(
        zip(names, (partitions // PARTITIONS_PER_STORE).tolist(), strict=True)
    ):
        shards.setdefault((name, store_id), []).append(row)
    for (name, store_id), places in shards.items():
        if topic_id(name) != output.topics[name]:
            continue
        end = output.ends[store_key(name, store_id)]
        rows, found = np.array(places), view(name, store_id)
        if found is None:
            lacking[rows] = True
        elif found.index_start <= end:
            start = end if boot_id == output.boot_id else found.index_start
            lacking[rows] = ~_has(found, start, output.table.take(pa.array(rows)))
    return lacking


def _has(view: ShardView, start: int, table: pa.Table) -> Array:
    """Return which rows a shard has from an offset on."""
    partitions = table.column("partition").to_numpy()
    ids, times = table.column("msg_id").to_numpy(), table.column("received_time_ms").to_numpy()
    found: set[tuple[int, int]] = set()
    for rows in view.portions(start=start):
        entries = rows.entries
        fitting = np.isin(entries["received_time"].astype(np.int64), times)
        some = np.flatnonzero(fitting & np.isin(entries["partition_id"], partitions))
        if len(some):
            part = Rows(rows.offsets[some], rows_at(entries, some), rows.placed)
            for batch in view.columns_of(part, _IDS):
                columns = (batch.column(name).to_pylist() for name in ("partition", "msg_id"))
                found.update(zip(*columns, strict=True))
    pairs = zip(partitions.tolist(), ids.tolist(), strict=True)
    return np.array([pair in found for pair in pairs], bool)
