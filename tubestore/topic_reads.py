"""A topic to read from: its shards as one thing. `topic.py` adds what writes.

Next to read: `topic.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from tubestore.clock import Clock, Time, time_ms
from tubestore.decode import Columns, columns_for
from tubestore.errors import InvalidMessage, OffsetOutOfRange, StoreClosed
from tubestore.formats import PARTITIONS_PER_STORE, key_code_of
from tubestore.message_store import MessageStore
from tubestore.messages import ALL_COLUMNS, Message, Page
from tubestore.options import StoreOptions, TopicOptions
from tubestore.read_path import ShardView
from tubestore.selection import EVERYTHING, Filter
from tubestore.shard_reader import ShardReader

Shard = MessageStore | ShardReader
DEFAULT_PAGE_BYTES = 8 << 20


class ReadHost(Protocol):
    """What a topic asks of the store that it belongs to (`manager.py`)."""

    root: str
    options: StoreOptions
    clock: Clock

    def shard_exists(self, topic: str, store_id: int) -> bool:
        """Whether a shard has a directory."""

    def refresh_topic(self, topic: TopicReader) -> None:
        """Let a reading store see what was written since."""

    def showing(self) -> AbstractContextManager[Any]:
        """Hold off what would change several shards at once for readers."""


def make_filter(filter_items: Iterable[str] | None, start: Time | None, end: Time | None) -> Filter:
    """Build a filter from what users give; items match by their 32-bit hash, as in TubeMQ."""
    if isinstance(filter_items, str):
        raise TypeError("filter_items: a list of texts is needed, not one text")
    codes = None if filter_items is None else frozenset(key_code_of(i) for i in filter_items)
    if codes is None and start is None and end is None:
        return EVERYTHING
    return Filter(codes, time_ms(start), time_ms(end))


class TopicReader:
    """One topic of a store, for reading; thread-safe, and valid as long as its store is open."""

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
                        raise self._refusal
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
        """Return a shard that has been used; None if it has not."""
        return self._shards.get(store_id)

    def opened_shards(self) -> list[Shard]:
        """Return the shards that have been used."""
        return list(self._shards.values())

    def _view_of(self, partition: int) -> ShardView:
        if not isinstance(partition, int | np.integer) or not self.options.holds(int(partition)):
            raise InvalidMessage(f"partition {partition!r} is not one of topic {self.name!r}'s")
        return self.shard(int(partition) // PARTITIONS_PER_STORE).view()

    @property
    def partition_ids(self) -> list[int]:
        """The ids of all partitions: store id * 10,000 + place."""
        return [self.options.partition_id(n) for n in range(self.options.partition_count)]

    # -- pages -------------------------------------------------------------------------------

    def read(
        self,
        partition: int,
        offset: int | Literal["earliest", "latest"] = "earliest",
        *,
        limit: int = 1000,
        max_bytes: int | None = DEFAULT_PAGE_BYTES,
        columns: Sequence[str] | None = None,
        filter_items: Iterable[str] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        verify: bool = False,
    ) -> Page:
        """Read up to `limit` messages of a partition from `offset` on; never waits for more.

        `verify` compares checksums. With `on_damage="raise"` an unreadable message raises
        CorruptRecord; else it is a row whose `state` is not "ok". OffsetOutOfRange below the
        first kept offset or beyond the end.
        """
        if limit < 0:
            raise ValueError(f"limit = {limit}: not negative")
        view = self._view_of(partition)
        chosen = self._columns(columns, verify)
        found = view.find(
            int(partition),
            self._resolve(view, offset),
            limit=limit,
            max_bytes=max_bytes,
            wanted=make_filter(filter_items, start, end),
        )
        return Page(
            [batch for rows in found.rows for batch in view.columns_of(rows, chosen)],
            chosen.schema,
            next_offset=found.next_offset,
            end_offset=view.index_end,
            truncated=found.truncated,
        )

    def _columns(self, names: Sequence[str] | None, verify: bool) -> Columns:
        """Check the columns that a user asks for."""
        strict = self._store.options.on_damage == "raise"
        try:
            return columns_for(
                ALL_COLUMNS if names is None else tuple(names), verify=verify, strict=strict
            )
        except KeyError:
            unknown = sorted(set(names or ()) - set(ALL_COLUMNS))
            known = ", ".join(ALL_COLUMNS)
            raise ValueError(f"columns {', '.join(unknown)}: known are {known}") from None

    @staticmethod
    def _resolve(view: ShardView, offset: int | str) -> int:
        if offset == "earliest":
            return view.index_start
        if offset == "latest":
            return view.index_end
        if not isinstance(offset, int | np.integer):
            raise TypeError(f"offset {offset!r}: an int, 'earliest' or 'latest'")
        if not view.index_start <= offset <= view.index_end:
            raise OffsetOutOfRange(int(offset), view.index_start, view.index_end)
        return int(offset)

    def messages(
        self, partition: int, offset: int | Literal["earliest", "latest"] = "earliest"
    ) -> Iterator[Message]:
        """Go through a partition from `offset` to its end at the time of the call."""
        page = self.read(partition, offset, limit=0)
        position, end = self._resolve(self._view_of(partition), offset), page.end_offset
        while position < end:
            page = self.read(partition, position)
            for message in page:
                if message.offset >= end:
                    return
                yield message
            position = page.next_offset

    def follow(
        self,
        partition: int,
        offset: int | Literal["earliest", "latest"] = "earliest",
        *,
        idle_timeout: float | None = None,
        poll_interval: float = 0.05,
    ) -> Iterator[Message]:
        """Go through a partition and wait for more; ends after `idle_timeout` idle seconds."""
        position = self._resolve(self._view_of(partition), offset)
        idle_since = self._store.clock.monotonic()
        while True:
            page = self.read(partition, position)
            yield from page
            position = page.next_offset
            now = self._store.clock.monotonic()
            if len(page):
                idle_since = now
            elif idle_timeout is not None and now - idle_since >= idle_timeout:
                return
            else:
                time.sleep(poll_interval)
                self._store.refresh_topic(self)

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter_items: Iterable[str] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        verify: bool = False,
    ) -> pa.RecordBatchReader:
        """Read the whole topic as a stream of Arrow batches, shard by shard in offset order.

        Sees what was there at the call. Use as a context manager, or read it to its end.
        """
        chosen = self._columns(columns, verify)
        wanted = make_filter(filter_items, start, end)
        batches = (batch for view in self._views() for batch in view.scan(chosen, wanted))
        return pa.RecordBatchReader.from_batches(chosen.schema, batches)

    def _views(self) -> list[ShardView]:
        """Return all shards as they are at one moment: a published job is in all or in none."""
        shards = [self.shard(s) for s in range(self.options.stores) if self._exists(s)]
        with self._store.showing():
            return [shard.view() for shard in shards]

    def _exists(self, store_id: int) -> bool:
        return store_id in self._shards or self._store.shard_exists(self.name, store_id)

    def partitions(self) -> pa.Table:
        """Return a row a partition: partition, first and next offset, messages (retained)."""
        rows = []
        counts: dict[int, int] = {}
        bounds = {}
        for view in self._views():
            counts |= view.counts()
            bounds[view.store_id] = (view.index_start, view.index_end)
        for partition in self.partition_ids:
            first, end = bounds.get(partition // PARTITIONS_PER_STORE, (0, 0))
            rows.append((partition, first, end, counts.get(partition, 0)))
        names = ("partition", "first", "next", "count")
        columns = zip(*rows, strict=True)
        return pa.table({n: pa.array(c, pa.int64()) for n, c in zip(names, columns, strict=True)})

    def message_at(self, partition: int, offset: int) -> Message | None:
        """Return the message at exactly this offset, None if it is another partition's."""
        page = self.read(partition, offset, limit=1)
        found = next(iter(page), None)
        return found if found is not None and found.offset == offset else None
