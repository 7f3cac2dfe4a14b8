"""`repair` and `rebuild`: a store mended; structures built anew from the log."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from rocketcompat.cli.options import Given, store_command
from rocketcompat.cli.progress import bar
from tubestore.cli.arguments import say
from tubestore.cli.errors import EXIT_FINDINGS, Leave
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
def repair(
    given: Given,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do it; else only say what would be done.")
    ] = False,
    keep_bodies: Annotated[
        bool,
        typer.Option("--keep-bodies", help="Accept bodies that fail their checksum as they are."),
    ] = False,
    quarantine: QuarantineOption = None,
) -> None:
    """Mend a store so that brokers open it without a loss; without --apply only say how.

    What is replaced or removed goes into quarantine first. Refused while a broker holds the
    store. A dry run with something to do leaves with 1.
    """
    directory = given.directory()
    from rocketcompat.repair_plan import plan_repair

    if not apply:
        plan = plan_repair(directory, keep_bodies=keep_bodies)
        emit_rows([action.row() for action in plan.actions], ACTION_COLUMNS, given.output)
        if plan.actions:
            raise Leave(EXIT_FINDINGS)
        return
    from rocketcompat.quarantine import Quarantine
    from rocketcompat.repair import repair as mend
    from rocketcompat.store_lock import StoreLock
    from tubestore.clock import SystemClock

    lock = StoreLock(directory.vfs, directory.root)
    kept = Quarantine(directory.vfs, directory.root, quarantine)
    try:
        with bar("repair") as told:
            rows = list(
                mend(directory, clock=SystemClock(), quarantine=kept, keep_bodies=keep_bodies,
                     told=told)
            )  # fmt: skip
        emit_rows(rows, ACTION_COLUMNS, given.output)
        if kept.path:
            say(f"what was there before is in {kept.path}")
    finally:
        lock.release()


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
