"""Two stores compared, message by message of each queue. Reads only.

A message is identified by topic, queue and queue offset. Its place in the log does not count, so a
copy with other file sizes is equal. Messages of no queue (prepared, rolled back) are compared in
their order. One digest a message is compared; only if two differ, the fields are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from rocketcompat.commitlog.walk import Gap
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import rows_of
from rocketcompat.messages import has_queue_unit
from rocketcompat.record.columns import RecordColumns
from rocketcompat.record.rows import MESSAGE_SCHEMA
from tubestore.core.kernels import Int64s, slices

Row = dict[str, Any]
#: Fields about a message's place, which are not compared.
PLACES = ("physical_offset", "store_size", "msg_id", "state", "prepared_transaction_offset")
STATES = {
    "different": "In both, and not the same.",
    "left": "Only in the left store.",
    "right": "Only in the right store.",
}
_HASHED = ("flag", "sys_flag", "born_timestamp", "store_timestamp", "reconsume_times", "body_crc")


def diff(
    left: StoreDirectory, right: StoreDirectory, *, ignore: Iterable[str] = ()
) -> Iterator[Row]:
    """Yield a row a difference: topic, queue_id, queue_offset, state, fields, left, right.

    `left` and `right` are the physical offsets, `fields` the names of what differs; `ignore` are
    names of fields that may.
    """
    ignored = frozenset(ignore)
    first, second = _Messages(left, ignored), _Messages(right, ignored)
    for key in sorted({*first.queues, *second.queues}):
        yield from _diff_queue(first, second, key)


class _Messages:
    """The messages of a store: columns by queue offset.

    Of each topic, queue, and whether messages are queued.
    """

    def __init__(self, directory: StoreDirectory, ignored: frozenset[str]) -> None:
        self.directory, self.ignored = directory, ignored
        parts: dict[tuple[str, int, bool], list[tuple[Int64s, Int64s, Int64s]]] = {}
        for piece in directory.scan_log():
            if isinstance(piece, Gap):
                continue
            digests = _digests(piece, ignored)
            queued = np.asarray(has_queue_unit(piece.column("sys_flag")))
            places = piece.starts + piece.base
            combined = piece.topic_codes << 33 | piece.column("queue_id").astype(np.int64) << 1
            combined |= queued
            for value in np.unique(combined).tolist():
                rows = np.flatnonzero(combined == value)
                name = piece.topic_names[value >> 33]
                key = (name, int(piece.column("queue_id")[rows[0]]), bool(value & 1))
                offsets = piece.column("queue_offset")[rows]
                parts.setdefault(key, []).append((offsets, digests[rows], places[rows]))
        self.queues = {key: self._joined(key, found) for key, found in parts.items()}

    @staticmethod
    def _joined(
        key: tuple[str, int, bool], parts: list[tuple[Int64s, Int64s, Int64s]]
    ) -> tuple[Int64s, Int64s, Int64s]:
        offsets, digests, places = (np.concatenate(column) for column in zip(*parts, strict=True))
        if not key[2]:  # they have no numbers: their order counts
            return np.arange(len(offsets)), digests, places
        kept, first = np.unique(offsets, return_index=True)
        return kept, digests[first], places[first]

    def row(self, place: int) -> Row:
        """Return the record at a physical offset."""
        for piece in self.directory.scan_log(place, place + 1, chained=True):
            if not isinstance(piece, Gap):
                return next(iter(rows_of(RecordColumns(piece.data, piece.starts[:1], piece.base))))
        return {}


def _digests(records: RecordColumns, ignored: frozenset[str]) -> Int64s:
    """Return a digest a record, of the compared fields."""
    columns = [name for name in _HASHED if name not in ignored]
    numbers = np.stack([records.column(name).astype(np.int64) for name in columns], 1)
    fixed = np.ascontiguousarray(numbers)
    starts, sizes = records.body_places
    texts: list[pa.LargeBinaryArray] = []
    if "body" not in ignored:
        texts.append(slices(records.data, starts, sizes))
    if "properties" not in ignored:
        texts.append(records.properties())
    texts += [records.hosts(n) for n in ("born_host", "store_host") if n not in ignored]
    values = [column.to_pylist() for column in texts]
    digest = xxhash.xxh3_64_intdigest
    found = np.empty(len(records), np.uint64)
    for row in range(len(records)):
        parts = [fixed[row].tobytes(), *(b"%d:" % len(v[row]) + v[row] for v in values)]
        found[row] = digest(b"".join(parts))
    return found.view(np.int64)


def _diff_queue(first: _Messages, second: _Messages, key: tuple[str, int, bool]) -> Iterator[Row]:
    none = np.empty(0, np.int64)
    left, right = first.queues.get(key, (none,) * 3), second.queues.get(key, (none,) * 3)
    every = np.union1d(left[0], right[0])
    at = [np.searchsorted(side[0], every) for side in (left, right)]
    there = [
        (place < len(side[0])) & (np.append(side[0], -1)[np.minimum(place, len(side[0]))] == every)
        for place, side in zip(at, (left, right), strict=True)
    ]
    both = there[0] & there[1]
    same = np.zeros(len(every), bool)
    same[both] = left[1][at[0][both]] == right[1][at[1][both]]
    for row in np.flatnonzero(~same).tolist():
        found: Row = {"topic": key[0], "queue_id": key[1], "queue_offset": int(every[row])}
        found |= {"left": None, "right": None, "fields": None}
        for name, side, mask, place in zip(
            ("left", "right"), (left, right), there, at, strict=True
        ):
            if mask[row]:
                found[name] = int(side[2][place[row]])
        if both[row]:
            fields = _fields(first.row(found["left"]), second.row(found["right"]), first.ignored)
            yield found | {"state": "different", "fields": fields}
        else:
            yield found | {"state": "left" if there[0][row] else "right"}


def _fields(one: Row, other: Row, ignored: frozenset[str]) -> str:
    """Return the names of the fields in which two messages differ."""
    names = [name for name in MESSAGE_SCHEMA.names if name not in (*PLACES, *ignored)]
    return " ".join(name for name in names if one.get(name) != other.get(name)) or "properties"
