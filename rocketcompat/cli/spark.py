"""`rocketcompat spark JOB`: jobs over RocketMQ stores of any size, in Spark."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from tubestore.cli.errors import Leave
from tubestore.cli.spark_jobs import JobRun, job_command, spark_app

app = spark_app("Jobs over RocketMQ stores in Spark.")
StoreArgument = Annotated[str, typer.Argument(metavar="ROOT", help="The RocketMQ store.")]


@app.command()
@job_command()
def convert(
    given: JobRun,
    root: StoreArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The tube root; made if missing.")],
) -> None:
    """Append a CommitLog's messages to a tube root: all or none, queues become partitions."""
    from rocketcompat.spark import jobs

    options = given.options
    given.only_said(lambda: jobs.plan_convert(root, out, given.job_id, options)[1].describe())
    with given.running("convert") as (spark, told):
        found = jobs.convert(spark, root, out, job_id=given.job_id, told=told, **options)
    given.published(found)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the other demos worked.")
    ] = Path("demo-out"),
) -> None:
    """Audit the demo's stores in Spark, print statistics, convert one layout to the other."""
    if importlib.import_module("rocketcompat.cli.demo_spark").run(out) is False:
        raise Leave(1)
