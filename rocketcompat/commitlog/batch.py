"""A piece of the log as the columns that followers take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rocketcompat.commitlog.walk import Piece
from rocketcompat.messages import DispatchBatch, has_index_items
from rocketcompat.record.batches import message_counts
from rocketcompat.record.columns import RecordColumns, decode_columns
from rocketcompat.record.copies import QueueKey, places_of
from rocketcompat.record.properties import PROPERTY_DELAY, SCHEDULE_TOPIC
from tubestore.core.kernels import Int64s, offsets_of

#: Rows and hashes of no keys.
NO_KEYS: tuple[Int64s, Any] = np.empty(0, np.int64), np.empty(0, np.int32)


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
    *,
    with_keys: bool = True,
) -> DispatchBatch:
    """As `batch_of`, of the decoded records of the log's part [start, end).

    Without `with_keys` it is for queues only.
    """
    places = places_of(records)
    sys_flags = records.column("sys_flag")
    key_rows, key_hashes = records.index_keys() if with_keys else NO_KEYS
    wanted = has_index_items(sys_flags)[key_rows]
    return DispatchBatch(
        start=start,
        end=end,
        physical_offsets=records.starts + records.base,
        sizes=records.column("total_size"),
        queue_keys=places.keys,
        queue_codes=places.codes,
        queue_offsets=records.column("queue_offset"),
        tags_codes=_tags_codes(records, delays),
        store_timestamps=records.column("store_timestamp"),
        sys_flags=sys_flags,
        key_rows=key_rows[wanted],
        key_hashes=key_hashes[wanted],
        records=records,
        copy_rows=places.copy_rows,
        copy_codes=places.copy_codes,
        copy_offsets=places.copy_offsets,
        damaged=damaged,
        message_counts=message_counts(records),
    )


def merged(batches: Sequence[DispatchBatch]) -> DispatchBatch:
    """Return consecutive batches as one, without `records`: their bodies are not kept."""
    first = batches[0]
    keys, codes, copy_codes = _joined_queues(batches)
    before = offsets_of(np.array([len(batch) for batch in batches], np.int64)).tolist()

    def joined(name: str) -> Any:
        return np.concatenate([getattr(batch, name) for batch in batches])

    def rows(name: str) -> Any:
        parts = zip(batches, before, strict=False)
        return np.concatenate([getattr(batch, name) + count for batch, count in parts])

    return DispatchBatch(
        start=first.start,
        end=batches[-1].end,
        physical_offsets=joined("physical_offsets"),
        sizes=joined("sizes"),
        queue_keys=keys,
        queue_codes=codes,
        queue_offsets=joined("queue_offsets"),
        tags_codes=joined("tags_codes"),
        store_timestamps=joined("store_timestamps"),
        sys_flags=joined("sys_flags"),
        key_rows=rows("key_rows"),
        key_hashes=joined("key_hashes"),
        records=None,
        copy_rows=rows("copy_rows"),
        copy_codes=copy_codes,
        copy_offsets=joined("copy_offsets"),
        damaged=first.damaged,
        message_counts=_joined_counts(batches),
    )


def _joined_counts(batches: Sequence[DispatchBatch]) -> Int64s | None:
    """Return the messages in each record; None if all are one."""
    if all(batch.message_counts is None for batch in batches):
        return None
    return np.concatenate(
        [
            np.ones(len(batch), np.int64) if batch.message_counts is None else batch.message_counts
            for batch in batches
        ]
    )


def _joined_queues(batches: Sequence[DispatchBatch]) -> tuple[list[QueueKey], Any, Any]:
    """Return the queues of all batches, and which of them each row and each copy is."""
    numbers: dict[QueueKey, int] = {}
    codes, copy_codes = [], []
    for batch in batches:
        places = [numbers.setdefault(key, len(numbers)) for key in batch.queue_keys]
        table = np.array(places, np.int32)
        codes.append(table[batch.queue_codes])
        copy_codes.append(table[batch.copy_codes])
    return list(numbers), np.concatenate(codes), np.concatenate(copy_codes)


def _tags_codes(records: RecordColumns, delays: Sequence[int]) -> Int64s:
    """Hashes of the tags; of a scheduled message the time of its delivery."""
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
