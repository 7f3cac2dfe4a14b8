"""`rebuild`: structures built anew from the log."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from rocketcompat.cli.options import Given, store_command
from rocketcompat.cli.progress import bar
from tubestore.cli.output import Column, emit_rows

ACTION_COLUMNS = (
    Column("path", "line"),
    Column("action"),
    Column("position", "int64"),
    Column("bytes", "int64"),
    Column("message", "line"),
)
QuarantineOption = Annotated[
    str | None,
    typer.Option(
        "--quarantine", metavar="DIR",
        help="Where what is replaced is kept; else .tubestore/quarantine/<n> below the root.",
    ),
]  # fmt: skip


class StructureName(enum.StrEnum):
    """What can be built from the log."""

    CONSUMEQUEUE = "consumequeue"
    INDEX = "index"
    TUBE = "tube"


@store_command(limit=False)
def rebuild(
    given: Given,
    structure: Annotated[
        list[StructureName], typer.Argument(help="What to build anew from the log.")
    ],
    quarantine: QuarantineOption = None,
) -> None:
    """Build queues, index or shards anew from the log; what was there goes into quarantine.

    Refused while a broker holds the store. An interrupted run is taken up again.
    """
    directory = given.directory()
    from rocketcompat.quarantine import Quarantine
    from rocketcompat.rebuild import rebuild as build
    from rocketcompat.store_lock import StoreLock
    from tubestore.clock import SystemClock

    lock = StoreLock(directory.vfs, directory.root)
    try:
        kept = Quarantine(directory.vfs, directory.root, quarantine)
        names = [name.value for name in structure]
        with bar("rebuild") as told:
            rows = list(build(directory, names, clock=SystemClock(), quarantine=kept, told=told))
        emit_rows(rows, ACTION_COLUMNS, given.output)
    finally:
        lock.release()
