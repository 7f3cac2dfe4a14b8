"""Batches: several messages as columns, and as the one body that a producer sends.

A store makes an ordinary record of each item; an *inner batch* stays one record with this body
(5.x). Inner batches are for topics of batches, which have the attribute `queue.type` = BatchCQ in
`config/topics.json`, are named in the option `batch_topics`, or have batch queues on the disk
already. Such a record has sysFlag 0x80; INNER_NUM is the number of its messages, INNER_BASE the
queue offset of the first, and the next record's offset is that much further on.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from rocketcompat.formats import (
    BATCH_ITEM,
    BODY_CRC_MASK,
    PROPERTIES_LENGTH_SIZE,
    PROPERTIES_SIZE_MAX,
    PROPERTY_SEPARATOR,
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_NEED_UNWRAP,
    SYS_FLAG_TRANSACTION_MASK,
    encode_properties,
    parse_properties,
)
from rocketcompat.messages import BatchItem, Message, MessageBatch, MessageRecord
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.prepare import (
    INNER_COUNT_MAX,
    body_bytes,
    checked_pairs,
    property_text,
)
from rocketcompat.record.properties import (
    PROPERTY_DELAY,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_COUNT,
)
from tubestore.core.kernels import Int64s, crc32
from tubestore.core.layout import Buffer
from tubestore.errors import CorruptRecord, InvalidMessage, MessageTooLarge

_PROPERTIES_LENGTH = struct.Struct(">h")
_WRAPPED = SYS_FLAG_INNER_BATCH | SYS_FLAG_NEED_UNWRAP


def encode_items(items: Sequence[BatchItem], config: MessageStoreConfig) -> bytes:
    """Return the body that a producer sends (`MessageDecoder.encodeMessages`)."""
    parts = []
    for item in items:
        text = property_text(item, trailing_separator=config.trailing_property_separator).encode()
        body = body_bytes(item.body)
        size = BATCH_ITEM.size + len(body) + _PROPERTIES_LENGTH.size + len(text)
        try:
            length = _PROPERTIES_LENGTH.pack(len(text))
        except struct.error:
            raise MessageTooLarge(len(text), PROPERTIES_SIZE_MAX, "property string") from None
        head = BATCH_ITEM.pack(total_size=size, magic_code=0, body_crc=0, flag=item.flag,
                               body_length=len(body))  # fmt: skip
        parts += [head, body, length, text]
    return b"".join(parts)


def decode_items(body: Buffer) -> list[BatchItem]:
    """Return the items of a body, properties as text; CorruptRecord with the position in it."""
    data, position, items = memoryview(body), 0, []
    while position < len(data):
        if position + BATCH_ITEM.size > len(data):
            raise CorruptRecord("", position, "no room for an item of a batch")
        head = BATCH_ITEM.unpack_from(data, position)
        body_at = position + BATCH_ITEM.size
        text_at = body_at + head.body_length + _PROPERTIES_LENGTH.size
        if head.body_length < 0 or text_at > len(data):
            raise CorruptRecord("", position, f"an item's body of {head.body_length} bytes")
        (size,) = _PROPERTIES_LENGTH.unpack_from(data, text_at - _PROPERTIES_LENGTH.size)
        end = text_at + max(size, 0)
        if end > len(data):
            raise CorruptRecord("", position, f"an item's properties of {size} bytes")
        text = str(data[text_at:end], "utf-8", "replace")
        items.append(BatchItem(bytes(data[body_at : body_at + head.body_length]),
                               properties=text, flag=head.flag))  # fmt: skip
        position = end
    return items


def is_wrapped(record: MessageRecord) -> bool:
    """Return True for an inner batch that clients unwrap."""
    return record.sys_flag & _WRAPPED == _WRAPPED


def unwrapped(record: MessageRecord) -> list[MessageRecord]:
    """Return the messages of an inner batch as a client gets them; of another record, itself.

    Each has its own queue offset; the place in the log is the record's. The body is unpacked
    before. CorruptRecord with the position in it.
    """
    if not is_wrapped(record):
        return [record]
    return [
        replace(
            record, queue_offset=record.queue_offset + number, flag=item.flag,
            sys_flag=record.sys_flag & ~_WRAPPED, properties_text=str(item.properties),
            body=item.body, body_crc=crc32(item.body) & BODY_CRC_MASK,
        )
        for number, item in enumerate(decode_items(record.body))
    ]  # fmt: skip


def columns_of_batch(batch: MessageBatch, config: MessageStoreConfig) -> dict[str, Any]:
    """Return a batch as columns for `encode_columns`.

    InvalidMessage for what RocketMQ refuses in one: a transaction, a delay.
    """
    if not batch.items:
        raise InvalidMessage("a batch without messages")
    if batch.sys_flag & SYS_FLAG_TRANSACTION_MASK:
        raise InvalidMessage("a batch cannot be part of a transaction")
    common = _common_text(batch.properties, config)
    if int(parse_properties(common).get(PROPERTY_DELAY, "0") or 0) > 0:
        raise InvalidMessage("a batch cannot be delayed")
    texts = [
        _joined(property_text(i, trailing_separator=config.trailing_property_separator), common)
        for i in batch.items
    ]
    count = len(texts)
    bodies = [body_bytes(item.body) for item in batch.items]
    size = sum(map(len, bodies)) + sum(len(t.encode()) for t in texts)
    size += count * (BATCH_ITEM.size + PROPERTIES_LENGTH_SIZE)
    if size > config.max_message_size:
        raise MessageTooLarge(size, config.max_message_size, "batch body", "max_message_size")
    columns: dict[str, Any] = {
        "topic": [batch.topic] * count,
        "body": pa.array(bodies, pa.large_binary()),
        "properties": pa.array(texts, pa.large_string()),
        "flag": [item.flag for item in batch.items],
    }
    host = config.store_host if batch.store_host is None else batch.store_host
    columns["store_host"] = [host] * count
    for name in ("queue_id", "sys_flag", "born_host", "reconsume_times"):
        columns[name] = [getattr(batch, name)] * count
    if batch.born_timestamp is not None:
        columns["born_timestamp"] = [batch.born_timestamp] * count
    return columns


def inner_batch(batch: MessageBatch, config: MessageStoreConfig) -> Message:
    """Return a batch as one message that holds all of its own, for a topic of batches (5.x).

    As 5.x's broker makes it: INNER_NUM is the number of messages, and clients unwrap it.
    """
    if not batch.items:
        raise InvalidMessage("a batch without messages")
    count = len(batch.items)
    pairs = parse_properties(_common_text(batch.properties, config))
    sys_flag = batch.sys_flag | SYS_FLAG_INNER_BATCH | SYS_FLAG_NEED_UNWRAP
    return Message(
        batch.topic, encode_items(batch.items, config),
        properties={**pairs, PROPERTY_INNER_COUNT: str(count)}, queue_id=batch.queue_id,
        sys_flag=sys_flag, born_timestamp=batch.born_timestamp, born_host=batch.born_host,
        store_host=batch.store_host, reconsume_times=batch.reconsume_times,
    )  # fmt: skip


def _common_text(given: Mapping[str, str] | str | None, config: MessageStoreConfig) -> str:
    """Return the batch's own properties as text."""
    if given is None or isinstance(given, str):
        return given or ""
    return encode_properties(
        checked_pairs(given), trailing_separator=config.trailing_property_separator
    )


