"""`rocketcompat spark JOB`: jobs over RocketMQ stores of any size, in Spark."""

from __future__ import annotations

import enum
import importlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from rocketcompat.cli.mending import ACTION_COLUMNS, QuarantineOption
from tubestore.cli.arguments import printing
from tubestore.cli.errors import Leave
from tubestore.cli.output import emit_rows
from tubestore.cli.spark_jobs import JobRun, job_command, spark_app

app = spark_app("Jobs over RocketMQ stores in Spark.")


class StructureName(enum.StrEnum):
    """What is built in Spark."""

    CONSUMEQUEUE = "consumequeue"
    BATCHCONSUMEQUEUE = "batchconsumequeue"
    INDEX = "index"


StoreArgument = Annotated[str, typer.Argument(metavar="ROOT", help="The RocketMQ store.")]


@app.command()
@job_command()
def convert(
    given: JobRun,
    root: Annotated[str, typer.Argument(metavar="ROOT", help="A RocketMQ store, or a tube root.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The other; made if missing.")],
) -> None:
    """Append a CommitLog's messages to a tube root, or a tube root's to a CommitLog.

    All or none, once for ever by --job-id; queues become partitions and back. A store that is made
    takes -o mappedFileSizeCommitLog=… and its like.
    """
    from rocketcompat.formats import COMMIT_LOG_DIRECTORY
    from rocketcompat.spark import jobs, tube_jobs

    options, is_log = given.options, os.path.isdir(os.path.join(root, COMMIT_LOG_DIRECTORY))
    plan = jobs.plan_convert if is_log else tube_jobs.plan_tube_convert
    job = jobs.convert if is_log else tube_jobs.convert_tube
    given.only_said(lambda: plan(root, out, given.job_id, options)[1].describe())
    with given.running("convert") as (spark, told):
        found = job(spark, root, out, job_id=given.job_id, told=told, **options)
    given.published(found)


@app.command()
@job_command()
def rebuild(
    given: JobRun,
    root: StoreArgument,
    structure: Annotated[
        list[StructureName] | None,
        typer.Argument(help="What to build anew; without any: all."),
    ] = None,
    quarantine: QuarantineOption = None,
) -> None:
    """Build queues and index anew from the log; what was there goes into quarantine.

    Refused while a broker holds the store. Options are the store's, with RocketMQ's names:
    -o maxHashSlotNum=5000000. An interrupted run is taken up again, without a --job-id too.
    """
    from rocketcompat.spark import rebuilding

    names = [name.value for name in structure] if structure else None
    settings: dict[str, Any] = {"job_id": given.job_id or "rebuild", "options": given.options}
    given.only_said(lambda: rebuilding.plan_rebuild(root, names, **settings).describe())
    with given.running("rebuild") as (spark, told):
        found = rebuilding.rebuild(spark, root, names, quarantine=quarantine, told=told, **settings)
    given.finished(found.done)
    with printing(None, given.format) as output:
        emit_rows(found.rows, ACTION_COLUMNS, output)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the other demos worked.")
    ] = Path("demo-out"),
) -> None:
    """Audit the demo's stores in Spark, print statistics, convert one layout to the other."""
    if importlib.import_module("rocketcompat.cli.demo_spark").run(out) is False:
        raise Leave(1)
