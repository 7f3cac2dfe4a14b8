"""TubeMQ's own read call: its return codes, texts and deltas.

Source: TubeMQ `MessageStore.getMessages`, `MsgFileStore.getMessages`. A consumer's position goes on
by `delta`, the index bytes that were examined, whatever partition their entries belong to; a
failure can have one too. Our readers and TubeMQ's may take turns on a position.

Different from TubeMQ, on purpose: all entries are examined and not every second call's half; a
read crosses files; nothing is hidden for its size or passed over twice for its time; files need not
be synced to be read at level 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore.core.kernels import texts
from tubestore.messages import ALL_COLUMNS, STATE_BAD_CHECKSUM, STATE_ENTRY_DIFFERS, STATE_OK
from tubestore.reading.sources import Filter, Rows
from tubestore.reading.view import ShardView
from tubestore.record.columns import columns_for
from tubestore.record.records import ENTRY_SIZE

SUCCESS, NOT_FOUND = 0, 404
DEFAULT_SWITCH = 301
DEFAULT_MAX_BYTES = 524_288
#: What TubeMQ examines at most, of a filtered topic with many partitions.
ENTRIES_MAX = 40_500
_COLUMNS = columns_for(ALL_COLUMNS)
_READABLE = texts([STATE_OK, STATE_BAD_CHECKSUM, STATE_ENTRY_DIFFERS])


@dataclass(frozen=True, slots=True)
class GetMessageResult:
    """The answer to one call of `get_messages`, with TubeMQ's meanings.

    `request_offset`: the offset that was asked for, moved to the first one that is kept; `delta`:
    add it to that to go on; `last_data_offset`: where the record of the last examined entry ends,
    -2 if none was; `size`: bytes of the records; `max_offset`: where the shard ends, -2 after a
    failure; `table`: the messages, with all columns.
    """

    success: bool
    code: int
    text: str
    request_offset: int
    delta: int
    last_data_offset: int
    size: int
    max_offset: int
    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)


def get_messages(
    view: ShardView,
    partition_id: int,
    offset: int,
    wanted: Filter,
    *,
    switch: int,
    max_bytes: int,
    max_entries: int,
) -> GetMessageResult:
    """Answer as TubeMQ does; `switch` is its A0B: A without a filter, B with one, 1 files only."""
    level = 0 if switch <= 0 else switch % 100 if wanted.key_codes is not None else switch // 100
    in_files = view.ends.index_end
    start = max(offset, view.index_start)
    end = view.index_end if level > 1 else in_files
    if start >= end:
        return _not_found(start, 0, _beyond(level))
    end = min(end, start + ENTRY_SIZE * max_entries)
    tables, size, position = [], 0, start
    while position < end and size < max_bytes:
        found = view.find(partition_id, position, limit=ENTRIES_MAX, max_bytes=None, wanted=wanted)
        parts, full = _until(found.rows, end, max_bytes - size)
        table, counted = _readable(view, parts)
        tables.append(table)
        size += counted
        position = _end_of(parts, end) if full or found.truncated else end
    delta = position - start
    last = _last_data_offset(view, position)
    messages = pa.concat_tables(tables)
    if not messages.num_rows and start >= in_files:
        return _not_found(start, delta, "Can't found Message by index!", last)
    max_offset = view.index_end if level > 1 else in_files
    return GetMessageResult(True, SUCCESS, "Ok", start, delta, last, size, max_offset, messages)


def _readable(view: ShardView, parts: list[Rows]) -> tuple[pa.Table, int]:
    """Fetch messages: (those that can be read, the bytes of their records), as the broker does."""
    batches = [batch for rows in parts for batch in view.columns_of(rows, _COLUMNS)]
    table = pa.Table.from_batches(batches, _COLUMNS.schema)
    if not parts:
        return table, 0
    sizes = np.concatenate([rows.entries["data_size"] for rows in parts]).astype(np.int64)
    known = pc.is_in(table.column("state"), value_set=_READABLE)
    if pc.all(known).as_py():
        return table, int(sizes.sum())
    return table.filter(known), int(sizes[known.to_numpy()].sum())


def _beyond(level: int) -> str:
    if level > 2:
        return "Request offset reached cache maxOffset"
    if level == 2:
        return "Can't found Message by index in cache"
    return "current offset is exceed max file offset"


def _not_found(start: int, delta: int, text: str, last: int = 0) -> GetMessageResult:
    empty = _COLUMNS.schema.empty_table()
    return GetMessageResult(False, NOT_FOUND, text, start, delta, last, 0, -2, empty)


def _until(rows: list[Rows], end: int, max_bytes: int) -> tuple[list[Rows], bool]:
    """Cut rows at an offset, and behind the one that reaches `max_bytes`: (rows, it is reached)."""
    parts, size = [], 0
    for part in rows:
        part = part.part(0, int(part.offsets.searchsorted(end)))
        totals = size + np.cumsum(part.entries["data_size"], dtype=np.int64)
        part = part.part(0, int(totals.searchsorted(max_bytes)) + 1)
        if len(part.offsets):
            parts.append(part)
            size = int(totals[len(part.offsets) - 1])
        if size >= max_bytes:
            return parts, True
    return parts, False


def _end_of(parts: list[Rows], end: int) -> int:
    return int(parts[-1].offsets[-1]) + ENTRY_SIZE if parts else end


def _last_data_offset(view: ShardView, end: int) -> int:
    """Return where the record of the entry before an offset ends."""
    for source in view.sources(end - ENTRY_SIZE):
        entry = source.entries[source.ordinal(end - ENTRY_SIZE)]
        return int(entry["data_offset"]) + int(entry["data_size"])
    return -2