def _joined(own: str, common: str) -> str:
    """Put the batch's properties behind an item's own (since 4.9.1 with a separator between)."""
    between = own and common and not own.endswith(PROPERTY_SEPARATOR)
    return own + (PROPERTY_SEPARATOR if between else "") + common


def message_counts(records: RecordColumns) -> Int64s | None:
    """Return how many messages each record holds; None if all are plain ones.

    Meant for topics of batches: elsewhere a record is one message, whatever its properties.
    """
    if not (records.column("sys_flag") & SYS_FLAG_INNER_BATCH).any():
        return None
    counts = np.ones(len(records), np.int64)
    # As RocketMQ's dispatcher: only where both properties are there.
    based = {row for row, _ in _numbers(records, PROPERTY_INNER_BASE)}
    for row, number in _numbers(records, PROPERTY_INNER_COUNT):
        if row in based and 0 < number <= INNER_COUNT_MAX:
            counts[row] = number
    return counts


def _numbers(records: RecordColumns, name: str) -> list[tuple[int, int]]:
    """Return row and value of a numeric property; rows with other values are left out."""
    rows, starts, ends = records.property_values(name)
    raw = records.property_bytes
    places = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
    texts = [(row, raw[start:end].tobytes()) for row, start, end in places]
    return [(row, int(text)) for row, text in texts if text.isdigit()]
