"""`rocketcompat spark JOB`: jobs over RocketMQ stores of any size, in Spark."""

from __future__ import annotations

import enum
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rocketcompat.cli.checking import FINDING_COLUMNS
from rocketcompat.cli.mending import ACTION_COLUMNS, QuarantineOption
from rocketcompat.formats import COMMIT_LOG_DIRECTORY, TUBE_DIRECTORY
from tubestore.cli.kit.arguments import AllOption, emit_findings, note, printing
from tubestore.cli.kit.errors import EXIT_FINDINGS, Leave
from tubestore.cli.kit.output import Format, FormatOption, emit_rows
from tubestore.cli.kit.spark_jobs import (
    HISTORY_COLUMNS,
    JobRun,
    history_rows,
    job_command,
    spark_app,
    stats_columns,
)
from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE

app = spark_app("Jobs over RocketMQ stores in Spark.")


_HOUR, _TOPIC = stats_columns("queue_id", "queues")


class SparkStructure(enum.StrEnum):
    """What is built in Spark."""

    CONSUMEQUEUE = "consumequeue"
    BATCHCONSUMEQUEUE = "batchconsumequeue"
    INDEX = "index"


StoreArgument = Annotated[str, typer.Argument(metavar="ROOT", help="The RocketMQ store.")]


@app.command()
def history(root: StoreArgument, format: FormatOption = Format.TEXT) -> None:
    """List the last 256 jobs that wrote into a store. It needs no Spark.

    The oldest comes first.
    """
    from rocketcompat.spark import history as jobs

    with printing(None, format) as output:
        emit_rows(history_rows(jobs(root)), HISTORY_COLUMNS, output)


@app.command()
@job_command()
def convert(
    given: JobRun,
    root: Annotated[str, typer.Argument(metavar="ROOT", help="A RocketMQ store, or a tube root.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The other; made if missing.")],
) -> None:
    """Append a log's messages to a tube root, or the other way round.

    All or none, and one time only for each --job-id. Queues become partitions and back. A store
    that is made takes -o mappedFileSizeCommitLog=… and its like.
    """
    from rocketcompat.spark.jobs import to_log as tube_jobs
    from rocketcompat.spark.jobs import to_shards as jobs

    options = given.options
    is_log = _has_log(root, options)
    plan = jobs.plan_convert if is_log else tube_jobs.plan_tube_convert
    job = jobs.convert if is_log else tube_jobs.convert_tube
    given.leave_if_dry(lambda: plan(root, out, given.job_id, options)[1].describe())
    with given.running("convert") as (spark, watch):
        found = job(spark, root, out, job_id=given.job_id, watch=watch, **options)
    given.published(found)


def _has_log(root: str, options: Mapping[str, str]) -> bool:
    """Return whether a root is a RocketMQ store: it has a log, where the options place it.

    Those of shards without a log name the place of the other store's.
    """
    from rocketcompat.options import MessageStoreConfig
    from rocketcompat.spark.options import LOG_TABLE

    if os.path.exists(os.path.join(root, OWN_DIRECTORY, STORE_FILE)):
        return os.path.isdir(os.path.join(root, COMMIT_LOG_DIRECTORY))
    names = {option.name.lower(): option.name for option in LOG_TABLE}
    paths = {names[n.lower()]: text for n, text in options.items() if n.lower() in names}
    config = MessageStoreConfig.from_camel(paths)
    return any(map(os.path.isdir, config.commit_log_directories(root)))


@app.command()
@job_command()
def rebuild(
    given: JobRun,
    root: StoreArgument,
    structure: Annotated[
        list[SparkStructure] | None,
        typer.Argument(metavar="STRUCTURE", help="What to build anew; without any: all."),
    ] = None,
    quarantine: QuarantineOption = None,
) -> None:
    """Build queues and index anew from the log. What was there goes into quarantine.

    Refused while a broker holds the store. Options are the store's, with RocketMQ's names:
    -o maxHashSlotNum=5000000. An interrupted run is taken up again, without a --job-id too.
    """
    from rocketcompat.spark.jobs import rebuild as rebuilding

    names = [name.value for name in structure] if structure else None
    settings: dict[str, Any] = {"job_id": given.job_id or "rebuild", "options": given.options}
    given.leave_if_dry(lambda: rebuilding.plan_rebuild(root, names, **settings).describe())
    with given.running("rebuild") as (spark, watch):
        found = rebuilding.rebuild(
            spark, root, names, quarantine=quarantine, watch=watch, **settings
        )
    given.finished(found.done)
    with printing(None, given.format) as output:
        emit_rows(found.rows, ACTION_COLUMNS, output)


@app.command()
@job_command()
def audit(
    given: JobRun,
    root: StoreArgument,
    everything: AllOption = False,
    work: Annotated[
        str | None,
        typer.Option(
            "--work", metavar="DIR", help="A directory for parts, not below ROOT: for s3://…"
        ),
    ] = None,
) -> None:
    """Cross-check log, queues and index as `check` does. Exit 1 if something new is found.

    What `check --accept` acknowledged counts no more. Options are the store's, with RocketMQ's
    names. A broker may be at work.
    """
    from rocketcompat.spark.jobs import audit as auditing

    settings: dict[str, Any] = {"job_id": given.job_id, "options": given.options, "work": work}
    given.leave_if_dry(lambda: auditing.plan_audit(root, **settings).log.describe())
    with given.running("audit") as (spark, watch):
        found = auditing.audit(spark, root, watch=watch, **settings)
    given.finished(found.done)
    with printing(None, given.format) as output:
        new = emit_findings(
            found.findings, FINDING_COLUMNS, output, root, accept=False, everything=everything
        )
    note(
        f"{found.records:,} messages, {found.bytes:,} bytes in {found.done.seconds:.1f} s; "
        f"{len(found.findings)} findings"
    )
    if os.path.isdir(os.path.join(root, TUBE_DIRECTORY)):
        note(f"its shards are a root of their own: tubestore spark audit {root}/{TUBE_DIRECTORY}")
    if new:
        raise Leave(EXIT_FINDINGS)


@app.command()
@job_command()
def stats(
    given: JobRun,
    root: StoreArgument,
    hours: Annotated[bool, typer.Option("--hours", help="A row a queue and hour.")] = False,
) -> None:
    """Count messages and bytes by topic, or by queue and hour. Reads the records' heads only.

    Options are the store's, with RocketMQ's names: -o storePathCommitLog=…
    """
    from rocketcompat.spark.jobs import stats as job

    given.leave_if_dry(lambda: job.plan_stats(root, given.options).describe())
    with given.running("stats") as (spark, watch):
        found = job.stats(spark, root, job_id=given.job_id, options=given.options, watch=watch)
    given.finished(found.done)
    with printing(None, given.format) as output:
        emit_rows(found.hours if hours else found.topics, _HOUR if hours else _TOPIC, output)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the other demos worked.")
    ] = Path("demo-out"),
) -> None:
    """Audit the demo's stores in Spark. Prints statistics, converts one layout to the other."""
    if importlib.import_module("rocketcompat.cli.demo.spark").run(out) is False:
        raise Leave(1)
