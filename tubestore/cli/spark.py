"""`tubestore spark JOB`: jobs over stores of any size, in Spark on this machine or on a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from tubestore.cli.kit.arguments import RootArgument, note, printing
from tubestore.cli.kit.errors import EXIT_FINDINGS, Leave, UsageMistake
from tubestore.cli.kit.output import Format, FormatOption, Summary, emit_rows
from tubestore.cli.kit.spark_jobs import (
    HISTORY_COLUMNS,
    JobRun,
    history_rows,
    job_command,
    pairs,
    spark_app,
    stats_columns,
)
from tubestore.cli.kit.text import Column

app = spark_app("Jobs over whole stores in Spark.")

_FINDING = (
    Column("topic"), Column("store_id", "int32"), Column("partition", "int32"),
    Column("offset", "int64"), Column("reason"), Column("message", "line"),
)  # fmt: skip
_EXECUTOR = (
    Column("host"), Column("process", "int64"), Column("python"), Column("tubestore"),
    Column("pyspark"), Column("pyarrow"), Column("numpy"), Column("uuid"),
)  # fmt: skip
_HOUR, _TOPIC = stats_columns("partition", "partitions")


@app.command()
@job_command(options=False)
def audit(
    given: JobRun,
    root: RootArgument,
    crc: Annotated[bool, typer.Option("--crc/--no-crc", help="Compare checksums.")] = True,
) -> None:
    """Verify every entry, record and checksum. Exit code 1 if there are findings."""
    from tubestore.spark.jobs import audit as job

    given.leave_if_dry(lambda: job.plan_audit(root).describe())
    with given.running("audit") as (spark, watch):
        result = job.audit(spark, root, check_crc=crc, job_id=given.job_id, watch=watch)
    given.finished(result.done)
    with printing(None, given.format) as output:
        summary = Summary(scanned=result.rows, complete=result.bad == len(result.findings))
        emit_rows(result.findings, _FINDING, output, summary=summary)
    note(
        f"{result.rows:,} messages, {result.bytes:,} bytes in {result.done.seconds:.1f} s; "
        f"{result.bad} findings"
    )
    if result.bad:
        raise Leave(EXIT_FINDINGS)


@app.command()
@job_command(options=False)
def stats(
    given: JobRun,
    root: RootArgument,
    hours: Annotated[
        bool, typer.Option("--hours", help="A row for each partition and hour.")
    ] = False,
) -> None:
    """Count messages and bytes by topic, or by partition and hour. Reads the index only."""
    from tubestore.spark.jobs import stats as job
    from tubestore.spark.jobs.audit import plan_audit

    given.leave_if_dry(lambda: plan_audit(root).describe())
    with given.running("stats") as (spark, watch):
        result = job.stats(spark, root, job_id=given.job_id, watch=watch)
    given.finished(result.done)
    with printing(None, given.format) as output:
        emit_rows(result.hours if hours else result.topics, _HOUR if hours else _TOPIC, output)


@app.command()
@job_command()
def export(
    given: JobRun,
    root: RootArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="Directory of the Parquet files.")],
    columns: Annotated[
        str | None, typer.Option("--columns", help="Names, separated by commas.")
    ] = None,
    compression: Annotated[str, typer.Option("--compression", help="zstd, snappy, none.")] = "zstd",
) -> None:
    """Write messages as Parquet files, a directory a topic. For Spark, Delta, DuckDB and others."""
    from tubestore.spark.jobs import parquet as job

    names, options = columns.split(",") if columns else None, given.options
    given.leave_if_dry(
        lambda: job.plan_export(root, out, names, compression, options)[1].describe()
    )
    with given.running("export") as (spark, watch):
        result = job.export(
            spark,
            root,
            out,
            columns=names,
            compression=compression,
            job_id=given.job_id,
            watch=watch,
            **options,
        )
    given.finished(result.done)
    found = {"files": len(result.files), "rows": result.rows, "bytes": result.bytes}
    given.print_object(found)


@app.command(name="import")
@job_command()
def import_(
    given: JobRun,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A Parquet file, or a folder.")],
    root: RootArgument,
) -> None:
    """Append Parquet files' rows to a store. All rows or none; a --job-id is appended once.

    Options are those of the sink: -o topic=…
    """
    from tubestore.spark.jobs import parquet as job

    if given.job_id is None:
        raise UsageMistake("--job-id is needed: what was imported once stays so")
    options = given.options
    given.leave_if_dry(lambda: job.describe_import(source, root, str(given.job_id), options))
    with given.running("import") as (spark, watch):
        result = job.import_parquet(
            spark, source, root, job_id=given.job_id, watch=watch, **options
        )
    given.published(result)


@app.command()
@job_command()
def compact(
    given: JobRun,
    root: RootArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The other store; made if missing.")],
) -> None:
    """Copy selected messages into another store. With: -o subscribe=… -o startingTimestamp=-7d."""
    from tubestore.spark.jobs import compact as job

    options = given.options
    given.leave_if_dry(lambda: job.plan_compact(root, out, given.job_id, options)[1].describe())
    with given.running("compact") as (spark, watch):
        result = job.compact(spark, root, out, job_id=given.job_id, watch=watch, **options)
    given.published(result)


@app.command()
def history(root: RootArgument, format: FormatOption = Format.TEXT) -> None:
    """List the last 256 jobs that wrote into a store. It needs no Spark.

    The oldest comes first.
    """
    from tubestore.spark import history as jobs

    with printing(None, format) as output:
        emit_rows(history_rows(jobs(root)), HISTORY_COLUMNS, output)


@app.command()
@job_command(options=False, job=False)
def doctor(given: JobRun, root: RootArgument) -> None:
    """Examine a store from every executor. Same files, same versions, and may it write there?

    A row an executor; what is wrong is printed on stderr, and the exit code is 1. It ends within
    30 seconds, with a cluster that cannot be used, too.
    """
    from tubestore.spark.jobs import doctor as job

    found = job.examine(root, given.master, pairs(given.conf), memory=given.memory)
    with printing(None, given.format) as output:
        emit_rows(found.executors, _EXECUTOR, output)
    for text in (*found.problems, *found.advice):
        note(text)
    if found.problems:
        raise Leave(EXIT_FINDINGS)
