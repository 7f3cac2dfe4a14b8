"""Entries and bytes as rows, validated as an Arrow batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.tube import encode_rows
from tubestore.messages import MESSAGE_SCHEMA
from tubestore.record.columns import columns_for
from tubestore.record.decode import decode
from tubestore.record.locate import Data
from tubestore.record.records import ENTRY_SIZE, Row

ALL = list(MESSAGE_SCHEMA.names)


def decoded(
    entries: Any, data: bytes | None, columns: list[str] = ALL, **options: Any
) -> list[dict[str, Any]]:
    offsets = np.arange(len(entries), dtype=np.int64) * ENTRY_SIZE
    given = None if data is None else Data(memoryview(data), 0)
    batch, bad = decode("t", 3, offsets, entries, given, columns_for(tuple(columns), **options))
    assert batch.schema.names == columns
    batch.validate(full=True)
    rows: list[dict[str, Any]] = batch.to_pylist()
    if "state" in columns:
        states = [row["state"] for row in rows]
        first = next(((n, state) for n, state in enumerate(states) if state != "ok"), None)
        assert bad == first
    return rows


def decode_rows(rows: list[Row], **options: Any) -> list[dict[str, Any]]:
    batch = encode_rows(rows, 0, 0)
    return decoded(batch.entries, batch.data.tobytes(), **options)
