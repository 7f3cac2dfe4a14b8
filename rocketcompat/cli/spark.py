"""`rocketcompat spark JOB`: jobs over RocketMQ stores of any size, in Spark."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from tubestore.cli.errors import Leave
from tubestore.cli.output import Format, FormatOption
from tubestore.cli.spark import (
    Conf,
    DryRun,
    JobId,
    Master,
    Memory,
    Setting,
    Where,
    dry_run,
    pairs,
    print_published,
    progress,
)

app = typer.Typer(
    help="Jobs over RocketMQ stores in Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _spark() -> None:
    pass


@app.command()
def convert(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The RocketMQ store.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The tube root; made if missing.")],
    option: Where = None,
    job_id: JobId = None,
    dry: DryRun = False,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Append a CommitLog's messages to a tube root: all or none, queues become partitions."""
    from rocketcompat.spark import jobs

    if dry:
        dry_run(jobs.plan_convert(root, out, job_id, pairs(option))[1].describe())
        return
    spark = Setting(master, memory, conf).session()
    found = jobs.convert(spark, root, out, job_id=job_id, told=progress(), **pairs(option))
    print_published(found, format)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the other demos worked.")
    ] = Path("demo-out"),
) -> None:
    """Audit the demo's stores in Spark, print statistics, convert one layout to the other."""
    if importlib.import_module("rocketcompat.cli.demo_spark").run(out) is False:
        raise Leave(1)
