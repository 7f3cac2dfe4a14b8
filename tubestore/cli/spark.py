"""`tubestore spark JOB`: jobs over stores of any size, in Spark on this machine or on a cluster.

Next to read: `tubestore/spark/jobs/running.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tubestore.cli.arguments import RootArgument, printing, say
from tubestore.cli.errors import EXIT_FINDINGS, Leave
from tubestore.cli.output import Column, Format, FormatOption, Summary, emit_object, emit_rows

app = typer.Typer(
    help="Jobs over whole stores in Spark: audit, stats, export, import, compact, doctor.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="Where it runs: local[*], spark://host:7077.")
]
Memory = Annotated[str, typer.Option("--memory", help="Of the driver's Java.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark.")
]
JobId = Annotated[
    str | None,
    typer.Option("--job-id", help="Names the job: one that was interrupted is taken up again."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be read; start no Spark, change nothing.")
]
SplitRows = Annotated[
    str | None, typer.Option("--rows", metavar="FILE", help="Write a JSON line a split.")
]
Where = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="As of the data source: subscribe=…"),
]

_FINDING = (
    Column("topic"), Column("store_id", "int32"), Column("partition_id", "int32"),
    Column("offset", "int64"), Column("reason"), Column("message", "line"),
)  # fmt: skip
_EXECUTOR = (
    Column("host"), Column("process", "int64"), Column("python"), Column("tubestore"),
    Column("pyspark"), Column("pyarrow"), Column("numpy"), Column("uuid"),
)  # fmt: skip
_HOUR = (
    Column("topic"), Column("partition_id", "int32"), Column("hour", "int64"),
    Column("messages", "int64"), Column("bytes", "int64"), Column("least", "int64"),
    Column("most", "int64"), Column("first", "int64"), Column("last", "int64"),
)  # fmt: skip
_TOPIC = (
    Column("topic"), Column("partitions", "int64"), Column("messages", "int64"),
    Column("bytes", "int64"), Column("mean_bytes", "int64"),
    Column("messages_per_second"), Column("skew"),
    Column("first", "int64"), Column("last", "int64"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a job runs."""

    master: str
    memory: str
    conf: list[str] | None

    def session(self) -> Any:
        """Return the session; its Java says nothing but errors."""
        from tubestore.spark import session

        made = session(self.master, pairs(self.conf), memory=self.memory)
        made.sparkContext.setLogLevel("OFF")
        return made


def pairs(given: Iterable[str] | None) -> dict[str, str]:
    """Read NAME=VALUE texts; UsageMistake."""
    from tubestore.cli.errors import UsageMistake

    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageMistake(f"{text!r}: NAME=VALUE is needed")
        found[name] = value
    return found


def progress() -> Callable[[int, int], None]:
    """Return what shows how far a job is: a line on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda _done, _all: None

    def told(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        print(f"\r{done} of {total} splits", end=end, file=sys.stderr, flush=True)

    return told


def dry_run(text: str) -> None:
    """Say what would be done."""
    print(text)


def write_rows(path: str | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a JSON line a split."""
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


