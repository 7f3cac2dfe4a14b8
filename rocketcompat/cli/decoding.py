"""`decode`: one message by its offset, from the files alone."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rocketcompat import formats
from rocketcompat.inspect.decode import MESSAGE_FIELDS
from tubestore.cli.kit.errors import EXIT_NOT_FOUND, Leave, UsageMistake
from tubestore.cli.kit.output import (
    Format,
    FormatOption,
    Int64,
    Int64Option,
    Output,
    SummaryOption,
    emit_object,
)
from tubestore.cli.kit.text import Column

_PLACE = (
    Column("path", "line"),
    Column("position", "int64"),
    Column("state"),
    Column("reason", "line"),
)
_SHARED = {column.name: Column(column.name, column.kind) for column in formats.MESSAGE_COLUMNS}
#: In the order of the file; what is not a column of messages is a number, but for the dialect.
MESSAGE_COLUMNS = (
    *(_SHARED.get(name) or Column(name, "int32") for name in MESSAGE_FIELDS[:-1]),
    Column(MESSAGE_FIELDS[-1]),
    *_PLACE,
)
UNIT_COLUMNS = (
    Column("topic"),
    Column("queue_id", "int32"),
    Column("queue_offset", "int64"),
    Column("physical_offset", "int64"),
    Column("size", "int32"),
    Column("tags_code", "int64"),
    *_PLACE,
)


def decode(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A store's root, its commitlog directory, or one file of a log."
        ),
    ],
    commitlog_offset: Annotated[
        int | None, typer.Option("--commitlog-offset", min=0, help="The physical offset.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="The topic.")] = None,
    queue: Annotated[int | None, typer.Option("--queue", "-q", min=0, help="The queue.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="The queue offset.")] = None,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="DIR", help="Another directory with files of the log."),
    ] = None,
    format: FormatOption = Format.TEXT,
    int64: Int64Option = Int64.NUMBER,
    summary: SummaryOption = None,
) -> None:
    """Show the message at an offset of the log, or of a queue.

    Reads the files by the format alone, whatever state the store is in. Exit 1 if no sound
    message is there.
    """
    from rocketcompat.inspect.decode import decode_commit_log, decode_queue

    by_queue = (topic, queue, offset)
    columns: tuple[Column, ...]
    answer: dict[str, Any]
    if commitlog_offset is not None and by_queue == (None, None, None):
        answer = message = decode_commit_log(path, commitlog_offset, logs=log or ())
        columns = MESSAGE_COLUMNS
    elif (
        commitlog_offset is None and topic is not None and queue is not None and offset is not None
    ):
        unit, message = decode_queue(path, topic, queue, offset, logs=log or ())
        answer = {"unit": unit, "message": message}
        columns = (Column("unit", "row", UNIT_COLUMNS), Column("message", "row", MESSAGE_COLUMNS))
    else:
        raise UsageMistake("give --commitlog-offset, or --topic, --queue and --offset")
    emit_object(answer, columns, Output(format, int64, None, summary))
    if message["state"] != "ok":
        raise Leave(EXIT_NOT_FOUND)
