"""What the commands `spark JOB` of both packages share: where a job runs, its id, what is printed.

@app.command()
@job_command()
def compact(job: JobRun, root: RootArgument, out: OutArgument) -> None:
    job.leave_if_dry(plan(root, out, job.job_id, job.options).describe())
    with job.running("compact") as (spark, report):
        ...
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from tubestore.cli.kit.arguments import note, printing
from tubestore.cli.kit.errors import Leave, UsageMistake
from tubestore.cli.kit.options import Shared, with_shared
from tubestore.cli.kit.output import Format, FormatOption, emit_object
from tubestore.cli.kit.progress import watching
from tubestore.cli.kit.text import Column

_OPTIONS: tuple[Shared, ...] = (
    (
        "option",
        Annotated[
            list[str] | None,
            typer.Option(
                "--option",
                "-o",
                metavar="NAME=VALUE",
                help="Option of the data source or sink: subscribe=…",
            ),
        ],
        None,
    ),
)
_JOB: tuple[Shared, ...] = (
    (
        "job_id",
        Annotated[
            str | None,
            typer.Option("--job-id", help="Name of the job; an interrupted one goes on."),
        ],
        None,
    ),
    (
        "dry",
        Annotated[
            bool,
            typer.Option(
                "--dry-run", help="Print what would be read; start no Spark, change nothing."
            ),
        ],
        False,
    ),
    (
        "rows",
        Annotated[
            str | None,
            typer.Option(
                "--rows", metavar="FILE", help="Write a JSON line for each split to a file."
            ),
        ],
        None,
    ),
)
_WHERE: tuple[Shared, ...] = (
    (
        "master",
        Annotated[
            str,
            typer.Option(
                "--master", metavar="URL", help="Spark's master: local[*], spark://host:7077."
            ),
        ],
        "local[*]",
    ),
    (
        "memory",
        Annotated[
            str | None,
            typer.Option(
                "--memory", help="Memory of the driver's Java process; on this machine 2g."
            ),
        ],
        None,
    ),
    (
        "conf",
        Annotated[
            list[str] | None,
            typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark."),
        ],
        None,
    ),
    ("format", FormatOption, Format.TEXT),
)


@dataclass(frozen=True, slots=True)
class JobRun:
    """The values of the shared options of a job's command."""

    master: str
    memory: str | None
    conf: list[str] | None
    format: Format
    option: list[str] | None = None
    job_id: str | None = None
    dry: bool = False
    rows: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """The options of the data source; UsageMistake."""
        return pairs(self.option)

    def leave_if_dry(self, describe: Callable[[], str]) -> None:
        """Print what would be done and exit, if `--dry-run` was given."""
        if self.dry:
            print(describe())
            raise Leave(0)

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[tuple[Any, Callable[[int, int], None]]]:
        """Yield a session, and a callable for the number of splits done: a bar, on a terminal.

        On this machine the session starts when a job needs it.
        """
        from tubestore.spark import session
        from tubestore.spark.kit.java import need_spark
        from tubestore.spark.kit.running import LaterSession

        need_spark()
        conf = pairs(self.conf)
        start = partial(session, self.master, conf, memory=self.memory, quiet=True)
        is_here = self.master.startswith("local") and not conf
        spark: Any = LaterSession(start) if is_here else start()
        with watching(name) as watch:
            yield spark, watch

    def finished(self, done: Any) -> None:
        """Write a JSON line a split; print what an earlier run had done already."""
        if self.rows is not None:
            write_rows(self.rows, done.rows)
        if done.resumed:
            note(f"{done.resumed} of {len(done.rows)} splits were done before")

    def published(self, result: Any) -> None:
        """Print what became of a job that was published."""
        self.finished(result.done)
        self.print_object(
            {"job_id": result.job_id, "rows": result.rows, "replayed": result.replayed}
        )

    def print_object(self, found: Mapping[str, Any]) -> None:
        """Print one object."""
        with printing(None, self.format) as output:
            emit_object(found, tuple(Column(name) for name in found), output)


def job_command(
    *, options: bool = True, job: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function with `JobRun` as its first parameter.

    Without `options` it takes none of the data source, without `job` it is no job of splits.
    """
    shared = (*(_OPTIONS if options else ()), *(_JOB if job else ()), *_WHERE)
    return lambda function: with_shared(function, shared, lambda taken: JobRun(**taken))


def spark_app(help: str) -> typer.Typer:
    """Return what holds the jobs of a package."""
    return typer.Typer(
        help=help, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def stats_columns(one: str, several: str) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """Return the columns of statistics by the hour and by topic; what shares a topic is `one`."""
    numbers = ("messages", "bytes", "least", "most", "first", "last")
    hour = (Column("topic"), Column(one, "int32"), Column("hour", "int64"))
    topic = (
        Column("topic"), Column(several, "int64"), Column("messages", "int64"),
        Column("bytes", "int64"), Column("mean_bytes", "int64"), Column("messages_per_second"),
        Column("skew"), Column("first", "int64"), Column("last", "int64"),
    )  # fmt: skip
    return (*hour, *(Column(name, "int64") for name in numbers)), topic


#: Of a table of `history`.
HISTORY_COLUMNS = (
    Column("number", "int64"), Column("job_id", "line"), Column("time", "ms"),
    Column("rows", "int64"), Column("bytes", "int64"), Column("query"),
)  # fmt: skip


def history_rows(table: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table of `history`, with times in ms."""
    for row in table.to_pylist():
        yield {**row, "time": round(row["time"].timestamp() * 1000)}


def pairs(given: Iterable[str] | None) -> dict[str, str]:
    """Read NAME=VALUE texts; UsageMistake."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageMistake(f"{text!r}: NAME=VALUE is needed")
        found[name] = value
    return found


def write_rows(path: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a JSON line for each split to a file."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
