"""A topic to read from: pages, messages one by one, streams. `topic.py` adds what writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tubestore.clock import Time, time_ms
from tubestore.errors import documented, documented_rows
from tubestore.messages import ALL_COLUMNS, Message, Page, PageSet
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.reading.sources import EVERYTHING, Filter, item_filter
from tubestore.reading.tubemq_reads import (
    DEFAULT_MAX_BYTES,
    DEFAULT_SWITCH,
    ENTRIES_MAX,
    GetMessageResult,
    get_messages,
)
from tubestore.reading.view import ShardView
from tubestore.record.columns import Columns, columns_for
from tubestore.record.records import ENTRY_SIZE
from tubestore.store.topic_shards import Offset, TopicShards
from tubestore.values import checked_seconds, checked_texts, checked_whole

DEFAULT_PAGE_BYTES = 8 << 20
#: What a read of many partitions returns at most, unless it is asked for more.
DEFAULT_PAGES_BYTES = 64 << 20


def make_filter(filter_items: Iterable[str] | None, start: Time | None, end: Time | None) -> Filter:
    """Build a filter from what users give; items are found by their hash, and then compared."""
    if filter_items is None and start is None and end is None:
        return EVERYTHING
    items = None if filter_items is None else checked_texts("filter_items", filter_items)
    return item_filter(items, time_ms(start, "start"), time_ms(end, "end"))


class TopicReader(TopicShards):
    """One topic of a store, for reading; thread-safe, and valid as long as its store is open."""

    # -- pages -------------------------------------------------------------------------------

    @documented
    def read(
        self,
        partition: int,
        offset: Offset = "earliest",
        *,
        limit: int = 1000,
        max_bytes: int | None = DEFAULT_PAGE_BYTES,
        columns: Sequence[str] | None = None,
        filter_items: Iterable[str] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        verify: bool = False,
        zero_copy: bool = False,
    ) -> Page:
        """Read up to `limit` messages of a partition from `offset` on; never waits for more.

        `max_bytes` counts whole records; the first message comes even if it is larger. `start` and
        `end`: received at or after, received before. `verify` compares checksums, and entries
        with records. With `on_damage="raise"` an unreadable message raises CorruptRecord; else it
        is a row whose `state` is not "ok". OffsetOutOfRange below the first kept offset or
        beyond the end.

        `zero_copy`: bodies are a `binary_view` column that shows sealed files where they are mapped
        and copies the others; it stays valid after close and when retention removes the file. The
        mapping, and a removed file's room on the disk, go when the last such page is collected.
        """
        checked_whole("limit", limit)
        if max_bytes is not None:
            checked_whole("max_bytes", max_bytes)
        view = self._view_of(partition)
        chosen = self._columns(columns, verify, zero_copy)
        found = view.find(
            int(partition),
            self._resolve(view, offset),
            limit=limit,
            max_bytes=max_bytes,
            wanted=make_filter(filter_items, start, end),
        )
        return Page(
            view.batches_of(found.rows, chosen),
            chosen.schema,
            next_offset=found.next_offset,
            end_offset=view.index_end,
            truncated=found.truncated,
        )

    @documented
    def read_many(
        self,
        offsets: Mapping[int, Offset],
        *,
        limit: int = 1000,
        max_bytes: int | None = DEFAULT_PAGES_BYTES,
        columns: Sequence[str] | None = None,
        filter_items: Iterable[str] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        verify: bool = False,
        zero_copy: bool = False,
    ) -> PageSet:
        """Read many partitions, each from its offset, in one go: `{partition: offset, …}`.

        `limit` is for each partition, `max_bytes` for all of them: a shard with several takes its
        part of it, and gives at least one message. Rows come shard by shard in the order of their
        offsets, which is that in which they were appended. `next_offset` of the answer is what the
        next call takes. All shards are seen at one moment; filters and errors as `read`.
        """
        checked_whole("limit", limit)
        if max_bytes is not None:
            checked_whole("max_bytes", max_bytes)
        if not isinstance(offsets, Mapping):
            raise TypeError(f"offsets {offsets!r}: a mapping of partitions to offsets is needed")
        chosen = self._columns(columns, verify, zero_copy)
        wanted = make_filter(filter_items, start, end)
        by_store: dict[int, list[int]] = {}
        for partition in sorted(map(self._known, offsets)):
            by_store.setdefault(partition // PARTITIONS_PER_STORE, []).append(partition)
        shards = [self.shard(store_id) for store_id in by_store]
        with self._store.showing():
            views = [shard.view() for shard in shards]
        share = None if max_bytes is None else max_bytes // max(1, len(views))
        result = PageSet(chosen.schema)
        for view, partitions in zip(views, by_store.values(), strict=True):
            starts = [self._resolve(view, offsets[p]) for p in partitions]
            found = view.find_many(
                np.array(partitions, np.int64),
                np.array(starts, np.int64),
                limit=limit,
                max_bytes=share,
                wanted=wanted,
            )
            batches = view.batches_of(found.rows, chosen)
            result.add(partitions, found.next_offsets, found.truncated, view.index_end, batches)
        return result

    def _columns(
        self, names: Sequence[str] | None, verify: bool, zero_copy: bool = False
    ) -> Columns:
        """Check the columns that a user asks for."""
        strict = self._store.options.on_damage == "raise"
        try:
            return columns_for(
                ALL_COLUMNS if names is None else tuple(checked_texts("columns", names)),
                verify=verify,
                strict=strict,
                views=zero_copy,
            )
        except KeyError:
            unknown = sorted(set(names or ()) - set(ALL_COLUMNS))
            known = ", ".join(ALL_COLUMNS)
            raise ValueError(f"columns {', '.join(unknown)}: known are {known}") from None

    @documented
    def get_messages(
        self,
        partition: int,
        offset: int,
        *,
        filter_items: Iterable[str] | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        min_time: Time | None = None,
        switch: int = DEFAULT_SWITCH,
        max_entries: int = ENTRIES_MAX,
    ) -> GetMessageResult:
        """Read as TubeMQ's `getMessages` does, with its return codes and deltas.

        Go on at `request_offset + delta`, also after a failure. A page ends behind the record with
        which `max_bytes` is reached, or when `max_entries` of the index, whatever their partition,
        were examined; both are at least 1. `switch`: 101 the files only, 301 the buffers too; of a
        filter the last digit counts. Below the first offset it begins there; beyond the end is
        NOT_FOUND.
        """
        view = self._view_of(partition)
        at = checked_whole("offset", offset, least=None)
        checked_whole("switch", switch, least=None)
        for name, bound in (("max_bytes", max_bytes), ("max_entries", max_entries)):
            checked_whole(name, bound, least=1)
        earliest = time_ms(min_time, "min_time")
        # As TubeMQ does, by the hash alone.
        wanted = replace(make_filter(filter_items, earliest, None), items=None)
        return get_messages(
            view,
            int(partition),
            at - at % ENTRY_SIZE,
            wanted,
            switch=switch,
            max_bytes=max_bytes,
            max_entries=max_entries,
        )

    def message_at(self, partition: int, offset: int) -> Message | None:
        """Return the message at exactly this offset, None if it is another partition's."""
        page = self.read(partition, checked_whole("offset", offset), limit=1)
        found = next(iter(page), None)
        return found if found is not None and found.offset == offset else None

    # -- one by one --------------------------------------------------------------------------

    def messages(
        self,
        partition: int,
        offset: Offset = "earliest",
        *,
        filter_items: Iterable[str] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        verify: bool = False,
    ) -> Iterator[Message]:
        """Go through a partition from `offset` to its end at the time of the call."""
        view = self._view_of(partition)
        chosen = self._columns(None, verify)
        wanted = make_filter(filter_items, start, end)
        position = self._resolve(view, offset)
        rows = self._messages_of(view, int(partition), position, wanted, chosen)
        return documented_rows(rows, self.root)

    @staticmethod
    def _messages_of(
        view: ShardView, partition: int, position: int, wanted: Filter, chosen: Columns
    ) -> Iterator[Message]:
        more = True
        while more:
            found = view.find(
                partition, position, limit=1000, max_bytes=DEFAULT_PAGE_BYTES, wanted=wanted
            )
            batches = view.batches_of(found.rows, chosen)
            position, more = found.next_offset, found.truncated
            yield from Page(
                batches, chosen.schema, next_offset=position, end_offset=0, truncated=more
            )

    def follow(
        self,
        partition: int,
        offset: Offset = "earliest",
        *,
        filter_items: Iterable[str] | None = None,
        idle_timeout: float | None = None,
        poll_interval: float = 0.05,
    ) -> Iterator[Message]:
        """Go through a partition and wait for more; ends after `idle_timeout` idle seconds.

        Beside a writer in another process it looks every `poll_interval` seconds; what this
        process appends wakes it at once.
        """
        position = self._resolve(self._view_of(partition), offset)
        # Refused now, and not when something came.
        items = None if filter_items is None else checked_texts("filter_items", filter_items)
        checked_seconds("poll_interval", poll_interval)
        if idle_timeout is not None:
            checked_seconds("idle_timeout", idle_timeout)
        return self._following(partition, position, items, idle_timeout, poll_interval)

    def _following(
        self,
        partition: int,
        position: int,
        items: list[str] | None,
        idle_timeout: float | None,
        poll_interval: float,
    ) -> Iterator[Message]:
        shard = self.shard(int(partition) // PARTITIONS_PER_STORE)
        clock = self._store.clock
        idle_since = clock.monotonic()
        while True:
            page = self.read(partition, position, filter_items=items)
            yield from page
            position = page.next_offset
            now = clock.monotonic()
            if len(page):
                idle_since = now
            elif idle_timeout is not None and now - idle_since >= idle_timeout:
                return
            if not page.truncated:
                left = poll_interval
                if idle_timeout is not None:
                    left = max(0.0, min(left, idle_timeout - (now - idle_since)))
                shard.wait_beyond(page.end_offset, left)
                self._store.refresh_topic(self)

    # -- everything --------------------------------------------------------------------------

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter_items: Iterable[str] | None = None,
        start: Time | None = None,
        end: Time | None = None,
        limit: int | None = None,
        max_bytes: int | None = None,
        verify: bool = False,
        zero_copy: bool = False,
    ) -> pa.RecordBatchReader:
        """Read the whole topic as a stream of Arrow batches, shard by shard in offset order.

        Sees what was there at the call, one moment for all shards. Use as a context manager, or
        read it to its end. `limit` and `max_bytes` (of whole records) end it early; the rest of
        the arguments as `read`.
        """
        for name, bound in (("limit", limit), ("max_bytes", max_bytes)):
            if bound is not None:
                checked_whole(name, bound)
        chosen = self._columns(columns, verify, zero_copy)
        wanted = make_filter(filter_items, start, end)
        rows = _scanned(self.views(), chosen, wanted, limit, max_bytes)
        batches = documented_rows(rows, self.root)
        return pa.RecordBatchReader.from_batches(chosen.schema, batches)


def _scanned(
    views: list[ShardView],
    chosen: Columns,
    wanted: Filter,
    limit: int | None,
    max_bytes: int | None,
) -> Iterator[pa.RecordBatch]:
    """Go through shards until a limit is reached."""
    for view in views:
        for rows in view.portions(wanted):
            if limit is not None:
                rows = rows.part(0, limit)
                limit -= len(rows.offsets)
            if max_bytes is not None:
                totals = np.cumsum(rows.entries["data_size"], dtype=np.int64)
                rows = rows.part(0, int(totals.searchsorted(max_bytes, side="right")))
                fits = len(rows.offsets) == len(totals)
                max_bytes = max_bytes - int(totals[-1]) if fits and len(totals) else 0
            if len(rows.offsets):
                yield from view.columns_of(rows, chosen)
            if limit == 0 or max_bytes == 0:
                return
