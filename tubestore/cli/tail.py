"""`tubestore tail`: the last messages of a topic or partition, and those that are appended."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import tubestore
from tubestore.cli.kit.arguments import check_topic, note, printing
from tubestore.cli.kit.errors import UsageMistake
from tubestore.cli.kit.output import Format, emit_rows
from tubestore.cli.kit.text import Row, message_line, time_text
from tubestore.cli.read import COLUMNS, nothing_found, rows_of
from tubestore.core.kernels import rows_at
from tubestore.disks.roots import disk_of
from tubestore.groups.feed import feeds_of
from tubestore.messages import ALL_COLUMNS
from tubestore.options import PARTITIONS_PER_STORE
from tubestore.reading.sources import Filter, Rows
from tubestore.reading.view import ShardView
from tubestore.record.columns import columns_for
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.listing import check_root
from tubestore.store.manager import MessageStoreManager
from tubestore.store.topic import Topic, shards_of
from tubestore.store.topic_reads import make_filter

#: A poll that waits without end.
_LONG = 3600.0
_LINES = (Format.TEXT, Format.JSONL, Format.CSV)
_EVERYTHING = columns_for(ALL_COLUMNS)


class Wanted(NamedTuple):
    """Which messages are shown, and how long."""

    lines: int
    partition: int | None
    filter_items: list[str] | None
    follow: bool
    idle_timeout: float | None


class Tail:
    """Reads a topic from near its end, and what is appended to it."""

    def __init__(self, store: MessageStoreManager, topic: Topic, wanted: Wanted) -> None:
        self._store, self._topic, self._wanted = store, topic, wanted
        self._filter: Filter = make_filter(wanted.filter_items or None, None, None)
        #: Where to go on, by shard.
        self._positions: dict[int, int] = {}

    def last(self) -> list[Row]:
        """Return the last messages, in the order in which they were received if shards differ."""
        lines = self._wanted.lines
        found: list[Row] = []
        views = self._views()
        for view in views:
            found += deque(self._rows(view, self._start_of(view)), maxlen=lines)
        if len(views) > 1:
            found.sort(key=lambda row: row["received_time"])
        return found[-lines:] if lines else []

    def nothing(self) -> str:
        """Return why nothing was printed."""
        wanted = self._wanted
        items = wanted.filter_items if wanted.lines else None
        return nothing_found(self._topic, wanted.partition, filter_items=items)

    def _views(self) -> list[ShardView]:
        partition = self._wanted.partition
        views = shards_of(self._topic).views()
        if partition is None:
            return views
        self._topic.next_offset(partition)  # refuses one that there is not
        return [v for v in views if v.store_id == partition // PARTITIONS_PER_STORE]

    def _start_of(self, view: ShardView) -> int:
        """Return an offset with the last lines behind it."""
        wanted = self._wanted
        if not self._filter.is_empty:
            return view.index_start
        if wanted.partition is not None:
            return self._topic.skip(wanted.partition, "latest", -wanted.lines)
        return max(view.index_start, view.index_end - ENTRY_SIZE * wanted.lines)

    def follow(self) -> Iterator[Row | None]:
        """Go through what is appended; None whenever there is nothing more for now."""
        wanted, name = self._wanted, self._topic.name
        topics = [name] if wanted.partition is None else {name: [wanted.partition]}
        items = wanted.filter_items or None
        with self._store.consumer(None, topics, filter_items=items) as consumer:
            for (_, store_id), numbers in feeds_of(consumer.assignment).items():
                if store_id in self._positions:
                    mine = [(name, number) for number in numbers]
                    consumer.seek(self._positions[store_id], mine)
            timeout = _LONG if wanted.idle_timeout is None else wanted.idle_timeout
            while True:
                polled = consumer.poll(timeout=timeout)
                for batch in polled.table.to_batches():
                    yield from rows_of(batch)
                yield None
                if not len(polled) and wanted.idle_timeout is not None:
                    return

    def _rows(self, view: ShardView, start: int) -> Iterator[Row]:
        self._positions[view.store_id] = view.index_end
        for rows in view.portions(self._filter, start=start):
            partition = self._wanted.partition
            if partition is not None:
                keep = np.flatnonzero(rows.entries["partition_id"] == partition)
                rows = Rows(rows.offsets[keep], rows_at(rows.entries, keep), rows.placed)
            if len(rows.offsets):
                for batch in view.columns_of(rows, _EVERYTHING):
                    yield from rows_of(batch)


def tail(root: str, topic: str, wanted: Wanted, *, out: str | None, **how: Any) -> None:
    """Print the last messages, and with `follow` what comes."""
    if wanted.follow and how["format"] not in _LINES:
        raise UsageMistake("--follow prints text, jsonl or csv")
    check_root(root, disk_of(root))
    check_topic(root, topic)
    with tubestore.open(root, mode="r") as store, printing(out, **how) as output:
        source = Tail(store, store.topic(topic), wanted)
        if output.format is Format.TEXT:
            shown = False
            for row in _rows_of(source, wanted):
                print(_line(row))  # at once: columns would have to wait for the widest
                shown = True
            if not shown and (wanted.lines or wanted.follow):
                note(source.nothing())
        else:
            emit_rows(_rows_of(source, wanted), COLUMNS, output)


def _rows_of(source: Tail, wanted: Wanted) -> Iterator[Row]:
    yield from source.last()
    if wanted.follow:
        for row in source.follow():
            if row is None:
                sys.stdout.flush()
            else:
                yield row


def _line(row: Row) -> str:
    words = [time_text(row["received_time"]), f"{row['partition']}@{row['offset']}"]
    words += [f"[{row['filter_item']}]"] if row["filter_item"] else []
    words += [row["state"]] if row["state"] != "ok" else []
    return message_line(words, row["body"] or b"")
