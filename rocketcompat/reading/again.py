"""What was read as Arrow, as messages to put again.

Reads have two forms of columns (`record.arrow.RECORD_SCHEMA`, `record.rows.MESSAGE_SCHEMA`). Both
have columns of a record's place in its log, which no put takes. Pure; thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketcompat.formats import (
    GIVEN_COLUMNS,
    MESSAGE_COLUMNS,
    PROPERTY_CRC,
    STATE_OK,
    SYS_FLAG_TRANSACTION_MASK,
    decode_host,
)
from rocketcompat.messages import NOT_DELAYED
from rocketcompat.record.arrow import RECORD_SCHEMA
from rocketcompat.record.message_table import utf8_texts
from rocketcompat.record.properties import (
    PROPERTY_MULTI_OFFSET,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
)
from rocketcompat.record.rows import lost_rows
from tubestore.errors import InvalidMessage

#: The columns of a record's place; `query_messages` adds the key that it was found by.
_OF_PLACE = {"key", *RECORD_SCHEMA.names, *(column.name for column in MESSAGE_COLUMNS)}.difference(
    GIVEN_COLUMNS
)
#: Properties of a record's place, and of its bytes.
_PLACE_PROPERTIES = (PROPERTY_MULTI_OFFSET, PROPERTY_CRC)
#: Properties of its way to its topic, which another topic does not have.
_TOPIC_PROPERTIES = (PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE_ID)


def _table_of(batches: Iterator[Any]) -> pa.Table:
    found = list(batches)
    for batch in found:
        if not isinstance(batch, pa.RecordBatch):
            text = f"batches are needed, not {type(batch).__name__}"
            raise InvalidMessage(f"not a table of messages: {text}")
    try:
        return pa.Table.from_batches(found, None if found else RECORD_SCHEMA)
    except pa.ArrowException as error:
        raise InvalidMessage(f"not a table of messages: {error}") from None


def put_again(messages: Any, topic: str | None = None) -> Any:
    """Return rows that a read gave as columns for a put; other messages as they are.

    Topic (or another one), queue, properties, flags, the time and host of the producer stay, and a
    delayed message is not delayed again. Batches that are gone through once, such as a scan's, are
    all read first. InvalidMessage names the first row that is damaged, or the
    stand-in of a lost message.
    """
    if isinstance(messages, dict) and _OF_PLACE.isdisjoint(messages):
        return messages
    if isinstance(messages, Iterator) and not hasattr(messages, "__arrow_c_stream__"):
        messages = _table_of(messages)
    try:
        table = pa.table(messages)
    except (TypeError, ValueError, OverflowError, pa.ArrowException):
        return messages  # what is wrong with them is found where columns are taken in
    if _OF_PLACE.isdisjoint(table.column_names):
        return table
    columns = {
        name: table[name].combine_chunks() for name in table.column_names if name not in _OF_PLACE
    }
    _check_states(table)
    if "properties" in columns:
        left_out = _PLACE_PROPERTIES if topic is None else _PLACE_PROPERTIES + _TOPIC_PROPERTIES
        columns["properties"] = _without(columns["properties"], left_out)
    if "sys_flag" in columns:
        flags = columns["sys_flag"].to_numpy(zero_copy_only=False)
        columns["sys_flag"] = pa.array(flags & ~SYS_FLAG_TRANSACTION_MASK)
    # The store gives its own host, and no transaction waits for the new record.
    for name in ("store_host", "prepared_transaction_offset"):
        columns.pop(name, None)
    host = columns.get("born_host")
    if host is not None and host.type in (pa.binary(), pa.large_binary()):
        encoded = host.dictionary_encode()
        texts = [decode_host(raw) for raw in encoded.dictionary.to_pylist()]
        columns["born_host"] = pa.array(texts, pa.string()).take(encoded.indices)
    if topic is not None:
        columns["topic"] = pa.array([topic] * table.num_rows, pa.string())
    levels = pa.array(np.full(table.num_rows, NOT_DELAYED))
    return pa.table({**columns, "delay_level": levels})


def _check_states(table: pa.Table) -> None:
    """Refuse rows that are no message."""
    wrong = np.zeros(table.num_rows, bool)
    if "state" in table.column_names:
        states = pc.fill_null(pc.not_equal(table["state"], STATE_OK), True)
        wrong |= states.to_numpy()
    if "prepared_transaction_offset" in table.column_names:
        lost = lost_rows(table["prepared_transaction_offset"].to_numpy())
        if lost is not None:
            wrong |= np.asarray(lost)
    if wrong.any():
        row = int(wrong.argmax())
        text = f"row {row} is a damaged or lost message, and is not put again"
        raise InvalidMessage(f"{text}: keep the rows with the state {STATE_OK!r}")


def _without(column: pa.Array, names: tuple[str, ...]) -> pa.Array:
    """Return property strings, or maps, without some properties."""
    if pa.types.is_map(column.type):
        rows = [[pair for pair in pairs or () if pair[0] not in names]
                for pairs in column.to_pylist()]  # fmt: skip
        return pa.array(rows, column.type)
    texts = utf8_texts(column)
    pattern = rf"(^|\x02)(?:{'|'.join(names)})\x01[^\x02]*"
    if not pc.any(pc.match_substring_regex(texts, pattern)).as_py():
        return texts
    return pc.utf8_ltrim(pc.replace_substring_regex(texts, pattern, ""), "\x02")
