"""`get`, `query`, `message`, `offset-by-time`: what a consumer or an operator would be answered."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from rocketcompat.cli.naming import check_name
from rocketcompat.cli.options import (
    MESSAGE_COLUMNS,
    FormerStart,
    Given,
    StartOption,
    TheQueue,
    TheTopic,
    TrustQueues,
    store_command,
)
from tubestore.cli.kit.arguments import EndOption, note, parse_bound
from tubestore.cli.kit.errors import EXIT_NOT_FOUND, Leave, UsageMistake
from tubestore.cli.kit.output import emit_object
from tubestore.cli.kit.text import Column
from tubestore.clock import SystemClock, checked_time_ms, time_ms
from tubestore.values import parse_time

GET_COLUMNS = (
    Column("status"),
    Column("next_begin_offset", "int64"),
    Column("min_offset", "int64"),
    Column("max_offset", "int64"),
    Column("queue_offsets", "int64s"),
    Column("physical_offsets", "int64s"),
    Column("messages", "rows", MESSAGE_COLUMNS),
)
OFFSET_COLUMNS = (
    Column("queue_offset", "int64"),
    Column("boundary"),
    Column("store_timestamp", "ms"),
)
QUERY_COLUMNS = (
    Column("physical_offsets", "int64s"),
    Column("messages", "rows", MESSAGE_COLUMNS),
)


@store_command(limit=False, bodies=True)
def get(
    given: Given,
    topic: TheTopic,
    queue: TheQueue,
    offset: Annotated[int, typer.Option("--offset", help="The first queue offset.")],
    limit: Annotated[
        int, typer.Option("--limit", "-n", "--max", min=1, help="At most N messages.")
    ] = 32,
    tags: Annotated[str | None, typer.Option("--tags", help='Such as "A || B".')] = None,
    trust_queues: TrustQueues = False,
) -> None:
    """Pull messages from a queue. With RocketMQ's limits and statuses."""
    directory = given.directory()
    from rocketcompat.inspect.queues import QueueViews
    from rocketcompat.reading.pull import get_message

    views = QueueViews(directory, only=(topic, queue), trust=trust_queues)
    result = get_message(_parts(directory, views), topic, queue, offset, limit, tags)
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
        check_name(directory, topic, queue)
        raise Leave(EXIT_NOT_FOUND)


@store_command(limit=False, bodies=True)
def query(
    given: Given,
    topic: TheTopic,
    key: Annotated[str, typer.Option("--key", "-k", help="A key, or a unique key.")],
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", "--max", min=1, help="At most N messages, the newest."),
    ] = 32,
    begin: StartOption = None,
    end: EndOption = None,
    former_begin: FormerStart = None,
    trust_index: Annotated[
        bool,
        typer.Option(
            "--trust-index", help="Search the index files. Without it the whole log is read."
        ),
    ] = False,
) -> None:
    """Find messages by key, oldest first."""
    before = time_ms(parse_bound(end), "end")
    # RocketMQ's queryMessage, and the search below, include the end.
    window = (
        time_ms(parse_bound(former_begin if begin is None else begin), "start") or 0,
        ((1 << 63) if before is None else before) - 1,
    )
    directory = given.directory()
    from rocketcompat.inspect.key_scan import search_index, search_log

    search = search_index if trust_index else search_log
    found, more = search(directory, topic, key, limit, *window)
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
        check_name(directory, topic)
        note(f"topic {topic!r} has no message with the key {key!r} in this time")
        raise Leave(EXIT_NOT_FOUND)


@store_command(limit=False)
def message(
    given: Given,
    id: Annotated[str, typer.Option("--id", help="Its offset message id; or its physical offset.")],
) -> None:
    """Print a message by its offset message id.

    Brokers return this id for a put.
    """
    from rocketcompat.commitlog.reads import lost_message, read_found
    from rocketcompat.formats import STATE_OK, offset_of_id
    from rocketcompat.messages import MessageRecord
    from rocketcompat.record.rows import row_of

    try:
        offset = int(id) if id.isascii() and id.isdecimal() and len(id) < 20 else offset_of_id(id)
    except ValueError as error:
        raise UsageMistake(f"--id {error}, and no physical offset") from None
    log = given.directory().log
    found = read_found(log, offset)
    if isinstance(found, MessageRecord) and found.state == STATE_OK:
        emit_object(row_of(found), MESSAGE_COLUMNS, given.output)
        return
    if found is None:
        files = f"the files of the log have the offsets [{log.min_offset}, {log.max_offset})"
        text = f"no message at physical offset {offset}; {files}"
        note(f"{text}; a unique key of a client is found by `query --key`")
        raise Leave(EXIT_NOT_FOUND)
    raise lost_message(found) if isinstance(found, MessageRecord) else found


class BoundaryName(enum.StrEnum):
    """Which message a point in time means."""

    LOWER = "lower"
    UPPER = "upper"
    NEAREST = "nearest"


@store_command(limit=False)
def offset_by_time(
    given: Given,
    topic: TheTopic,
    queue: TheQueue,
    time: Annotated[
        str, typer.Option("--time", metavar="TIME", help="ms, ISO-8601 with a zone, or -2h.")
    ],
    boundary: Annotated[
        BoundaryName | None,
        typer.Option(
            "--boundary",
            help="The first message at or after the time, the last at or before it, or the"
            " nearest; by default as RocketMQ of --option compat=VERSION.",
        ),
    ] = None,
    trust_queues: TrustQueues = False,
) -> None:
    """Find the queue offset of a store time. Exit 1 if there is no such queue."""
    wanted = checked_time_ms(parse_time(time, SystemClock().now_ms()), "time")
    directory = given.directory()
    from rocketcompat.commitlog.reads import read_record
    from rocketcompat.inspect.queues import QueueViews
    from rocketcompat.reading.times import BOUNDARY_OF_COMPAT
    from rocketcompat.reading.times import offset_by_time as search

    view = QueueViews(directory, only=(topic, queue), trust=trust_queues).find(topic, queue)
    kind = BOUNDARY_OF_COMPAT[directory.config.compat] if boundary is None else boundary.value
    if view is None:
        emit_object({"queue_offset": 0, "boundary": kind}, OFFSET_COLUMNS, given.output)
        check_name(directory, topic, queue)
        raise Leave(EXIT_NOT_FOUND)

    def store_time(offset: int) -> int | None:
        record = read_record(directory.log, view.record_offset(offset))
        return None if record is None else record.store_timestamp

    found = search(view.min_offset, view.max_offset, wanted, kind, store_time)
    answer: dict[str, Any] = {"queue_offset": found, "boundary": kind}
    answer["store_timestamp"] = store_time(found) if found < view.max_offset else None
    if trust_queues:
        answer["complete"] = False
    emit_object(answer, OFFSET_COLUMNS, given.output)


def _parts(directory: Any, views: Any) -> Any:
    """Return the directory as the parts of a store that reads work on."""
    files = directory.log
    log = SimpleNamespace(
        min_offset=files.min_offset, max_offset=views.log_end, read_at=files.read,
        gaps=files.gaps, record_crc=files.record_crc,
    )  # fmt: skip
    return SimpleNamespace(commit_log=log, queues=views, index=None, config=directory.config)
