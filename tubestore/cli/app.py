"""The commands of `tubestore`: names, arguments, options. What they do is loaded when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tubestore.cli.groups import app as groups
from tubestore.cli.groups import consume
from tubestore.cli.kit.arguments import (
    AcceptOption,
    AllOption,
    DurabilityName,
    EndOption,
    FollowOption,
    How,
    IdleTimeoutOption,
    InputFormat,
    LinesOption,
    PartitionOption,
    ProgressOption,
    RootArgument,
    StoreIdOption,
    TopicArgument,
    TopicOption,
    add_version,
    printing_command,
)
from tubestore.cli.kit.errors import Leave
from tubestore.cli.kit.output import Format, FormatOption
from tubestore.cli.kit.progress import bars
from tubestore.cli.spark import app as spark_jobs
from tubestore.cli.topic_commands import change, compact, create, delete, retention, topics

app = typer.Typer(
    help="An embedded message store in TubeMQ's file format: write, read, inspect, verify.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: three times as quick, and the same in every terminal
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(spark_jobs, name="spark")
app.add_typer(groups, name="groups")


FilterItems = Annotated[
    list[str] | None,
    typer.Option("--filter-item", help="Only messages with this filter item; may be repeated."),
]
Verify = Annotated[bool, typer.Option("--verify", help="Compare checksums.")]


add_version(app, "tubestore")


@app.command()
def demo(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATHS", help="Files and folders of text; by default Python's standard library."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory to work in.")] = Path(
        "demo-out"
    ),
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, max=10_000, help="Partitions of the topic.")
    ] = 1000,
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep the stores afterwards.")
    ] = True,
) -> None:
    """Write lines of text, read them, kill a writer, recover, verify."""
    import importlib

    good = importlib.import_module("tubestore.cli.demo.run").run(
        paths or (), out=out, partitions=partitions
    )
    if not keep:
        import shutil

        shutil.rmtree(out)
    if good is False:
        raise Leave(1)


for command in (topics, create, change, delete, retention, compact, consume):
    app.command()(command)


@app.command()
def append(
    root: RootArgument,
    topic: TopicArgument,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILES", help="Files of messages; without any, or for -, stdin."),
    ] = None,
    input: Annotated[
        InputFormat | None,
        typer.Option(
            "--input",
            "-i",
            help="A message a line (default), or the JSON objects that `read` prints.",
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            min=1,
            max=10_000,
            help="Create a missing topic with N partitions.",
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", min=0, help="Partition id; by default chosen by the key."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="Chooses the partition; without it partitions take turns."),
    ] = None,
    filter_item: Annotated[
        str | None, typer.Option("--filter-item", help="Filter item of every message.")
    ] = None,
    durability: Annotated[
        DurabilityName,
        typer.Option(
            "--durability", "-d", help="The level that each batch reaches before the next."
        ),
    ] = DurabilityName.PAGE_CACHE,
    progress: ProgressOption = True,
    format: FormatOption = Format.TEXT,
) -> None:
    """Append lines or JSON Lines to a topic. What arrives is appended at once.

    JSON Lines have body (base64) or text, and may have partition (or partition_id), key,
    filter_item, attributes, received_time (ms): what `read` and `dump` print can be appended.
    """
    from tubestore.cli import write

    defaults = {"partition": partition, "key": key, "filter_item": filter_item}
    with bars(progress):
        write.append(
            root,
            topic,
            files or ["-"],
            input=input,
            partitions=partitions,
            defaults={name: value for name, value in defaults.items() if value is not None},
            durability=durability.value,
            format=format,
        )


@app.command()
def copy(
    root: RootArgument,
    source: TopicArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The topic to append to.")],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="ROOT", help="The store of TARGET, if another; made if new."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", metavar="TIME", help="Received at or after.")
    ] = None,
    end: EndOption = None,
    filter_item: FilterItems = None,
    new_times: Annotated[
        bool, typer.Option("--new-times", help="As received now; else the times are kept.")
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            min=1,
            max=10_000,
            help="Create a missing TARGET with N partitions, not with those of TOPIC.",
        ),
    ] = None,
    progress: ProgressOption = True,
    format: FormatOption = Format.TEXT,
) -> None:
    """Append the messages of a topic to another one.

    All, or a replay of some time. A missing TARGET is made. Each partition keeps its order. Damaged
    messages are left out: exit code 1. Messages that were copied before are appended again.
    """
    from tubestore.cli import write

    chosen = {"start": start, "end": end, "filter_items": filter_item or None}
    with bars(progress):
        complete = write.copy(
            root, source, target, to, chosen, keep_times=not new_times, partitions=partitions,
            format=format,
        )  # fmt: skip
    if not complete:
        raise Leave(1)


@app.command()
@printing_command("limit format int64 text out summary progress")
def read(
    how: How,
    root: RootArgument,
    topic: TopicArgument,
    partition: PartitionOption = None,
    offset: Annotated[
        str, typer.Option("--offset", help="earliest, latest, or an offset of a message.")
    ] = "earliest",
    store_id: StoreIdOption = None,
    filter_item: FilterItems = None,
    start: Annotated[
        str | None, typer.Option("--start", metavar="TIME", help="Received at or after.")
    ] = None,
    end: EndOption = None,
    verify: Verify = False,
) -> None:
    """Read one partition, or the whole topic, as it is now.

    A TIME is ms since the epoch, ISO-8601 with a zone, or an age such as -2h.
    """
    from tubestore.cli import read as command

    chosen = command.ReadRequest(partition, store_id, offset, filter_item, start, end, verify)
    command.read(root, topic, chosen, **how)


@app.command()
@printing_command("long-format int64 text out")
def tail(
    how: How,
    root: RootArgument,
    topic: TopicArgument,
    partition: PartitionOption = None,
    lines: LinesOption = 10,
    follow: FollowOption = False,
    idle_timeout: IdleTimeoutOption = None,
    filter_item: FilterItems = None,
) -> None:
    """Show the last messages of a topic. With -f also those that are appended."""
    from tubestore.cli import tail as command

    wanted = command.Wanted(lines, partition, filter_item, follow, idle_timeout)
    command.tail(root, topic, wanted, **how)


@app.command()
@printing_command("format int64 out")
def stat(
    how: How,
    root: RootArgument,
    topic: TopicOption = None,
    store_id: StoreIdOption = None,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print in Prometheus' text format.")
    ] = False,
) -> None:
    """Show each shard's bounds and files. Nothing is opened or verified."""
    from tubestore.cli import inspect

    inspect.stat(root, topic, store_id, prometheus, **how)


