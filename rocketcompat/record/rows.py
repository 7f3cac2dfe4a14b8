"""A record as a row: the names that the command line, Arrow and Spark share (decisions.md D16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from rocketcompat.messages import MessageRecord

#: A record that is whole and sound; the other states are in `dump.py`.
STATE_OK = "ok"

#: Name, Arrow type and meaning of each column.
MESSAGE_COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("topic", pa.string(), "Its topic."),
    ("queue_id", pa.int32(), "Its queue in the topic."),
    ("queue_offset", pa.int64(), "Its number in the queue."),
    ("physical_offset", pa.int64(), "Position of its first byte in the CommitLog."),
    ("store_size", pa.int32(), "Bytes of the record."),
    ("version", pa.int32(), "1, or 2 for topics of more than 127 bytes."),
    ("flag", pa.int32(), "The application's."),
    ("sys_flag", pa.int32(), "RocketMQ's: compression, transaction, hosts."),
    ("born_timestamp", pa.int64(), "ms since the epoch."),
    ("store_timestamp", pa.int64(), "ms since the epoch."),
    ("born_host", pa.string(), "address:port."),
    ("store_host", pa.string(), "address:port."),
    ("reconsume_times", pa.int32(), "How often it was consumed again."),
    ("prepared_transaction_offset", pa.int64(), "Of the half message, or 0."),
    ("body_crc", pa.int32(), "CRC-32 of the body AND 0x7FFFFFFF."),
    ("properties", pa.map_(pa.string(), pa.string()), "Tags, keys and the rest."),
    ("body", pa.large_binary(), "As stored: compressed if the producer did."),
    ("msg_id", pa.string(), "RocketMQ's offset message id, hex."),
    ("state", pa.string(), '"ok", or why it cannot be read.'),
)
MESSAGE_SCHEMA = pa.schema([(name, kind) for name, kind, _ in MESSAGE_COLUMNS])


def row_of(record: MessageRecord, state: str = STATE_OK) -> dict[str, Any]:
    """Return a record as a row."""
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "store_size": record.size,
        "version": record.version,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_timestamp": record.born_timestamp,
        "store_timestamp": record.store_timestamp,
        "born_host": record.born_host,
        "store_host": record.store_host,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_crc": record.body_crc,
        "properties": record.properties,
        "body": record.body,
        "msg_id": record.msg_id,
        "state": state,
    }


def unreadable_row(physical_offset: int, size: int | None, state: str) -> dict[str, Any]:
    """Return the row of bytes that are no record: null where nothing is known."""
    row: dict[str, Any] = dict.fromkeys(name for name, _, _ in MESSAGE_COLUMNS)
    return row | {"physical_offset": physical_offset, "store_size": size, "state": state}


def table_of_rows(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table of `MESSAGE_SCHEMA`."""
    return pa.Table.from_pylist(list(rows), MESSAGE_SCHEMA)
