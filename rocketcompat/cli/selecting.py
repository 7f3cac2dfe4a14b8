"""How records of the log that a command chose are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketcompat.cli.naming import check_choice
from rocketcompat.cli.options import MESSAGE_COLUMNS, Given
from tubestore.cli.kit.arguments import emit_found
from tubestore.cli.kit.output import Format, Summary, emit_tables
from tubestore.cli.kit.text import Row

if TYPE_CHECKING:
    from rocketcompat.inspect.directory import StoreDirectory
    from rocketcompat.inspect.selection import Selection

NO_RECORDS = "no such records in the log"


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
        check_found(directory, wanted, summary)
    else:
        rows = dump_log(directory, wanted, count)
        emit_found(
            rows, MESSAGE_COLUMNS, output, NO_RECORDS, position=place_in_log, summary=summary
        )
        check_found(directory, wanted, summary)


def check_found(directory: StoreDirectory, wanted: Selection, summary: Summary) -> None:
    """Raise NotThere if no record was found and the store has no such topic or queue."""
    if not summary.rows and not summary.truncated:
        check_choice(directory, wanted.topic, wanted.queue_id)


def place_in_log(row: Row) -> dict[str, Any]:
    """Return what to give as --from to go on at a row."""
    return {"physical_offset": row["physical_offset"]}