@app.command()
@printing_command("limit format int64 text out summary progress")
def dump(
    how: How,
    root: RootArgument,
    topic: TopicOption = None,
    store_id: StoreIdOption = None,
    partition: PartitionOption = None,
    offset: Annotated[
        int, typer.Option("--offset", min=0, help="Leave out messages below this index offset.")
    ] = 0,
    raw: Annotated[
        bool, typer.Option("--raw", help="Show payloads as stored, not as attributes and body.")
    ] = False,
    trust_index: Annotated[
        bool,
        typer.Option(
            "--trust-index", help="Show entries as they are; do not search for lost ones."
        ),
    ] = False,
) -> None:
    """Show every message of a store, also of a damaged one.

    It may have crashed, or not open at all: an unreadable entry is a row with a state other than
    ok. Nothing is changed, no lock is taken.
    """
    from tubestore.cli import inspect

    chosen = {
        "topic": topic,
        "store_id": store_id,
        "partition": partition,
        "start_at": offset,
        "raw": raw,
        "trust_index": trust_index,
    }
    inspect.dump(root, chosen, **how)


@app.command()
@printing_command("limit format out summary progress")
def check(
    how: How,
    root: RootArgument,
    topic: TopicOption = None,
    store_id: StoreIdOption = None,
    accept: AcceptOption = False,
    everything: AllOption = False,
) -> None:
    """Verify a store's files. Exit code 1 if there are findings that were not accepted.

    Nothing is changed, no lock is taken; a writer may be at work. --accept acknowledges known
    damage in .tubestore/accepted.json.
    """
    from tubestore.cli import inspect

    inspect.check(root, topic, store_id, accept=accept, everything=everything, **how)


@app.command()
@printing_command("format out summary progress")
def repair(
    how: How,
    root: RootArgument,
    apply: Annotated[
        bool, typer.Option("--apply", help="Carry it out; without it only print the plan.")
    ] = False,
    topic: TopicOption = None,
    store_id: StoreIdOption = None,
) -> None:
    """Mend a damaged store. Prints a row for each action.

    It may not open at all. A dry run unless --apply is given; exit code 1 if it finds something
    to do. What is cut or replaced is first copied to .tubestore/quarantine; offsets stay.
    """
    from tubestore.cli import inspect

    inspect.repair(root, topic, store_id, apply=apply, **how)


@app.command()
@printing_command("format out progress")
def recover(
    how: How,
    root: RootArgument,
) -> None:
    """Open all shards for writing, as after a crash.

    Prints a row for each shard. Finishes a job that is half published. Afterwards a real
    broker may open the directory.
    """
    from tubestore.cli import publish

    publish.recover(root, **how)


@app.command()
def publish(
    root: RootArgument,
    job_id: Annotated[
        str, typer.Argument(metavar="JOB", help="The job's id; it is published once.")
    ],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES", help="Files of messages: .parquet, .arrow, .jsonl or .csv."
        ),
    ] = None,
    staged: Annotated[
        str | None,
        typer.Option(
            "--staged",
            metavar="FILE",
            help="JSON Lines: the descriptions of files that tasks have staged.",
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Topic of rows without a column topic.")
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Make topics that are missing or too small.")
    ] = False,
    progress: ProgressOption = True,
    format: FormatOption = Format.TEXT,
) -> None:
    """Load files in one atomic step.

    All of their rows are in the store, or none. The files have the columns of an append, and
    topic; or tasks have staged them already. The same JOB again changes nothing and prints what
    became of it.
    """
    from tubestore.cli import publish

    with bars(progress):
        publish.publish(
            root, job_id, files or [], staged=staged, topic=topic, create=create, format=format
        )
