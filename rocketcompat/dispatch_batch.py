"""A piece of the log as the columns that followers take.

Next to read: `dispatch.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketcompat.columns import RecordColumns, decode_columns, queue_columns
from rocketcompat.log_scan import Piece
from rocketcompat.messages import DispatchBatch, has_index_items
from rocketcompat.topics import PROPERTY_DELAY, SCHEDULE_TOPIC
from tubestore.kernels import Int64s


def batch_of(
    piece: Piece, delays: Sequence[int], damaged: tuple[int, int] | None = None
) -> DispatchBatch:
    """Decode a piece into the columns that the followers need.

    `delays` are the delays of the levels in ms, `damaged` as in `DispatchBatch`.
    """
    records = decode_columns(piece.data, piece.starts, piece.base)
    return batch_of_records(records, piece.base, piece.end, delays, damaged)


def batch_of_records(
    records: RecordColumns,
    start: int,
    end: int,
    delays: Sequence[int],
    damaged: tuple[int, int] | None = None,
) -> DispatchBatch:
    """As `batch_of`, of the decoded records of the log's part [start, end)."""
    keys, codes = queue_columns(records)
    sys_flags = records.column("sys_flag")
    key_rows, key_hashes = records.index_keys()
    wanted = has_index_items(sys_flags)[key_rows]
    return DispatchBatch(
        start=start,
        end=end,
        physical_offsets=records.starts + records.base,
        sizes=records.column("total_size"),
        queue_keys=keys,
        queue_codes=codes,
        queue_offsets=records.column("queue_offset"),
        tags_codes=_tags_codes(records, delays),
        store_timestamps=records.column("store_timestamp"),
        sys_flags=sys_flags,
        key_rows=key_rows[wanted],
        key_hashes=key_hashes[wanted],
        records=records,
        damaged=damaged,
    )


def _tags_codes(records: RecordColumns, delays: Sequence[int]) -> Int64s:
    """Hashes of the tags; of a scheduled message the time of its delivery (spec §1.9)."""
    codes = records.tags_codes()
    if SCHEDULE_TOPIC not in records.topic_names:
        return codes
    topic = records.topic_names.index(SCHEDULE_TOPIC)
    rows, starts, ends = records.property_values(PROPERTY_DELAY)
    raw, times = records.property_bytes, records.column("store_timestamp")
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        text = raw[start:end].tobytes()
        if records.topic_codes[row] == topic and text.isdigit() and int(text) > 0:
            level = min(int(text), len(delays))
            codes[row] = times[row] + delays[level - 1]
    return codes
