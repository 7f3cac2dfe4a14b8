"""`tubestore read`: one partition, or a whole topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import pyarrow as pa

import tubestore
from tubestore.cli.kit.arguments import check_topic, parse_bound, printing
from tubestore.cli.kit.batches import emit_batches
from tubestore.cli.kit.errors import UsageMistake
from tubestore.cli.kit.output import Format
from tubestore.cli.kit.text import Column, Row
from tubestore.disks.roots import disk_of
from tubestore.messages import ALL_COLUMNS, MESSAGE_SCHEMA
from tubestore.record.columns import columns_for
from tubestore.record.layouts import address_from_int
from tubestore.record.records import ENTRY_SIZE
from tubestore.segments.listing import check_root
from tubestore.store.topic import Topic, shards_of
from tubestore.store.topic_reads import make_filter

PAGE_ROWS = 1000

#: As printed; arrow and parquet have `MESSAGE_SCHEMA`, with the time as a timestamp too.
COLUMNS: tuple[Column, ...] = (
    Column("topic"),
    Column("store_id", "int32"),
    Column("partition", "int32"),
    Column("offset", "int64"),
    Column("received_time", "ms"),
    Column("filter_item"),
    Column("key_code", "int32"),
    Column("attributes", "map"),
    Column("body", "bytes"),
    Column("msg_id", "int64"),
    Column("flag", "int32"),
    Column("report_address"),
    Column("state"),
)
_TEXT = ("partition", "offset", "received_time", "filter_item", "state", "body")


class ReadRequest(NamedTuple):
    """Which messages are wanted, as the user wrote it."""

    partition: int | None
    store_id: int | None
    offset: str
    filter_items: list[str] | None
    start: str | None
    end: str | None
    verify: bool


def read(root: str, topic: str, chosen: ReadRequest, *, out: str | None, **how: Any) -> None:
    """Print the messages that are wanted."""
    offset = _parse_offset(chosen)
    bounds: dict[str, Any] = {
        "filter_items": chosen.filter_items or None,
        "start": parse_bound(chosen.start),
        "end": parse_bound(chosen.end),
    }
    check_root(root, disk_of(root))
    check_topic(root, topic)
    with tubestore.open(root, mode="r") as store, printing(out, **how) as output:
        found = store.topic(topic)
        if chosen.partition is not None:
            rows = PAGE_ROWS if output.limit is None else min(PAGE_ROWS, output.limit + 1)
            batches = _pages(found, chosen, offset, rows, bounds)
        else:
            batches = _scan(found, chosen, offset, bounds)
        columns = COLUMNS
        if output.format is Format.TEXT:
            columns = tuple(sorted((c for c in COLUMNS if c.name in _TEXT), key=_text_place))
        whole = chosen.partition is None
        emit_batches(
            batches,
            MESSAGE_SCHEMA,
            columns,
            output,
            lambda: nothing_found(found, chosen.partition, offset, chosen.store_id, **bounds),
            to_rows=rows_of,
            position=_scan_position if whole else _page_position,
        )


def nothing_found(
    topic: Topic,
    partition: int | None,
    offset: int | str = "earliest",
    store_id: int | None = None,
    filter_items: list[str] | None = None,
    start: int | None = None,
    end: int | None = None,
) -> str:
    """Return why nothing was printed: how many messages were looked through, and for what."""
    if partition is not None:
        count = topic.count(partition, cast(Any, offset))
    else:
        views = [v for v in shards_of(topic).views() if store_id in (None, v.store_id)]
        first = offset if isinstance(offset, int) else 0
        count = sum(max(0, v.index_end - max(first, v.index_start)) for v in views) // ENTRY_SIZE
    missing = []
    if filter_items:
        missing.append(f"has filter item {' or '.join(map(repr, filter_items))}")
    if start is not None or end is not None:
        missing.append("was received in this time")
    reason = f": none of {count} {' and '.join(missing)}" if count and missing else ""
    return f"no such messages{reason}"


def _text_place(column: Column) -> int:
    return _TEXT.index(column.name)


def _parse_offset(chosen: ReadRequest) -> int | str:
    text = chosen.offset
    if text in ("earliest", "latest"):
        if text == "latest" and chosen.partition is None:
            raise UsageMistake("--offset latest needs --partition")
        return text
    if not text.isascii() or not text.isdecimal():
        raise UsageMistake(f"--offset {text!r}: earliest, latest, or a number")
    if chosen.partition is None and chosen.store_id is None:
        raise UsageMistake("--offset needs --partition or --store-id: each shard has its own")
    return int(text)


def _pages(
    topic: Topic, chosen: ReadRequest, offset: int | str, rows: int, bounds: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    assert chosen.partition is not None
    position: Any = offset
    while True:
        page = topic.read(chosen.partition, position, limit=rows, verify=chosen.verify, **bounds)
        yield from page.table.to_batches()
        if not page.truncated:
            return
        position, rows = page.next_offset, PAGE_ROWS


def _scan(
    topic: Topic, chosen: ReadRequest, offset: int | str, bounds: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    wanted = make_filter(**bounds)
    columns = columns_for(ALL_COLUMNS, verify=chosen.verify)
    stores = range(topic.options.stores)
    if chosen.store_id is not None:
        if chosen.store_id not in stores:
            text = (
                f"--store-id {chosen.store_id}: topic {topic.name!r} has stores 0 to {stores[-1]}"
            )
            raise UsageMistake(
                text if len(stores) > 1 else text.replace("stores 0 to 0", "store 0 only")
            )
        stores = range(chosen.store_id, chosen.store_id + 1)
    for store_id in stores:
        view = shards_of(topic).shard(store_id).view()
        start = offset if isinstance(offset, int) else 0
        yield from view.scan(columns, wanted, start=start)


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Go through a batch as it is printed: times as ms, addresses as text."""
    for row in batch.drop_columns(["received_time"]).to_pylist():
        row["received_time"] = row.pop("received_time_ms")
        if row["attributes"] is not None:
            row["attributes"] = dict(row["attributes"])
        if row["report_address"] is not None:
            row["report_address"] = address_from_int(row["report_address"])
        yield row


def _page_position(row: Row) -> int:
    return int(row["offset"])


def _scan_position(row: Row) -> dict[str, Any]:
    return {"store_id": row["store_id"], "offset": row["offset"]}
