"""`tail`: the last records of the log, and those that are appended."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from rocketcompat.cli.options import MESSAGE_COLUMNS, Given, store_command
from rocketcompat.cli.selecting import NO_RECORDS, check_found, place_in_log
from tubestore.cli.kit.arguments import FollowOption, IdleTimeoutOption, LinesOption, note
from tubestore.cli.kit.errors import UsageMistake
from tubestore.cli.kit.output import Format, LongFormat, Summary, emit_rows
from tubestore.cli.kit.text import Row, message_line, time_text
from tubestore.clock import SystemClock

_LINES = (Format.TEXT, Format.JSONL, Format.CSV)


@store_command(
    limit=False, bodies=True, format_option=LongFormat,
    conditions="start topic queue tags key grep decompress",
)  # fmt: skip
def tail(
    given: Given,
    lines: LinesOption = 10,
    follow: FollowOption = False,
    idle_timeout: IdleTimeoutOption = None,
) -> None:
    """Show the last records of the log. With -f also those that a broker appends."""
    if follow and given.output.format not in _LINES:
        raise UsageMistake("--follow prints text, jsonl or csv")
    wanted = given.selection()
    directory = given.directory()
    from rocketcompat.inspect.dump import Tail, message_rows

    source = Tail(directory, wanted)

    def rows() -> Iterator[Row]:
        for piece in source.last(lines):
            yield from message_rows(piece, unpack=wanted.unpack)
        if not follow:
            return
        for found in source.follow(SystemClock(), time.sleep, idle_timeout):
            if found is None:
                sys.stdout.flush()
            else:
                yield from message_rows(found, unpack=wanted.unpack)

    shown = Summary()
    if given.output.format is Format.TEXT:
        for row in rows():
            print(_line(row))  # at once: columns would have to wait for the widest
            shown.rows += 1
        if lines and not shown.rows and not follow:
            note(NO_RECORDS)
    else:
        emit_rows(rows(), MESSAGE_COLUMNS, given.output, position=place_in_log, summary=shown)
    if lines and not follow:
        check_found(directory, wanted, shown)


def _line(row: Row) -> str:
    tags = row["properties"].get("TAGS")
    place = f"{row['topic']}/{row['queue_id']}@{row['queue_offset']}"
    words: list[Any] = [time_text(row["store_timestamp"]), row["physical_offset"], place]
    words += [f"[{tags}]"] if tags else []
    return message_line(words, row["body"])
