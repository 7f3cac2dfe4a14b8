"""What a topic's reads share: filters and columns as users give them, and rows of many shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tubestore.clock import Clock, SystemClock, Time, checked_time_ms, time_ms
from tubestore.errors import OffsetOutOfRange
from tubestore.groups.assignment import Partition
from tubestore.groups.consumer import Settings
from tubestore.messages import ALL_COLUMNS, OLD_COLUMNS, Message, Page, warn_of_old_columns
from tubestore.options import (
    PARTITIONS_PER_STORE,
    Durability,
    StoreOptions,
    TopicOptions,
    check_durability,
)
from tubestore.reading import positions
from tubestore.reading.sources import EVERYTHING, Filter, item_filter
from tubestore.reading.view import ShardView
from tubestore.record.columns import Columns, columns_for
from tubestore.values import Seconds, checked_seconds, checked_texts, whole_number

DEFAULT_PAGE_BYTES = 8 << 20
#: What a read of many partitions returns at most, unless it is asked for more.
DEFAULT_PAGES_BYTES = 64 << 20
#: Times beyond the year 9999 have no date, nor those as far before 1970.
_CALENDAR_END = 253_402_300_800_000


def make_filter(
    filter_items: Iterable[str] | None,
    start: Time | None,
    end: Time | None,
    clock: Clock | None = None,
) -> Filter:
    """Build a filter from what users give; items are found by their hash, and then compared."""
    if filter_items is None and start is None and end is None:
        return EVERYTHING
    items = None if filter_items is None else checked_texts("filter_items", filter_items)
    clock = clock or SystemClock()
    return item_filter(items, time_ms(start, "start", clock), time_ms(end, "end", clock))


def chosen_columns(
    names: Sequence[str] | None, *, strict: bool, verify: bool = False, zero_copy: bool = False
) -> Columns:
    """Return the columns that a caller asks for; ValueError names those that there are not."""
    chosen = ALL_COLUMNS
    if names is not None:
        chosen = tuple(checked_texts("columns", names))
        warn_of_old_columns(chosen)
    try:
        return columns_for(
            chosen,
            verify=verify,
            strict=strict,
            views=zero_copy,
        )
    except KeyError:
        unknown = sorted(set(chosen) - set(ALL_COLUMNS) - OLD_COLUMNS.keys())
        known = ", ".join(ALL_COLUMNS)
        raise ValueError(f"columns {', '.join(unknown)}: known are {known}") from None


def checked_settings(
    options: StoreOptions,
    clock: Clock,
    *,
    start: Any,
    on_removed: Any,
    filter_items: Iterable[str] | None,
    columns: Sequence[str] | None,
    verify: bool,
    auto_commit: bool,
    auto_commit_seconds: Seconds,
    durability: Durability | None,
    max_poll_seconds: Seconds,
    calls: Sequence[Callable[[list[Partition]], object] | None],
) -> Settings:
    """Return the settings of a consumer as users give them; TypeError or ValueError names one."""
    if start not in ("earliest", "latest"):
        try:
            start = checked_time_ms(start, "start", clock)
        except ValueError as error:
            raise ValueError(f"{error}; or 'earliest' or 'latest'") from None
    if on_removed not in ("earliest", "latest", "raise"):
        raise ValueError(f"on_removed {on_removed!r}: 'earliest', 'latest' or 'raise'")
    for call in calls:
        if call is not None and not callable(call):
            raise TypeError(f"{call!r} cannot be called")
    if columns is not None and not columns:
        raise ValueError("columns: at least one is needed, else a poll has no rows to count")
    return Settings(
        columns=chosen_columns(columns, strict=options.on_damage == "raise", verify=bool(verify)),
        wanted=make_filter(filter_items, None, None),
        start=start,
        on_removed=on_removed,
        auto_commit=bool(auto_commit),
        auto_commit_seconds=checked_seconds("auto_commit_interval", auto_commit_seconds),
        durability=options.durability if durability is None else check_durability(durability),
        max_poll_seconds=checked_seconds("max_poll_interval", max_poll_seconds),
        on_assigned=calls[0],
        on_revoked=calls[1],
        on_lost=calls[2],
    )


def resolve(view: ShardView, offset: int | str, name: str = "offset") -> int:
    """Return an offset of a shard as a number; OffsetOutOfRange if it is not within."""
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


def messages_from(
    view: ShardView, partition: int, position: int, wanted: Filter, chosen: Columns
) -> Iterator[Message]:
    """Go through the messages of a partition from a position to the end of a view."""
    more = True
    while more:
        found = view.find(
            partition, position, limit=1000, max_bytes=DEFAULT_PAGE_BYTES, wanted=wanted
        )
        batches = view.batches_of(found.rows, chosen)
        position, more = found.next_offset, found.truncated
        yield from Page(batches, chosen.schema, next_offset=position, end_offset=0, truncated=more)


def scanned(
    views: list[ShardView],
    chosen: Columns,
    wanted: Filter,
    limit: int | None,
    max_bytes: int | None,
) -> Iterator[pa.RecordBatch]:
    """Go through the messages of shards, one after the other, until a limit is reached."""
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


def offset_of_time(view: ShardView, partition: int, at: int, boundary: str) -> int:
    """Return the offset of a message by when it was received; see `Topic.offset_at`."""
    start = view.index_start
    after = before = None
    if boundary != "upper":
        after = positions.first_from(view.sources(start), partition, start, at)
        if boundary == "lower":
            return view.index_end if after is None else after.offset
    before = positions.last_until(view.backwards(), partition, start, at)
    if before is None or (after is not None and after.time - at <= at - before.time):
        return first_offset(view, partition) if after is None else after.offset
    return before.offset


def first_offset(view: ShardView, partition: int) -> int:
    """Return the offset of a partition's first message; that of the next one if it is empty."""
    found = positions.ahead(view.sources(view.index_start), partition, view.index_start, 0)
    return view.index_end if found is None else found


def partition_table(views: Iterable[ShardView], options: TopicOptions) -> pa.Table:
    """Return a row a partition; see `Topic.partitions`."""
    by_id = {view.store_id: view for view in views}
    names = ("partition", "first", "next", "count", "bytes", "oldest")
    parts = []
    for store_id in range(options.stores):
        places = np.arange(options.partitions)
        columns = [store_id * PARTITIONS_PER_STORE + places, *[np.zeros_like(places)] * 5]
        view = by_id.get(store_id)
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
