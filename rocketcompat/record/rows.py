"""A record as a row: the names that the command line, Arrow and Spark share (decisions.md D16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rocketcompat.formats import LOST_MARK, MESSAGE_COLUMNS, STATE_OK
from rocketcompat.messages import MessageRecord

_TYPES = {
    "text": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "ms": pa.int64(),
    "map": pa.map_(pa.string(), pa.string()), "bytes": pa.large_binary(),
}  # fmt: skip
MESSAGE_SCHEMA = pa.schema([(column.name, _TYPES[column.kind]) for column in MESSAGE_COLUMNS])
#: Where a `MessageRecord` has another name for a column.
_ATTRIBUTES = {"store_size": "size"}
_NAMES = [(name, _ATTRIBUTES.get(name, name)) for name in MESSAGE_SCHEMA.names]


def row_of(record: MessageRecord) -> dict[str, Any]:
    """Return a record as a row; a stand-in of a lost message has no body."""
    row = {name: getattr(record, attribute) for name, attribute in _NAMES}
    return row if record.state == STATE_OK else row | {"body": None}


def lost_rows(marks: Any) -> pa.BooleanArray | None:
    """Return which records are stand-ins of lost messages, None if none is; by a field's column."""
    lost = marks == LOST_MARK
    return pa.array(lost) if np.count_nonzero(lost) else None


def unreadable_row(physical_offset: int, size: int | None, state: str) -> dict[str, Any]:
    """Return the row of bytes that are not a record: null where nothing is known."""
    row: dict[str, Any] = dict.fromkeys(MESSAGE_SCHEMA.names)
    return row | {"physical_offset": physical_offset, "store_size": size, "state": state}


def table_of_rows(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table of `MESSAGE_SCHEMA`."""
    return pa.Table.from_pylist(list(rows), MESSAGE_SCHEMA)