@app.command()
def audit(
    root: RootArgument,
    crc: Annotated[bool, typer.Option("--crc/--no-crc", help="Compare checksums.")] = True,
    job_id: JobId = None,
    dry: DryRun = False,
    rows: SplitRows = None,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Verify every entry, record and checksum: a row a finding, exit code 1 if there are any."""
    from tubestore.spark.jobs import audit as job

    if dry:
        dry_run(job.plan_audit(root).describe())
        return
    spark = Setting(master, memory, conf).session()
    result = job.audit(spark, root, check_crc=crc, job_id=job_id, told=progress())
    write_rows(rows, result.done.rows)
    with printing(None, format) as output:
        summary = Summary(scanned=result.rows, complete=result.bad == len(result.findings))
        emit_rows(result.findings, _FINDING, output, summary=summary)
    say(_ended(result.rows, result.bytes, result.done.seconds, f"{result.bad} findings"))
    if result.bad:
        raise Leave(EXIT_FINDINGS)


@app.command()
def stats(
    root: RootArgument,
    hours: Annotated[bool, typer.Option("--hours", help="A row a partition and hour.")] = False,
    job_id: JobId = None,
    dry: DryRun = False,
    rows: SplitRows = None,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Add messages and bytes up by topic, or by partition and hour, from the index alone."""
    from tubestore.spark.jobs import stats as job
    from tubestore.spark.jobs.audit import plan_audit

    if dry:
        dry_run(plan_audit(root).describe())
        return
    spark = Setting(master, memory, conf).session()
    result = job.stats(spark, root, job_id=job_id, told=progress())
    write_rows(rows, result.done.rows)
    with printing(None, format) as output:
        emit_rows(result.hours if hours else result.topics, _HOUR if hours else _TOPIC, output)


@app.command()
def export(
    root: RootArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="Directory of the Parquet files.")],
    columns: Annotated[
        str | None, typer.Option("--columns", help="Names, separated by commas.")
    ] = None,
    compression: Annotated[str, typer.Option("--compression", help="zstd, snappy, none.")] = "zstd",
    option: Where = None,
    job_id: JobId = None,
    dry: DryRun = False,
    rows: SplitRows = None,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Write messages as Parquet files, a directory a topic: for Spark, Delta, DuckDB and others."""
    from tubestore.spark.jobs import parquet as job

    names = columns.split(",") if columns else None
    if dry:
        dry_run(job.plan_export(root, out, names, compression, pairs(option))[1].describe())
        return
    spark = Setting(master, memory, conf).session()
    result = job.export(
        spark,
        root,
        out,
        columns=names,
        compression=compression,
        job_id=job_id,
        told=progress(),
        **pairs(option),
    )
    write_rows(rows, result.done.rows)
    found = {"files": len(result.files), "rows": result.rows, "bytes": result.bytes}
    _print_object(found, format)


@app.command(name="import")
def import_(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A Parquet file, or a folder.")],
    root: RootArgument,
    job_id: Annotated[str, typer.Option("--job-id", help="What was imported once stays so.")],
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="As of the sink: topic=…"),
    ] = None,
    dry: DryRun = False,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Append the rows of Parquet files to a store: all of them or none, once for ever."""
    from tubestore.spark.jobs import parquet as job

    if dry:
        _, splits = job.plan_import(source, root, job_id, pairs(option))
        files = len({split.path for split in splits})
        dry_run(f"{source}: {files} files in {len(splits)} splits")
        return
    spark = Setting(master, memory, conf).session()
    result = job.import_parquet(
        spark, source, root, job_id=job_id, told=progress(), **pairs(option)
    )
    print_published(result, format)


@app.command()
def compact(
    root: RootArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The other store; made if missing.")],
    option: Where = None,
    job_id: JobId = None,
    dry: DryRun = False,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Copy what is wanted into another store: -o subscribe=… -o startingTimestamp=-7d."""
    from tubestore.spark.jobs import compact as job

    if dry:
        dry_run(job.plan_compact(root, out, job_id, pairs(option))[1].describe())
        return
    spark = Setting(master, memory, conf).session()
    result = job.compact(spark, root, out, job_id=job_id, told=progress(), **pairs(option))
    print_published(result, format)


@app.command()
def doctor(
    root: RootArgument,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Look at a store from every executor: same files, same versions, and may it write there?

    A row an executor; what is wrong is said on stderr, and the exit code is 1.
    """
    from tubestore.spark.jobs import doctor as job

    spark = Setting(master, memory, conf).session()
    found = job.doctor(spark, root)
    with printing(None, format) as output:
        emit_rows(found.executors, _EXECUTOR, output)
    for problem in found.problems:
        say(problem)
    if found.problems:
        raise Leave(EXIT_FINDINGS)


def print_published(result: Any, format: Format) -> None:
    """Say what became of a job that was published."""
    found = {"job_id": result.job_id, "rows": result.rows, "replayed": result.replayed}
    _print_object(found, format)


def _print_object(found: Mapping[str, Any], format: Format) -> None:
    with printing(None, format) as output:
        columns = tuple(Column(name) for name in found)
        emit_object(found, columns, output)


def _ended(rows: int, size: int, seconds: float, more: str) -> str:
    return f"{rows:,} messages, {size:,} bytes in {seconds:.1f} s; {more}"
