"""Messages with units in several queues: multi-dispatch, LMQ.

A message names further queues in INNER_MULTI_DISPATCH; the store adds the offsets that it has
there in INNER_MULTI_QUEUE_OFFSET, in the same order, and each of those queues gets a unit that
points to the one record. Names that begin with %LMQ% are of queue 0, others of the message's
queue. 5.3.3 gives offsets to %LMQ% names only; the others have an empty place.

A record with both properties has its copies whatever the options are: its offsets were given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rocketcompat.messages import has_queue_unit
from rocketcompat.record.columns import RecordColumns, queue_columns
from rocketcompat.record.properties import (
    LMQ_PREFIX,
    MULTI_DISPATCH_SEPARATOR,
    PROPERTY_MULTI_DISPATCH,
    PROPERTY_MULTI_OFFSET,
)
from tubestore.core.kernels import Int64s

QueueKey = tuple[str, int]
Int32s = np.ndarray[Any, np.dtype[np.int32]]


def queue_of(name: str, queue_id: int) -> QueueKey:
    """Return the queue that a name in INNER_MULTI_DISPATCH means."""
    return name, 0 if name.startswith(LMQ_PREFIX) else queue_id


def copies_of_one(properties: Mapping[str, str], queue_id: int) -> list[tuple[QueueKey, int]]:
    """Return the further places of a record: queue and queue offset."""
    names = properties.get(PROPERTY_MULTI_DISPATCH)
    offsets = properties.get(PROPERTY_MULTI_OFFSET)
    if names is None or offsets is None:
        return []
    pairs = zip(
        names.split(MULTI_DISPATCH_SEPARATOR),
        offsets.split(MULTI_DISPATCH_SEPARATOR),
        strict=False,
    )
    return [
        (queue_of(name, queue_id), int(offset))
        for name, offset in pairs
        if name and offset.isascii() and offset.isdecimal()
    ]


def copies_of(records: RecordColumns) -> list[tuple[int, QueueKey, int]]:
    """Return the further places of many records: row, queue, queue offset; rows ascend."""
    offsets = _texts_by_row(records, PROPERTY_MULTI_OFFSET)
    if not offsets:
        return []
    names = _texts_by_row(records, PROPERTY_MULTI_DISPATCH)
    queue_ids, sys_flags = records.column("queue_id"), records.column("sys_flag")
    found = []
    for row, offset in offsets.items():
        if row in names and has_queue_unit(int(sys_flags[row])):
            pairs = {PROPERTY_MULTI_DISPATCH: names[row], PROPERTY_MULTI_OFFSET: offset}
            found += [(row, *place) for place in copies_of_one(pairs, int(queue_ids[row]))]
    return found


class QueuePlaces(NamedTuple):
    """The queues of many records, and where their units are."""

    #: Topic and queue id of the queues that occur.
    keys: list[QueueKey]
    #: Which of them each record is of.
    codes: Int32s
    #: The further units: their records (rows ascend), queues and queue offsets.
    copy_rows: Int64s
    copy_codes: Int32s
    copy_offsets: Int64s


def places_of(records: RecordColumns) -> QueuePlaces:
    """Return the queues of records, and the further units of those with copies."""
    keys, codes = queue_columns(records)
    copies = copies_of(records)
    numbers = {key: number for number, key in enumerate(keys)} if copies else {}
    copy_codes = []
    for _, key, _ in copies:
        if key not in numbers:
            numbers[key] = len(keys)
            keys.append(key)
        copy_codes.append(numbers[key])
    rows = np.array([row for row, _, _ in copies], np.int64)
    offsets = np.array([offset for _, _, offset in copies], np.int64)
    return QueuePlaces(keys, codes, rows, np.array(copy_codes, np.int32), offsets)


def _texts_by_row(records: RecordColumns, name: str) -> dict[int, str]:
    rows, starts, ends = records.property_values(name)
    raw = records.property_bytes
    places = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return {row: str(raw[start:end].tobytes(), "utf-8", "replace") for row, start, end in places}
