"""The shards that a batch is for: found in columns, and looked at only where that is needed.

A thousand shards are some ten thousand objects. To touch one attribute of each costs more than to
encode as many messages: nothing of them is in the processor's cache. So what each batch asks of
all its shards stands in arrays, by a shard's place in a table; a place is never another shard's.

Guards: nothing; two threads write the same into `numbers`, and what is opened twice is one shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore.shard.message_store import MessageStore

Array = np.ndarray[Any, Any]


class ShardTable:
    """Shards by their place; `find` opens one."""

    def __init__(self, names: Sequence[str], find: Callable[[int], MessageStore]) -> None:
        #: What a shard is among the pending batches, as far as that is known; else -1.
        self.numbers = np.full(len(names), -1, np.int64)
        self._find = find
        #: Which of them were found.
        self._known = np.zeros(len(names), bool)
        self._found: list[MessageStore | None] = [None] * len(names)
        lines = [f"{name}\n".encode() for name in names]
        self._lines = pa.array(lines, pa.large_binary())

    def find(self, place: int) -> MessageStore:
        """Return a shard, opened when it is first asked for."""
        shard = self._found[place]
        if shard is None:
            shard = self._found[place] = self._find(place)
            self._known[place] = True
        return shard

    def find_all(self, places: Array) -> None:
        """Open those of some shards that were not asked for yet."""
        for place in places[~self._known[places]].tolist():
            self.find(place)

    def names(self, places: Array) -> bytes:
        """Return the names of some shards, joined by line feeds."""
        buffer = pc.take(self._lines, pa.array(places)).buffers()[2]
        return memoryview(buffer)[:-1].tobytes() if buffer is not None else b""


class ChosenShards(Sequence[MessageStore]):
    """Some shards of a table, in the order of a batch's parts; each of them is there once."""

    def __init__(self, table: ShardTable, places: Array) -> None:
        """All are open when this returns; raises what opening one raises."""
        self._table, self._places = table, places
        table.find_all(places)

    @classmethod
    def of(cls, shards: Sequence[MessageStore]) -> ChosenShards:
        """Return shards that are at hand."""
        table = ShardTable([shard.name for shard in shards], shards.__getitem__)
        return cls(table, np.arange(len(shards)))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, row: int) -> MessageStore: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[MessageStore]: ...

    def __getitem__(self, row: int | slice) -> MessageStore | Sequence[MessageStore]:
        if isinstance(row, slice):
            return ChosenShards(self._table, self._places[row])
        return self._table.find(int(self._places[row]))

    def __iter__(self) -> Iterator[MessageStore]:
        return map(self._table.find, self._places.tolist())

    def numbers(self) -> Array:
        """Return what each is among the pending batches, -1 where that is not known (int64)."""
        return np.asarray(self._table.numbers[self._places])

    def note_number(self, row: int) -> None:
        """Remember what a shard is there; once it has a number, that is for good."""
        self._table.numbers[self._places[row]] = self[row].number

    def names(self, rows: Array | slice = slice(None)) -> bytes:
        """Return the names of some, or of all, joined by line feeds."""
        return self._table.names(self._places[rows])
