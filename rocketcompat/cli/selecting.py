"""How records of the log that a command chose are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketcompat.cli.options import MESSAGE_COLUMNS, Given
from tubestore.cli.kit.output import Format, Summary, emit_rows, emit_tables
from tubestore.cli.kit.text import Row

if TYPE_CHECKING:
    from rocketcompat.inspect.selection import Selection


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
