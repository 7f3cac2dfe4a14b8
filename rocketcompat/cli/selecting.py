"""The options by which commands choose records of the log, and how chosen ones are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketcompat.cli.options import MESSAGE_COLUMNS, Given
from tubestore.cli.kit.arguments import parse_bound
from tubestore.cli.kit.output import Format, Summary, emit_rows, emit_tables
from tubestore.cli.kit.text import Row

if TYPE_CHECKING:
    from rocketcompat.inspect.selection import Selection

Begin = Annotated[
    str | None,
    typer.Option("--begin", metavar="TIME", help="Stored at or after: ms, ISO-8601, -2h."),
]
Until = Annotated[str | None, typer.Option("--end", metavar="TIME", help="Stored at or before.")]
Tags = Annotated[
    str | None, typer.Option("--tags", help='Only messages with one of these tags: "A || B".')
]
Key = Annotated[
    str | None, typer.Option("--key", "-k", help="Only messages with this key or unique key.")
]
Grep = Annotated[
    str | None,
    typer.Option("--grep", metavar="REGEX", help="Only messages with a match in the body."),
]
Decompress = Annotated[
    bool, typer.Option("--decompress", help="Unpack bodies that the producer compressed.")
]


def selection_of(*, begin: str | None, until: str | None, **conditions: Any) -> Selection:
    """Return the values of the options, with the times as they were given."""
    from rocketcompat.inspect.selection import Selection

    return Selection(begin=parse_bound(begin), until=parse_bound(until), **conditions)


def emit_log(given: Given, wanted: Selection) -> None:
    """Print the records that are wanted."""
    directory = given.directory()
    from rocketcompat.inspect.dump import dump_log, dump_tables

    summary = Summary()

    def count(records: int) -> None:
        summary.scanned += records

    output = given.output
    if output.format in (Format.ARROW, Format.PARQUET):
        tables = dump_tables(directory, wanted, count)
        emit_tables(tables, MESSAGE_COLUMNS, output, position=place_in_log, summary=summary)
    else:
        rows = dump_log(directory, wanted, count)
        emit_rows(rows, MESSAGE_COLUMNS, output, position=place_in_log, summary=summary)


def place_in_log(row: Row) -> dict[str, Any]:
    """Return what to give as --from to go on at a row."""
    return {"physical_offset": row["physical_offset"]}
