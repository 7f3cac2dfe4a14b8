"""The shards of a batch: found by their columns, and touched only where that is needed.

A thousand shards are some ten thousand objects. To touch one attribute of each costs more than to
encode as many messages, because none of them is in the processor's cache. So the facts that each
batch needs of all its shards are kept in arrays, indexed by a shard's place in a table. A place
always means the same shard.

Guards: nothing. Two threads write the same values into `numbers`, and a shard that two of them
open is one object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubestore.disks.file_syncs import SyncedShard
from tubestore.journal.pending_batches import Parts, PendingBatches
from tubestore.options import Durability
from tubestore.record.records import EncodedBatch
from tubestore.segments.file_store import MsgFileStore

Array = np.ndarray[Any, Any]


class JournalledShard(SyncedShard, Protocol):
    """What the journal needs of a shard; `MessageStore` has it."""

    name: str
    files: MsgFileStore
    has_all_journalled: bool

    @property
    def number(self) -> int:
        """The shard's number among the pending batches; -1 before the first one."""

    @property
    def journal_from(self) -> int:
        """Data offset of the first journalled message; -1 if there was none."""

    @property
    def failed(self) -> bool:
        """Permanently failed: the files may lack acknowledged messages."""

    def lend(self, pending: PendingBatches, generation: int) -> bool:
        """Let batches be placed behind the shard's end; False if they may not."""

    def deliver(self, parts: Parts) -> None:
        """Take the messages that were placed behind the lent end, and write everything."""

    def leave_journal(self) -> None:
        """Record that the last messages are in no frame."""

    def bar_generation(self, generation: int) -> None:
        """Take no part in a generation: its frames of this shard have a gap."""

    def wake(self) -> None:
        """Wake readers that wait for messages."""

    def append_encoded(self, batch: EncodedBatch, durability: Durability) -> Array:
        """Append a batch without the journal; returns the offsets."""

    def flush(self) -> None:
        """Write the buffers to the files."""

    def sync_data(self) -> None:
        """Write the buffers, and bring the data to stable storage."""

    def is_synced_before_journal(self) -> bool:
        """True if the data below the journalled messages is on stable storage."""

    def sync_before_journal(self) -> None:
        """Sync the data below the journalled messages, unless that was done."""

    def sync_written(self) -> None:
        """Write the buffers, and sync the data, including that of an earlier process."""

    def has_written(self, offset: int) -> bool:
        """Return True if the message at an offset is in the files."""

    def has_unwritten(self) -> bool:
        """Return True if the files lack messages that the shard has taken."""

    def is_over(self) -> bool:
        """Return True if the shard was closed."""


class ShardTable:
    """Shards by their place; `find` opens one."""

    def __init__(self, names: Sequence[str], find: Callable[[int], JournalledShard]) -> None:
        #: The numbers of the shards among the pending batches; -1 where it is not known yet.
        self.numbers = np.full(len(names), -1, np.int64)
        self._find = find
        #: True for each shard that was found.
        self._known = np.zeros(len(names), bool)
        self._found: list[JournalledShard | None] = [None] * len(names)
        lines = [f"{name}\n".encode() for name in names]
        self._lines = pa.array(lines, pa.large_binary())

    def find(self, place: int) -> JournalledShard:
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


class ChosenShards(Sequence[JournalledShard]):
    """Some shards of a table, in the order of a batch's parts; each of them is there once."""

    def __init__(self, table: ShardTable, places: Array) -> None:
        """All are open when this returns; raises what opening one raises."""
        self._table, self._places = table, places
        table.find_all(places)

    @classmethod
    def of(cls, shards: Sequence[JournalledShard]) -> ChosenShards:
        """Return shards that are at hand."""
        table = ShardTable([shard.name for shard in shards], shards.__getitem__)
        return cls(table, np.arange(len(shards)))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, row: int) -> JournalledShard: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[JournalledShard]: ...

    def __getitem__(self, row: int | slice) -> JournalledShard | Sequence[JournalledShard]:
        if isinstance(row, slice):
            return ChosenShards(self._table, self._places[row])
        return self._table.find(int(self._places[row]))

    def __iter__(self) -> Iterator[JournalledShard]:
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
