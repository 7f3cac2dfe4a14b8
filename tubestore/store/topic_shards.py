"""A topic's shards as one thing, and where what stands in them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from tubestore.clock import Clock, Time, checked_time_ms
from tubestore.errors import InvalidMessage, OffsetOutOfRange, StoreClosed, again, documented
from tubestore.options import PARTITIONS_PER_STORE, StoreOptions, TopicOptions
from tubestore.reading import positions
from tubestore.reading.view import ShardView
from tubestore.shard.message_store import MessageStore
from tubestore.shard.reader import ShardReader
from tubestore.values import checked_whole, whole_number

Shard = MessageStore | ShardReader
Offset = int | Literal["earliest", "latest"]
Boundary = Literal["lower", "upper", "nearest"]
#: Times beyond the year 9999 have no date, nor those as far before 1970.
_CALENDAR_END = 253_402_300_800_000


class ReadHost(Protocol):
    """What a topic asks of the store that it belongs to (`manager.py`)."""

    root: str
    options: StoreOptions
    clock: Clock

    def shard_exists(self, topic: str, store_id: int) -> bool:
        """Whether a shard has a directory."""

    def is_in_journal(self, topic: str, store_id: int) -> bool:
        """Whether a shard gets something of the journal when it is opened."""

    def refresh_topic(self, topic: TopicShards) -> None:
        """Let a reading store see what was written since."""

    def showing(self) -> AbstractContextManager[Any]:
        """Hold off what would change several shards at once for readers."""


class TopicShards:
    """The shards of one topic, and the places in them."""

    def __init__(
        self,
        store: ReadHost,
        name: str,
        options: TopicOptions,
        open_shard: Callable[[str, int], Shard],
    ) -> None:
        self.name, self.options = name, options
        self._store = store
        self._open_shard = open_shard
        self._shards: dict[int, Shard] = {}
        self._lock = Lock()
        #: Why no shard is opened any more.
        self._refusal: StoreClosed | None = None

    @property
    def root(self) -> str:
        """The directory of the store."""
        return self._store.root

    def adopt(self, options: TopicOptions) -> None:
        """Take over changed settings."""
        self.options = options

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, partitions={self.options.partition_count})"

    # -- shards ------------------------------------------------------------------------------

    def shard(self, store_id: int) -> Shard:
        """Return one of the topic's shards, opening it at its first use."""
        shard = self._shards.get(store_id)
        if shard is None:
            with self._lock:
                shard = self._shards.get(store_id)
                if shard is None:
                    if self._refusal is not None:
                        raise again(self._refusal)
                    shard = self._open_shard(self.name, store_id)
                    self._shards[store_id] = shard
        return shard

    def abandon(self, reason: StoreClosed) -> None:
        """Refuse everything from now on: this process is a fork of the one that opened it."""
        self._lock = Lock()
        self._refusal = reason
        for shard in self._shards.values():
            shard.abandon(reason)

    def discard(self, reason: StoreClosed) -> None:
        """Refuse everything from now on and write nothing more: the topic was deleted."""
        with self._lock:
            self._refusal = reason
            for shard in self._shards.values():
                shard.discard(reason)

    def opened_shard(self, store_id: int) -> Shard | None:
        """Return a shard that has been used, or that the journal has more of than its files."""
        shard = self._shards.get(store_id)
        if shard is None and self._store.is_in_journal(self.name, store_id):
            shard = self.shard(store_id)
        return shard

    def opened_shards(self) -> list[Shard]:
        """Return the shards that have been used."""
        return list(self._shards.values())

    def shards_at_close(self) -> list[Shard]:
        """Return the shards that have been used, also one that another thread is opening now.

        After the store has begun to refuse openings: then there are no others.
        """
        with self._lock:
            return list(self._shards.values())

    def _view_of(self, partition: int) -> ShardView:
        return self.shard(self._known(partition) // PARTITIONS_PER_STORE).view()

    def _known(self, partition: int) -> int:
        """Return the id of a partition as users give it; InvalidMessage if there is none such."""
        number = whole_number(partition)
        if number is None or not self.options.holds(number):
            raise InvalidMessage(f"partition {partition!r} is not one of topic {self.name!r}'s")
        return number

    @property
    def partition_ids(self) -> list[int]:
        """The ids of all partitions: store id * 10,000 + place."""
        return [self.options.partition_id(n) for n in range(self.options.partition_count)]

    @documented
    def views(self) -> list[ShardView]:
        """Return all shards as they are at one moment: a published job is in all or in none."""
        while True:
            ids = self._existing()
            shards = [self.shard(store_id) for store_id in ids]
            with self._store.showing():
                if self._existing() == ids:  # else a job may have come that made some
                    return [shard.view() for shard in shards]

    def _existing(self) -> list[int]:
        return [store_id for store_id in range(self.options.stores) if self._exists(store_id)]

    def _exists(self, store_id: int) -> bool:
        return store_id in self._shards or self._store.shard_exists(self.name, store_id)

    @staticmethod
    def _resolve(view: ShardView, offset: int | str, name: str = "offset") -> int:
        if offset == "earliest":
            return view.index_start
        if offset == "latest":
            return view.index_end
        number = whole_number(offset)
        if number is None:
            raise TypeError(f"{name} {offset!r}: an int, 'earliest' or 'latest'")
        if not view.index_start <= number <= view.index_end:
            raise OffsetOutOfRange(number, view.index_start, view.index_end)
        return number

    # -- places ------------------------------------------------------------------------------

    @documented
    def first_offset(self, partition: int) -> int:
        """Return the offset of a partition's first message; that of the next one if it is empty."""
        view = self._view_of(partition)
        found = positions.ahead(view.sources(view.index_start), partition, view.index_start, 0)
        return view.index_end if found is None else found

    @documented
    def last_offset(self, partition: int) -> int | None:
        """Return the offset of a partition's last message; None if it is empty."""
        view = self._view_of(partition)
        return positions.back(view.backwards(), partition, view.index_start, view.index_end, 1)

    def next_offset(self, partition: int) -> int:
        """Return the offset behind the last message of the partition's shard: "latest"."""
        return self._view_of(partition).index_end

    @documented
    def count(self, partition: int, start: Offset = "earliest", end: Offset = "latest") -> int:
        """Return how many messages a partition has at the offsets [start, end)."""
        view = self._view_of(partition)
        low, high = self._resolve(view, start, "start"), self._resolve(view, end, "end")
        return positions.count(view.sources(low), partition, low, high)

    @documented
    def skip(self, partition: int, offset: Offset, count: int) -> int:
        """Return the offset from which a read leaves out `count` messages; back if it is negative.

        `skip(7, "latest", -100)` is where the last hundred begin. Ends at the partition's own ends.
        """
        view = self._view_of(partition)
        at = self._resolve(view, offset)
        count = checked_whole("count", count, least=None)
        if count >= 0:
            found = positions.ahead(view.sources(at), partition, at, count) if count else at
            return view.index_end if found is None else found
        found = positions.back(view.backwards(), partition, view.index_start, at, -count)
        return view.index_start if found is None else found

    @documented
    def offset_at(self, partition: int, time: Time, *, boundary: Boundary = "lower") -> int:
        """Return the offset of a message by when it was received, whatever order they came in.

        "lower": the first one received at or after `time`; "latest" if there is none. "upper": the
        last one received at or before `time`; the first message if there is none. "nearest": the
        one of both whose time is nearer, the later one of equally near.
        """
        if boundary not in ("lower", "upper", "nearest"):
            raise ValueError(f"boundary {boundary!r}: lower, upper or nearest")
        at = checked_time_ms(time)
        view = self._view_of(partition)
        start = view.index_start
        after = before = None
        if boundary != "upper":
            after = positions.first_from(view.sources(start), partition, start, at)
            if boundary == "lower":
                return view.index_end if after is None else after.offset
        before = positions.last_until(view.backwards(), partition, start, at)
        if before is None or (after is not None and after.time - at <= at - before.time):
            return self.first_offset(partition) if after is None else after.offset
        return before.offset

    @documented
    def partitions(self) -> pa.Table:
        """Return a row a partition: partition, first, next, count, bytes, oldest.

        `first`: the offset of its first message, `next` if it has none; `next`: where its shard
        ends; `bytes`: of its records, headers included; `oldest`: when the one that was received
        first was received. One moment for all shards; the index is gone through once, and by later
        calls from there on.
        """
        views = {view.store_id: view for view in self.views()}
        names = ("partition", "first", "next", "count", "bytes", "oldest")
        parts = []
        for store_id in range(self.options.stores):
            places = np.arange(self.options.partitions)
            columns = [store_id * PARTITIONS_PER_STORE + places, *[np.zeros_like(places)] * 5]
            view = views.get(store_id)
            if view is not None:
                start = view.index_start
                found = positions.summarize(view.sources(start), store_id, start)
                messages, first, _, size, oldest = (column[places] for column in found)
                end = np.full(len(places), view.index_end)
                columns[1:] = [np.where(messages, first, end), end, messages, size, oldest]
            arrays = [pa.array(column, pa.int64()) for column in columns[:-1]]
            known = (columns[3] > 0) & (abs(columns[5]) < _CALENDAR_END)
            arrays.append(pa.array(columns[5], pa.timestamp("ms", "UTC"), mask=~known))
            parts.append(pa.table(arrays, names))
        return pa.concat_tables(parts)
