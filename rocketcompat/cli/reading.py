"""`get` and `query`: what a consumer or an operator would be answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated, Any

import typer

from rocketcompat.cli.options import (
    MESSAGE_COLUMNS,
    Given,
    TheQueue,
    TheTopic,
    TrustQueues,
    store_command,
)
from tubestore.cli.errors import EXIT_NOT_FOUND, Leave
from tubestore.cli.output import Column, emit_object
from tubestore.cli.times import parse_time

GET_COLUMNS = (
    Column("status"),
    Column("next_begin_offset", "int64"),
    Column("min_offset", "int64"),
    Column("max_offset", "int64"),
    Column("queue_offsets", "int64s"),
    Column("physical_offsets", "int64s"),
    Column("messages", "rows", MESSAGE_COLUMNS),
)
QUERY_COLUMNS = (
    Column("physical_offsets", "int64s"),
    Column("messages", "rows", MESSAGE_COLUMNS),
)


@store_command(limit=False)
def get(
    given: Given,
    topic: TheTopic,
    queue: TheQueue,
    offset: Annotated[int, typer.Option("--offset", help="The first queue offset.")],
    max: Annotated[int, typer.Option("--max", min=1, help="At most so many messages.")] = 32,
    tags: Annotated[str | None, typer.Option("--tags", help='Such as "A || B".')] = None,
    trust_queues: TrustQueues = False,
) -> None:
    """Pull messages from a queue, with RocketMQ's limits and statuses."""
    directory = given.directory()
    from rocketcompat.queue_view import QueueViews
    from rocketcompat.reads import get_message

    views = QueueViews(directory, only=(topic, queue), trust=trust_queues)
    result = get_message(_parts(directory, views), topic, queue, offset, max, tags)
    rows = result.rows()
    for row, queue_offset in zip(rows, result.queue_offsets, strict=True):
        if row["state"] != "ok":
            row |= {"topic": topic, "queue_id": queue, "queue_offset": queue_offset}
    answer: dict[str, Any] = {
        "status": result.status.value,
        "next_begin_offset": result.next_begin_offset,
        "min_offset": result.min_offset,
        "max_offset": result.max_offset,
        "queue_offsets": result.queue_offsets,
        "physical_offsets": result.physical_offsets,
        "messages": rows,
    }
    if trust_queues:
        answer["complete"] = False
    emit_object(answer, GET_COLUMNS, given.output)
    if not rows:
        raise Leave(EXIT_NOT_FOUND)


@store_command(limit=False)
def query(
    given: Given,
    topic: TheTopic,
    key: Annotated[str, typer.Option("--key", "-k", help="A key, or a unique key.")],
    max: Annotated[int, typer.Option("--max", min=1, help="The newest so many.")] = 32,
    begin: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stored at or after: ms, ISO-8601, -2h.")
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="Stored at or before.")] = None,
    trust_index: Annotated[
        bool, typer.Option("--trust-index", help="Look only into the index files: no log scan.")
    ] = False,
) -> None:
    """Find messages by key, oldest first."""
    from tubestore.clock import SystemClock

    now = SystemClock().now_ms()
    window = (
        0 if begin is None else parse_time(begin, now),
        (1 << 63) - 1 if end is None else parse_time(end, now),
    )
    directory = given.directory()
    from rocketcompat.key_search import search_index, search_log

    search = search_index if trust_index else search_log
    found, more = search(directory, topic, key, max, *window)
    answer: dict[str, Any] = {
        "physical_offsets": [row["physical_offset"] for row in found],
        "messages": found,
    }
    if more:
        answer["truncated"] = True
    if trust_index:
        answer["complete"] = False
    emit_object(answer, QUERY_COLUMNS, given.output)
    if not found:
        raise Leave(EXIT_NOT_FOUND)


def _parts(directory: Any, views: Any) -> Any:
    """Return the directory as the parts of a store that reads work on."""
    log = SimpleNamespace(
        min_offset=directory.log.min_offset, max_offset=views.log_end, read_at=directory.log.read
    )
    return SimpleNamespace(commit_log=log, queues=views, index=None, config=directory.config)
