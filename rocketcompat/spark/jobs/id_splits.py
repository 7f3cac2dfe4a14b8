"""A plan over shards cut across them: every split has the messages of one range of ids.

Ids ascend within a shard, and over all shards they are the order in which messages came: of shards
that were built beside a log they are its offsets. So a log that is made of such splits, each merged
by id, has its messages in that order. Where ids do not ascend (TubeMQ's own repeat after 73
minutes) the messages of a shard keep their order, and those of different shards mix somehow.

Nothing here imports Spark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tubestore.core import kernels
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.record.layouts import DATA_HEADER
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.shard_bytes import ShardBytes
from tubestore.spark.planning import Portion, ShardIndex, Split

_ID = np.dtype(">i8")
#: Messages that are sampled for each split, about.
_SAMPLES = 16


def by_ids(
    portions: Sequence[Portion], max_bytes: int, vfs: Vfs | None = None
) -> tuple[Split, ...]:
    """Cut portions into splits of about `max_bytes`, in the order of their ids."""
    total = sum(portion.bytes for portion in portions)
    count = -(-total // max_bytes)
    if count < 2:
        return (Split(tuple(portions)),) if portions else ()
    readers = [_Ids(vfs or OsVfs(), portion) for portion in portions]
    try:
        cuts = _cuts(readers, total, count)
        rows = [reader.rows_at(cuts) for reader in readers]
    finally:
        for reader in readers:
            reader.close()
    splits = []
    for place in range(len(cuts) + 1):
        parts = [
            _part(portion, bounds[place], bounds[place + 1])
            for portion, bounds in zip(portions, rows, strict=True)
            if bounds[place] < bounds[place + 1]
        ]
        if parts:
            splits.append(Split(tuple(_connected(parts))))
    return tuple(splits)


def _connected(parts: Sequence[Portion]) -> list[Portion]:
    """Make one portion of those that go on in the same file."""
    found: list[Portion] = []
    for part in parts:
        before, shard = found[-1] if found else part, part.shard
        if (before.shard.index, before.end) == (shard.index, part.start):
            files = tuple(dict.fromkeys((*before.shard.data, *shard.data)))
            shard = replace(shard, data=files)
            size = before.bytes + part.bytes
            part = replace(part, shard=shard, start=before.start, bytes=size)
            found.pop()
        found.append(part)
    return found


def _part(portion: Portion, first: int, end: int) -> Portion:
    size = portion.bytes * (end - first) // portion.rows
    start = portion.start + first * ENTRY_SIZE
    return replace(portion, start=start, end=portion.start + end * ENTRY_SIZE, bytes=size)


def _cuts(readers: Sequence[_Ids], total: int, count: int) -> list[int]:
    """Return ids between which there is about as much of the log."""
    ids, weights = [], []
    for reader in readers:
        rows, size = reader.portion.rows, reader.portion.bytes
        steps = max(1, min(rows, _SAMPLES * count * size // max(1, total)))
        ids += [reader.id_at(rows * step // steps) for step in range(steps)]
        weights += [size / steps] * steps
    order = np.argsort(ids, kind="stable")
    sums = np.cumsum(np.array(weights)[order])
    places = np.searchsorted(sums, np.arange(1, count) * (sums[-1] / count))
    return sorted({ids[order[place]] for place in places})


class _Ids:
    """The message ids of one portion, one by one."""

    def __init__(self, vfs: Vfs, portion: Portion) -> None:
        self.portion = portion
        (self._file,) = portion.shard.index
        self._index, self._bytes = ShardIndex(vfs, portion.shard), ShardBytes(vfs, portion.shard)
        self._first = (portion.start - self._file.start) // ENTRY_SIZE

    def id_at(self, row: int) -> int:
        """Return the id of a message; one that cannot be read comes before all others."""
        entries = self._index.read(self._file, self._first + row, 1)
        for window in self._bytes.windows(entries):
            if window.data is not None:
                at = int(entries["data_offset"][0]) - window.data_start
                places = np.array([at + DATA_HEADER.position("msg_id")], np.int64)
                return int(kernels.gather(kernels.bytes_of(window.data), places, _ID)[0])
        return -1

    def rows_at(self, cuts: Sequence[int]) -> list[int]:
        """Return the rows at which the ranges between cuts begin, and the end."""
        bounds = [0]
        for cut in cuts:
            rows = range(bounds[-1], self.portion.rows)
            bounds.append(bounds[-1] + bisect_left(rows, cut, key=self.id_at))
        bounds.append(self.portion.rows)
        assert all(low <= high for low, high in pairwise(bounds))
        return bounds

    def close(self) -> None:
        """Give the descriptors back."""
        self._index.close()
        self._bytes.close()
