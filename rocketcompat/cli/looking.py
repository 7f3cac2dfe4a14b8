"""`info`, `lag`, `index`, `checkpoint`: what a store is, and what is in its derived files."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rocketcompat.cli.naming import check_group, check_index_file, check_queue
from rocketcompat.cli.options import Given, Topic, TrustQueues, store_command
from tubestore.cli.kit.arguments import emit_found, root_of
from tubestore.cli.kit.errors import EXIT_NOT_FOUND, Leave, UsageMistake
from tubestore.cli.kit.output import Summary, emit_object, emit_prometheus
from tubestore.cli.kit.text import Column
from tubestore.errors import TubeStoreError

SPAN_COLUMNS = (
    Column("topic"),
    Column("queue_id", "int32"),
    Column("min_offset", "int64"),
    Column("max_offset", "int64"),
    Column("messages", "int64"),
    Column("first_timestamp", "ms"),
    Column("last_timestamp", "ms"),
)
SETTING_COLUMNS = (Column("name"), Column("value", "int64"), Column("source", "line"))
STRUCTURE_COLUMNS = (
    Column("structure"),
    Column("files", "int64"),
    Column("bytes", "int64"),
    Column("bytes_on_disk", "int64"),
)
INFO_COLUMNS = (
    Column("root", "line"),
    Column("state"),
    Column("abort"),
    Column("locked_by", "int64"),
    Column("written_by"),
    Column("min_physical_offset", "int64"),
    Column("max_physical_offset", "int64"),
    Column("damaged_regions", "int64"),
    Column("first_timestamp", "ms"),
    Column("last_timestamp", "ms"),
    Column("queues", "rows", SPAN_COLUMNS),
    Column("settings", "rows", SETTING_COLUMNS),
    Column("structures", "rows", STRUCTURE_COLUMNS),
)
HELD_COLUMNS = (
    Column("topic"),
    Column("queue_id", "int32"),
    Column("queue_offset", "int64"),
    Column("held"),
    Column("min_offset", "int64"),
    Column("max_offset", "int64"),
    Column("physical_offset", "int64"),
    Column("store_timestamp", "ms"),
    Column("verdict"),
)
LAG_COLUMNS = (
    Column("group"),
    Column("topic"),
    Column("queue_id", "int32"),
    Column("offset", "int64"),
    Column("min_offset", "int64"),
    Column("max_offset", "int64"),
    Column("lag", "int64"),
    Column("lost", "int64"),
    Column("verdict"),
)
HEADER_COLUMNS = (
    Column("path", "line"),
    Column("slots", "int64"),
    Column("items", "int64"),
    Column("used", "int64"),
    Column("begin_timestamp", "ms"),
    Column("end_timestamp", "ms"),
    Column("begin_physical_offset", "int64"),
    Column("end_physical_offset", "int64"),
    Column("hash_slot_count", "int32"),
    Column("index_count", "int32"),
    Column("state"),
    Column("reason"),
)
ITEM_COLUMNS = (
    Column("path", "line"),
    Column("number", "int64"),
    Column("slot", "int64"),
    Column("key_hash", "int64"),
    Column("physical_offset", "int64"),
    Column("time_diff_seconds", "int64"),
    Column("previous", "int64"),
    Column("store_timestamp", "ms"),
    Column("state"),
)
KEY_COLUMNS = (*ITEM_COLUMNS[:-1], Column("topic"), Column("key"), ITEM_COLUMNS[-1])
CHECKPOINT_COLUMNS = (
    Column("path", "line"),
    Column("physic_msg_timestamp", "ms"),
    Column("logics_msg_timestamp", "ms"),
    Column("index_msg_timestamp", "ms"),
    Column("master_flushed_offset", "int64"),
    Column("confirm_physical_offset", "int64"),
    Column("min_timestamp", "ms"),
    Column("min_timestamp_index", "ms"),
    Column("state"),
)


@store_command(limit=False)
def info(
    given: Given,
    topic: Topic = None,
    queue: Annotated[int | None, typer.Option("--queue", "-q", min=0, help="The queue.")] = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", min=0, help="Print whether the message at this offset is there."),
    ] = None,
    trust_queues: TrustQueues = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print in Prometheus' text format.")
    ] = False,
) -> None:
    """Describe the store: state, sizes, files, queues.

    And what its queues span in offsets and time. With --topic, --queue and --offset: whether that
    message is still held; exit 1 if it is not.
    """
    directory = given.directory()
    from rocketcompat.inspect.info import describe, held_row
    from rocketcompat.inspect.queues import QueueViews

    if offset is None:
        if queue is not None:
            raise UsageMistake("--queue goes with --topic and --offset")
        views = QueueViews(directory, topic=topic, trust=trust_queues)
        check_queue(directory, views.keys(), topic, None)
        found = describe(directory, views)
        if prometheus:
            from rocketcompat.metrics import directory_text

            emit_prometheus(lambda: directory_text(found))
        else:
            emit_object(found, INFO_COLUMNS, given.output)
        return
    if prometheus:
        raise UsageMistake("--prometheus goes without --offset")
    if topic is None or queue is None:
        raise UsageMistake("--offset goes with --topic and --queue")
    queue_views = QueueViews(directory, only=(topic, queue), trust=trust_queues)
    row = held_row(directory, queue_views, (topic, queue), offset)
    emit_object(row, HELD_COLUMNS, given.output)
    if not row["held"]:
        raise Leave(EXIT_NOT_FOUND)


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups with offsets in ROOT that begin so; for the shell: quick and quiet."""
    from rocketcompat.files.config_files import consumer_offsets, read_config
    from tubestore.core.vfs import OsVfs

    try:
        content = read_config(OsVfs(), root_of(context), "consumerOffset").content or {}
        names = {group for _, group, _ in consumer_offsets(content)}
    except (OSError, ValueError):
        return []
    return sorted(name for name in names if name.isprintable() and name.startswith(incomplete))


