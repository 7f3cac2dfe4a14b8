"""Messages with units in several queues: multi-dispatch, LMQ (spec §1.13).

A message names further queues in INNER_MULTI_DISPATCH; the store adds the offsets that it has
there in INNER_MULTI_QUEUE_OFFSET, in the same order, and each of those queues gets a unit that
points to the one record. Names that begin with %LMQ% are of queue 0, others of the message's
queue. 5.3.3 gives offsets to %LMQ% names only; the others have an empty place.

A record with both properties has its copies whatever the options say: somebody gave the offsets.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketcompat.messages import has_queue_unit
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.properties import (
    LMQ_PREFIX,
    MULTI_DISPATCH_SEPARATOR,
    PROPERTY_MULTI_DISPATCH,
    PROPERTY_MULTI_OFFSET,
)

QueueKey = tuple[str, int]


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


def _texts_by_row(records: RecordColumns, name: str) -> dict[int, str]:
    rows, starts, ends = records.property_values(name)
    raw = records.property_bytes
    places = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return {row: str(raw[start:end].tobytes(), "utf-8", "replace") for row, start, end in places}
