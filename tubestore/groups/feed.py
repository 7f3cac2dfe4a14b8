"""One shard as a consumer reads it: each partition at its own place, at the cost of what is new.

All partitions of a shard share one sequence of offsets. The *front* goes through the index entries
from the cursor on and takes those of the consumer's partitions: an idle partition costs nothing,
however many there are. A partition that is behind the cursor is a *laggard*; it is read with the
posting lists until it has reached the end, and joins the front there.

`_next` has for each partition the first offset that it still wants. In the front that may be below
the cursor: between the two it has no message.

No I/O of its own and no lock; the views that it is given read the files. An interrupt may end each
call: `read` notes where a partition begins before it moves the partition on, and what belongs
together changes without a call in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tubestore.core.kernels import rows_at
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.reading.sources import EVERYTHING, Filter, Rows
from tubestore.reading.view import SCAN_ROWS, ShardView
from tubestore.record.records import ENTRY_SIZE

Array = np.ndarray[Any, Any]
#: Of a partition that the consumer does not read.
_NOT_READ = (1 << 63) - 1
#: Laggards that are read together.
_LAGGARDS = 256


class TakenRows(NamedTuple):
    """Rows of a shard; where each partition goes on; whether `more` may be there."""

    rows: list[Rows]
    positions: dict[int, int]
    messages: int
    data_bytes: int
    more: bool


class ShardFeed:
    """The partitions of one shard that a consumer reads."""

    def __init__(self, topic: str, store_id: int, wanted: Filter = EVERYTHING) -> None:
        self.topic, self.store_id = topic, store_id
        self._wanted = wanted
        self._next = np.full(16, _NOT_READ, np.int64)
        self._size = 0
        #: Where the front goes on; -1 before the first view.
        self._cursor = -1
        #: Places of partitions behind the cursor, in the order of their turns.
        self._laggards: dict[int, None] = {}

    def __len__(self) -> int:
        """How many partitions are read."""
        return self._size

    def partitions(self) -> list[int]:
        """Return the ids of the partitions that are read, ascending."""
        return (np.flatnonzero(self._next != _NOT_READ) + self._first).tolist()

    @property
    def _first(self) -> int:
        return self.store_id * PARTITIONS_PER_STORE

    def add(self, partition: int, position: int) -> None:
        """Read a partition from a position on."""
        place = partition - self._first
        if place >= len(self._next):
            grown = np.full(max(place + 1, 2 * len(self._next)), _NOT_READ, np.int64)
            grown[: len(self._next)] = self._next
            self._next = grown
        self._size += partition not in self
        self._next[place] = position
        if position < self._cursor or self._cursor < 0:
            self._laggards[place] = None
        else:
            self._laggards.pop(place, None)

    def remove(self, partition: int) -> int | None:
        """Read a partition no more; returns its position, None if it was not read."""
        if partition not in self:
            return None
        place = partition - self._first
        position = self.position(partition)
        self._next[place] = _NOT_READ
        self._size -= 1
        self._laggards.pop(place, None)
        return position

    def __contains__(self, partition: int) -> bool:
        place = partition - self._first
        return 0 <= place < len(self._next) and bool(self._next[place] != _NOT_READ)

    def position(self, partition: int) -> int:
        """Return the offset from which a partition that is read goes on."""
        place = partition - self._first
        position = int(self._next[place])
        return position if place in self._laggards else max(position, self._cursor)

    def positions(self) -> dict[int, int]:
        """Return the position of each partition that is read."""
        return {partition: self.position(partition) for partition in self.partitions()}

    # -- what is gone ------------------------------------------------------------------------

    def skip_removed(self, first: int) -> dict[int, int]:
        """Go on at the first offset that is kept; returns the former positions below it."""
        places = np.flatnonzero(self._next < first)
        if not len(places) or (self._cursor >= first and not self._laggards):
            return {}
        removed = {}
        for place in places.tolist():
            partition = place + self._first
            position = self.position(partition)
            if position < first:
                removed[partition] = position
                self._next[place] = first
        self._cursor = max(self._cursor, first) if self._cursor >= 0 else -1
        return removed

    # -- reading -----------------------------------------------------------------------------

    def read(
        self, view: ShardView, limit: int, max_bytes: int, starts: dict[int, int] | None = None
    ) -> TakenRows:
        """Take up to `limit` messages, and no more bytes unless the first message has more.

        `starts` gets, by partition, where the messages begin that were taken of it, also if the
        call ends with an exception.
        """
        if self._cursor < 0:
            self._begin(view)
        found = _Found(limit, max_bytes, {} if starts is None else starts)
        if self._laggards:
            self._read_laggards(view, found, advancing=self._cursor < view.index_end)
        if not found.is_full:
            self._read_front(view, found)
        more = bool(self._laggards) or self._cursor < view.index_end
        return TakenRows(found.rows, found.positions, found.count, found.size, more)

    def _begin(self, view: ShardView) -> None:
        """Choose where the front begins: at the end, and those behind it are laggards.

        Partitions that all begin at one place, and are many of the shard's, are in the front.
        """
        read = np.flatnonzero(self._next != _NOT_READ)
        positions = self._next[read]
        low = int(positions.min(initial=view.index_end))
        together = (positions == low).all() and 2 * len(read) >= int(read.max(initial=0))
        cursor = min(low, view.index_end) if together else view.index_end
        laggards = dict.fromkeys(read[positions < cursor].tolist())
        self._cursor, self._laggards = cursor, laggards

    def _read_laggards(self, view: ShardView, found: _Found, *, advancing: bool) -> None:
        """Read some laggards in turn; half of the room is the front's if it has something."""
        end = limit = found.limit // 2 if advancing and found.limit > 1 else found.limit
        while self._laggards and limit > 0 and not found.is_full:
            places = sorted(list(self._laggards)[: min(_LAGGARDS, limit)])
            ids = np.array(places, np.int64) + self._first
            answer = view.find_many(
                ids,
                self._next[places],
                limit=max(1, limit // len(places)),
                max_bytes=max(1, found.max_bytes - found.size),
                wanted=self._wanted,
            )
            for place, position, truncated in zip(
                places, answer.next_offsets.tolist(), answer.truncated.tolist(), strict=True
            ):
                if position != self._next[place]:
                    found.starts.setdefault(place + self._first, int(self._next[place]))
                    found.positions[place + self._first] = position
                self._next[place] = position
                del self._laggards[place]
                if truncated:
                    self._laggards[place] = None  # its next turn comes after the others'
            for rows in answer.rows:
                found.add(rows)
            limit = end - found.count

    def _read_front(self, view: ShardView, found: _Found) -> None:
        """Take the entries of the consumer's partitions from the cursor on."""
        if len(self._laggards) == len(self):
            if not self._laggards:
                self._cursor = view.index_end
            return  # no partition is in the front; it goes on when one joins it
        portion = min(max(1024, 2 * found.limit), SCAN_ROWS)
        for rows in view.portions(self._wanted, start=self._cursor, rows=portion):
            places = rows.entries["partition_id"].astype(np.int64) - self._first
            known = (places >= 0) & (places < len(self._next))
            wanted_from = np.where(known, self._next[np.where(known, places, 0)], _NOT_READ)
            wanted_from[self._is_laggard(places)] = _NOT_READ
            mine = np.flatnonzero(rows.offsets >= wanted_from)
            fitting = found.fitting(rows.entries["data_size"][mine])
            if fitting:
                some = mine[:fitting]
                found.add(Rows(rows.offsets[some], rows_at(rows.entries, some), rows.placed))
                offsets = rows.offsets[some] + ENTRY_SIZE
                partitions = (places[some] + self._first).tolist()
                firsts = zip(partitions[::-1], rows.offsets[some][::-1].tolist(), strict=True)
                found.starts.update(dict(firsts) | found.starts)
                self._next[places[some]] = offsets  # the last one of each partition stays
                found.positions.update(zip(partitions, offsets.tolist(), strict=True))
            if fitting < len(mine):
                self._cursor = int(rows.offsets[mine[fitting]])
                return
            self._cursor = int(rows.offsets[-1]) + ENTRY_SIZE
        self._cursor = max(self._cursor, view.index_end)

    def _is_laggard(self, places: Array) -> Array:
        if not self._laggards:
            return np.zeros(len(places), bool)
        return np.isin(places, np.fromiter(self._laggards, np.int64, len(self._laggards)))

    # -- how much is left --------------------------------------------------------------------

    def unread(self, view: ShardView) -> dict[int, int]:
        """Return how many messages each partition has from its position on."""
        found = dict.fromkeys(self.partitions(), 0)
        if self._cursor >= 0 and len(self._laggards) < len(found):
            for partition, count in view.counts(self._cursor).items():
                if partition in found and partition - self._first not in self._laggards:
                    found[partition] = count
            ahead = np.flatnonzero((self._next != _NOT_READ) & (self._next > self._cursor))
        else:
            ahead = np.flatnonzero(self._next != _NOT_READ)
        for place in {*ahead.tolist(), *self._laggards}:
            partition = place + self._first
            found[partition] = _count(view, partition, int(self._next[place]))
        return found


class _Found:
    """What one read has taken so far."""

    def __init__(self, limit: int, max_bytes: int, starts: dict[int, int]) -> None:
        self.limit, self.max_bytes, self.starts = limit, max_bytes, starts
        self.rows: list[Rows] = []
        self.positions: dict[int, int] = {}
        self.count = self.size = 0

    @property
    def is_full(self) -> bool:
        return self.count >= self.limit or (self.count > 0 and self.size >= self.max_bytes)

    def fitting(self, sizes: Array) -> int:
        """Return how many records of these sizes there is room for; one if nothing was taken."""
        room = min(len(sizes), self.limit - self.count)
        totals = np.cumsum(sizes[:room], dtype=np.int64)
        fitting = int(totals.searchsorted(self.max_bytes - self.size, side="right"))
        return max(fitting, 1) if room and not self.count else fitting

    def add(self, rows: Rows) -> None:
        self.rows.append(rows)
        self.count += len(rows.offsets)
        self.size += int(np.add.reduce(rows.entries["data_size"], dtype=np.int64))


def _count(view: ShardView, partition: int, start: int) -> int:
    start = max(start, view.index_start)
    sources = view.sources(start)
    return sum(
        len(source.of_partition(partition, source.ordinal(start), None)) for source in sources
    )


def feeds_of(partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[int]]:
    """Group partitions by the shard that has them: (topic, store id).

    >>> feeds_of([("t", 1), ("t", 10_000), ("t", 2)])
    {('t', 0): [1, 2], ('t', 1): [10000]}
    """
    found: dict[tuple[str, int], list[int]] = {}
    for topic, number in partitions:
        found.setdefault((topic, number // PARTITIONS_PER_STORE), []).append(number)
    return found