@store_command()
def lag(
    given: Given,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Only this group.", autocompletion=complete_group),
    ] = None,
    topic: Topic = None,
    trust_queues: TrustQueues = False,
) -> None:
    """List how far each group has consumed. By config/consumerOffset.json.

    Exit 3 if something of that file cannot be read: what could be is listed.
    """
    directory = given.directory()
    from rocketcompat.inspect.info import lag_problem, lag_rows
    from rocketcompat.inspect.queues import QueueViews

    problem = lag_problem(directory)
    views = QueueViews(directory, topic=topic, trust=trust_queues)
    found = list(lag_rows(directory, views))
    if not problem:
        check_group(found, group)
    rows = (row for row in found if group in (None, row["group"]) and topic in (None, row["topic"]))
    emit_found(
        rows,
        LAG_COLUMNS,
        given.output,
        "no such offsets" if found else "no group has offsets in config/consumerOffset.json",
        position=lambda row: {name: row[name] for name in ("group", "topic", "queue_id")},
        summary=Summary(complete=not trust_queues and not problem),
    )
    if problem:
        raise TubeStoreError(problem)


@store_command()
def index(
    given: Given,
    items: Annotated[bool, typer.Option("--items", help="List the items, not the files.")] = False,
    keys: Annotated[
        bool, typer.Option("--keys", help="List the items with their keys, from the log.")
    ] = False,
    file: Annotated[
        str | None, typer.Option("--file", help="Only the file with this name.")
    ] = None,
    start: Annotated[
        int, typer.Option("--from", min=1, help="First item to list of each file.")
    ] = 1,
) -> None:
    """List the index files, or their items with their chains."""
    directory = given.directory()
    from rocketcompat.inspect.derived import index_rows, item_rows

    check_index_file(directory, file)
    if items or keys:
        emit_found(
            item_rows(directory, name=file, start=start, keys=keys),
            KEY_COLUMNS if keys else ITEM_COLUMNS,
            given.output,
            "no items in the index",
            position=lambda row: {"path": row["path"], "number": row["number"]},
        )
        return
    rows = (row for row in index_rows(directory) if file in (None, os.path.basename(row["path"])))
    emit_found(
        rows, HEADER_COLUMNS, given.output, "no index files",
        position=lambda row: {"path": row["path"]},
    )  # fmt: skip


@store_command(limit=False)
def checkpoint(given: Given) -> None:
    """Show the checkpoint, and where a broker's recovery begins."""
    from rocketcompat.inspect.derived import checkpoint_row

    emit_object(checkpoint_row(given.directory()), CHECKPOINT_COLUMNS, given.output)
