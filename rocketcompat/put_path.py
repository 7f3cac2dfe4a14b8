"""What happens to a message between a caller and the log; RocketMQ's `asyncPutMessage`.

A message is made ready outside of every lock, appended, handed on to the dispatcher, and waited
for if its level asks for that. A delayed message is put aside first (`schedule.py`).

Next to read: `commit_log.py`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from rocketcompat.batch_encoder import EncodedColumns, encode_columns
from rocketcompat.batches import columns_of_batch, inner_batch
from rocketcompat.commit_log import CommitLog
from rocketcompat.dispatch import ReputMessageService
from rocketcompat.formats import BLANK, INT32_MAX, encode_host
from rocketcompat.message_columns import (
    Given,
    given_in,
    inner_rows,
    may_be_delayed,
    message_of,
    numbers_of,
    property_texts,
    range_of,
)
from rocketcompat.messages import Message, MessageBatch, PutBatchResult, PutResult, PutStatus
from rocketcompat.options import MessageStoreConfig
from rocketcompat.prepare import Prepared, prepare
from rocketcompat.schedule import delayed
from rocketcompat.topics import PROPERTY_DELAY
from tubestore.errors import InvalidMessage, MessageTooLarge

Durability = Literal["page_cache", "fsync"]
#: "Do not wait for my sync", in a property string.
_NO_WAIT = b"WAIT\x01false"


class PutPath:
    """Puts into one log; thread-safe."""

    def __init__(self, log: CommitLog, dispatcher: ReputMessageService) -> None:
        self._log, self._dispatcher = log, dispatcher
        self._config = log.config
        self._sync_always = self._config.flush_disk_type == "SYNC_FLUSH"
        self._sync_timeout = self._config.sync_flush_timeout / 1000

    def put(self, message: Message, durability: Durability | None) -> PutResult:
        """Append a message, or put it aside until it is due."""
        if not isinstance(message, Message):
            raise InvalidMessage(f"a rocketcompat.Message is needed, not {type(message).__name__}")
        given = message.properties
        if message.delay_level or (given is not None and PROPERTY_DELAY in given):
            message = delayed(message, self._config)
        return self.append(message, durability)

    def append(self, message: Message, durability: Durability | None = None) -> PutResult:
        """Append a message as it is."""
        prepared = prepare(message, self._config)
        physical_offset, queue_offset, timestamp = self._log.put_one(prepared)
        end = physical_offset + prepared.size
        self._dispatcher.wake_or_help(end)
        status = PutStatus.PUT_OK
        if durability == "fsync" or (
            self._sync_always and durability is None and _NO_WAIT not in prepared.properties
        ):
            status = self._synced(end)
        elif durability == "page_cache" and self._log.commit():
            self._dispatcher.wake()
        return PutResult(
            status, physical_offset, queue_offset, prepared.size, timestamp, prepared.store_host
        )

    def put_columns(self, messages: Any, durability: Durability | None) -> pa.Table:
        """Append many messages given as columns."""
        table = put_aside(messages, self._config)
        inner = inner_rows(table, self._config)
        if inner:
            return self._put_with_inner(table, inner, durability)
        encoded = encode_columns(table, self._config)
        physical_offsets, queue_offsets, timestamp = self._log.put_columns(encoded)
        self._dispatcher.help_with_columns()
        if len(encoded) and self._waits(durability):
            self._log.sync_to(int(physical_offsets[-1] + encoded.sizes[-1]))
        elif durability == "page_cache" and self._log.commit():
            self._dispatcher.wake()
        columns = {
            "physical_offset": physical_offsets,
            "queue_offset": queue_offsets,
            "size": encoded.sizes,
            "store_timestamp": pa.repeat(pa.scalar(timestamp, pa.int64()), len(encoded)),
        }
        return pa.table(columns)

    def _put_with_inner(
        self, table: Given, inner: list[int], durability: Durability | None
    ) -> pa.Table:
        """Append rows some of which are inner batches: those one by one, all checked before."""
        parts: list[Prepared | EncodedColumns] = []
        for before, row in pairwise((-1, *inner, table.rows)):
            if row > before + 1:
                parts.append(encode_columns(table.part(before + 1, row), self._config))
            if row < table.rows:
                message = message_of(table.part(row, row + 1), self._config)
                parts.append(prepare(message, self._config))
        placed, sizes = [], []
        for part in parts:
            if isinstance(part, Prepared):
                at, offset, timestamp = self._log.put_one(part)
                placed.append((np.array([at]), np.array([offset]), np.array([timestamp])))
                sizes.append(np.array([part.size]))
            else:
                physical, offsets, timestamp = self._log.put_columns(part)
                placed.append((physical, offsets, np.full(len(part), timestamp)))
                sizes.append(part.sizes)
        columns = [np.concatenate(arrays) for arrays in zip(*placed, strict=True)]
        size = np.concatenate(sizes)
        self._dispatcher.wake_or_help(int(columns[0][-1] + size[-1]))
        if self._waits(durability):
            self._log.sync_to(int(columns[0][-1] + size[-1]))
        elif durability == "page_cache" and self._log.commit():
            self._dispatcher.wake()
        physical, offsets, timestamps = columns
        return pa.table(
            {"physical_offset": physical, "queue_offset": offsets, "size": size,
             "store_timestamp": timestamps}
        )  # fmt: skip

    def put_batch(self, batch: MessageBatch, durability: Durability | None) -> PutBatchResult:
        """Append a batch: all of it in one file, or nothing."""
        encoded = encode_columns(columns_of_batch(batch, self._config), self._config)
        size, room = int(encoded.bounds[-1]), self._config.mapped_file_size_commit_log - BLANK.size
        if size > room:
            raise MessageTooLarge(size, room, "batch")
        physical, queue_offsets, timestamp = self._log.put_columns(encoded, together=True)
        self._dispatcher.help_with_columns()
        status = PutStatus.PUT_OK
        if self._waits(durability):
            status = self._synced(int(physical[-1] + encoded.sizes[-1]))
        return PutBatchResult(
            status, physical.tolist(), encoded.sizes.tolist(), int(queue_offsets[0]), timestamp,
            encode_host(batch.store_host),
        )  # fmt: skip

    def put_inner_batch(self, batch: MessageBatch, durability: Durability | None) -> PutResult:
        """Append a batch as one record of a topic of batches."""
        return self.append(inner_batch(batch, self._config), durability)

    def _waits(self, durability: Durability | None) -> bool:
        return durability == "fsync" or (self._sync_always and durability is None)

    def _synced(self, end: int) -> PutStatus:
        done = self._log.sync_to(end, self._sync_timeout)
        return PutStatus.PUT_OK if done else PutStatus.FLUSH_DISK_TIMEOUT


def put_aside(messages: Any, config: MessageStoreConfig) -> Given:
    """Return messages given as columns with those that are delayed as they are put aside."""
    table = given_in(messages)
    rows = may_be_delayed(table)
    if not len(rows):
        return table
    texts = property_texts(table, config).to_pylist()
    topics = table.columns["topic"].to_pylist() if "topic" in table.columns else [None] * table.rows
    queue_ids = numbers_of(table, "queue_id", 0, INT32_MAX).tolist()
    sys_flags = numbers_of(table, "sys_flag", *range_of("sys_flag")).tolist()
    levels = numbers_of(table, "delay_level", 0, INT32_MAX).tolist()
    for row in rows.tolist():
        message = delayed(
            Message(topics[row], properties=texts[row], queue_id=queue_ids[row],
                    sys_flag=sys_flags[row], delay_level=levels[row]),
            config,
        )  # fmt: skip
        topics[row], texts[row], queue_ids[row] = (
            message.topic, message.properties, message.queue_id,
        )  # fmt: skip
    changed = {
        "topic": pa.array(topics, pa.large_string()),
        "properties": pa.array(texts, pa.large_string()),
        "queue_id": pa.array(queue_ids, pa.int64()),
    }
    replaced = {*changed, "tags", "keys", "delay_level"}
    kept = {name: column for name, column in table.columns.items() if name not in replaced}
    return Given(table.rows, {**kept, **changed})
