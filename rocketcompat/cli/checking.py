"""`check`: cross-checks of a store's files; `demo`: see the stack work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rocketcompat.cli.options import Given, store_command
from tubestore.cli.kit.arguments import AcceptOption, AllOption, emit_findings
from tubestore.cli.kit.errors import EXIT_FINDINGS, Leave
from tubestore.cli.kit.text import Column

FINDING_COLUMNS = (
    Column("path", "line"),
    Column("position", "int64"),
    Column("reason"),
    Column("message", "line"),
    Column("severity"),
)


@store_command()
def check(given: Given, accept: AcceptOption = False, everything: AllOption = False) -> None:
    """Compare log, queues and index with each other. Exit code 1 if there are new findings.

    --accept acknowledges known damage, in .tubestore/accepted.json: it counts no more.
    """
    directory = given.directory()
    from rocketcompat.check.whole import check_store

    if emit_findings(
        check_store(directory), FINDING_COLUMNS, given.output, given.root, accept=accept,
        everything=everything,
    ):  # fmt: skip
        raise Leave(EXIT_FINDINGS)


def demo(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATHS", help="Files and folders of text; by default Python's standard library."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Directory for the stores.")] = Path(
        "demo-out"
    ),
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="Number of queues.")
    ] = 1000,
) -> None:
    """Put lines of text, kill a writer, recover, verify."""
    import importlib

    module = importlib.import_module("rocketcompat.cli.demo.run")
    if not module.run(paths or (), out=out, partitions=partitions):
        raise Leave(EXIT_FINDINGS)
