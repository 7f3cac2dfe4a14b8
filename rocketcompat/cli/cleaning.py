"""`clean`: which files of the log would go, when, and why not; and letting them go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rocketcompat.cli.options import Given, store_command
from tubestore.cli.kit.output import emit_rows
from tubestore.cli.kit.text import Column

if TYPE_CHECKING:
    from rocketcompat.inspect.directory import StoreDirectory
    from rocketcompat.store.cleaning import FileVerdict

VERDICT_COLUMNS = (
    Column("path", "line"),
    Column("start", "int64"),
    Column("size", "int64"),
    Column("modified_ms", "ms"),
    Column("delete"),
    Column("due_ms", "ms"),
    Column("reason", "line"),
)


@store_command(limit=False)
def clean(
    given: Given,
    apply: Annotated[
        bool, typer.Option("--apply", help="Delete the files; without it only print the plan.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the plan (the default).")
    ] = False,
    manual: Annotated[
        bool,
        typer.Option(
            "--manual", help="As a broker's manual clean: at any hour, expired files only."
        ),
    ] = False,
) -> None:
    """List the log files, and which may be deleted. With the time, or the reason why not.

    The rules are the broker's: --option fileReservedTime=72, deleteWhen=04,
    diskMaxUsedSpaceRatio=75 and the others, or --conf. Queues and index follow the log.
    """
    directory = given.directory()
    verdicts = (
        _clean(directory, manual=manual)
        if apply and not explain
        else _explain(directory, manual=manual)
    )
    names = [column.name for column in VERDICT_COLUMNS]
    rows = [{name: getattr(verdict, name) for name in names} for verdict in verdicts]
    emit_rows(rows, VERDICT_COLUMNS, given.output)


def _explain(directory: StoreDirectory, *, manual: bool) -> list[FileVerdict]:
    """Judge the files as they lie; nothing is opened for writing."""
    from rocketcompat.formats import CONSUME_QUEUE_DIRECTORY
    from rocketcompat.store.cleaning import (
        DiskUse,
        LogFile,
        disk_used_percent,
        least_used,
        occasion,
        plan,
    )
    from tubestore.clock import SystemClock

    log, config = directory.log, directory.config
    queues = directory.path(CONSUME_QUEUE_DIRECTORY)
    use = DiskUse(
        least_used(config.commit_log_directories(directory.root))[0],
        disk_used_percent(queues) if directory.vfs.exists(queues) else 0,
    )
    now = SystemClock().now_ms()
    facts = [
        LogFile(f.path, f.file_from_offset, f.file_size, directory.vfs.modified_ms(f.path))
        for f in log.files
    ]
    return plan(facts, config, now, occasion(config, now, use, manual=manual))


def _clean(directory: StoreDirectory, *, manual: bool) -> list[FileVerdict]:
    """Open the store, which recovers it, and let it do one round."""
    import rocketcompat
    from rocketcompat.inspect.index_geometry import writing_config

    config = writing_config(directory)
    with rocketcompat.open(directory.root, "w", config, background=False) as store:
        return store.clean(manual=manual)
