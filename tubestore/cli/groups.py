"""`tubestore consume` and `tubestore groups`: messages for a group, and its positions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

import typer

from tubestore.cli.kit.arguments import (
    How,
    RootArgument,
    check_topic,
    complete_topic,
    emit_found,
    given_age,
    note,
    printing,
    printing_command,
    root_of,
    seconds,
)
from tubestore.cli.kit.errors import NotThere, UsageMistake
from tubestore.cli.kit.output import Format, Output, emit_rows
from tubestore.cli.kit.text import Column, Row, message_line, time_text
from tubestore.core.paths import OWN_DIRECTORY
from tubestore.disks.roots import disk_of
from tubestore.record.names import GROUPS_DIRECTORY
from tubestore.values import parse_time

app = typer.Typer(help="Groups of consumers: members, positions, lag.", no_args_is_help=True)


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups of ROOT that begin so; for the shell: quick and quiet."""
    try:
        names = os.listdir(os.path.join(root_of(context), OWN_DIRECTORY, GROUPS_DIRECTORY))
    except OSError:
        return []
    names = [name for name in names if name.isprintable() and not name.startswith(".")]
    return sorted(name for name in names if name.startswith(incomplete))


GroupArgument = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="The group's name.", autocompletion=complete_group),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="Only this topic; may be repeated."),
]

_GROUPS = (
    Column("group"), Column("strategy"), Column("members", "int32"), Column("partitions", "int32"),
    Column("lag", "int64"), Column("committed", "ms"), Column("problems", "int32"),
)  # fmt: skip
_PARTITIONS = (
    Column("topic"), Column("partition", "int32"), Column("member"), Column("position", "int64"),
    Column("end", "int64"), Column("lag", "int64"), Column("waiting_since", "ms"),
)  # fmt: skip
_MEMBERS = (
    Column("id"), Column("topics"), Column("partitions", "int32"), Column("session_ms", "int64"),
    Column("silent_ms", "int64"),
)  # fmt: skip
_MOVED = (
    Column("topic"), Column("partition", "int32"), Column("before", "int64"),
    Column("after", "int64"),
)  # fmt: skip
_EXPIRED = (Column("name"), Column("used_ms", "ms"), Column("positions", "int64"))
_LINES = (Format.TEXT, Format.JSONL, Format.CSV)


class Consumed(NamedTuple):
    """Which messages are wanted, and what becomes of their positions."""

    topics: list[str]
    group: str | None
    start: str
    commit: bool
    limit: int | None
    idle_timeout: float | None
    filter_items: list[str] | None


@app.command("list")
@printing_command("format int64 out")
def list_(how: How, root: RootArgument) -> None:
    """List the groups of a store: members, partitions with a position, messages behind."""
    with _reading(root) as store, printing(**how) as output:
        found = [store.describe_group(name) for name in store.groups()]
        rows = (
            {
                "group": each.name,
                "strategy": each.strategy,
                "members": len(each.members),
                "partitions": sum(row.position is not None for row in each.partitions),
                "lag": sum(row.lag or 0 for row in each.partitions),
                "committed": each.committed_ms or None,
                "problems": len(each.problems),
            }
            for each in found
        )
        emit_found(rows, _GROUPS, output, "no groups in this store")


@app.command()
@printing_command("format int64 out")
def show(
    how: How,
    root: RootArgument,
    group: GroupArgument,
    members: Annotated[bool, typer.Option("--members", help="A row a member.")] = False,
) -> None:
    """Show a group's partitions: the member that has each, its position and lag."""
    with _reading(root) as store, printing(**how) as output:
        _check_group(store, group)
        found = store.describe_group(group)
        for problem in found.problems:
            note(f"{problem}")
        if members:
            rows = [{**asdict(row), "topics": ",".join(row.topics)} for row in found.members]
            emit_rows(rows, _MEMBERS, output)
        else:
            partitions = [asdict(row) for row in found.partitions]
            for row in partitions:
                row["waiting_since"] = row.pop("waiting_since_ms")
            emit_rows(partitions, _PARTITIONS, output)


@app.command()
@printing_command("format int64 out")
def reset(
    how: How,
    root: RootArgument,
    group: GroupArgument,
    to: Annotated[
        str | None, typer.Option("--to", metavar="PLACE", help="first, last, or an offset.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="The first message from then on.")
    ] = None,
    topic: Topics = None,
    apply: Annotated[bool, typer.Option("--apply", help="Set them; else nothing changes.")] = False,
) -> None:
    """Set the positions of a group anew. Without --apply, show what would change.

    The group must have no living member. It is made if it is new and --topic names topics.
    """
    from tubestore.clock import SystemClock

    place: Any = None
    if to is not None:
        place = int(to) if to.isascii() and to.isdecimal() else to
        if place not in ("first", "last") and not isinstance(place, int):
            raise UsageMistake(f"--to {to!r}: first, last, or an offset")
    if (to is None) == (time is None):
        raise UsageMistake("one of --to and --time")
    at = None if time is None else parse_time(time, SystemClock().now_ms())
    for name in topic or ():
        check_topic(root, name)
    with _reading(root) as store, printing(**how) as output:
        if not topic:
            _check_group(store, group)
        moved = store.reset_group(group, place, time=at, topics=topic, dry_run=not apply)
        _emit(list(map(asdict, moved)), _MOVED, output)
        _say_moved(len(moved), apply)


@app.command("set")
def set_(
    root: RootArgument,
    group: GroupArgument,
    retention_waits: Annotated[
        bool | None,
        typer.Option(
            "--retention-waits/--no-retention-waits",
            help="Remove no message that the group has not read.",
        ),
    ] = None,
    expire_after: Annotated[
        str | None,
        typer.Option(
            "--expire-after", metavar="AGE", help="Delete it so long after its last use; or never."
        ),
    ] = None,
) -> None:
    """Change the settings of a group, and print them."""
    from tubestore.values import Keep, age_text

    if retention_waits is None and expire_after is None:
        raise UsageMistake("nothing to set: --retention-waits or --expire-after")
    age: Any = Keep.AS_IT_IS
    if expire_after is not None:
        age = None if expire_after == "never" else given_age(expire_after)
    with _reading(root) as store:
        found = store.change_group(
            group,
            retention_waits=Keep.AS_IT_IS if retention_waits is None else retention_waits,
            expire_after=age,
        )
    limit = found.expire_after_ms
    print(f"retention waits: {'yes' if found.retention_waits else 'no'}")
    print(f"expires after: {'never' if limit is None else age_text(limit)}")


@app.command()
@printing_command("format int64 out")
def expire(
    how: How,
    root: RootArgument,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="AGE", help="All unused for so long, whatever they set."),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Delete them; else they stay.")] = False,
) -> None:
    """Delete the groups that have expired. Without --apply, show which would go."""
    age = given_age(after)
    with _reading(root) as store, printing(**how) as output:
        found = [asdict(each) for each in store.expire_groups(age, dry_run=not apply)]
        _emit(found, _EXPIRED, output)
        note(f"{len(found)} groups " + ("deleted" if apply else "would be deleted"))


@app.command("export")
def export_(
    root: RootArgument,
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GROUPS", help="Their names; all by default.", autocompletion=complete_group
        ),
    ] = None,
) -> None:
    """Print the positions of groups as TubeMQ's offsets.meta."""
    with _reading(root) as store:
        for name in groups or ():
            _check_group(store, name)
        print(store.export_groups(groups or None))


@app.command("import")
@printing_command("format int64 out")
def import_(
    how: How,
    root: RootArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A TubeMQ broker's offsets.meta.")],
    apply: Annotated[bool, typer.Option("--apply", help="Set them; else nothing changes.")] = False,
) -> None:
    """Set positions from TubeMQ's offsets.meta. Without --apply, show what would change."""
    with open(file, encoding="utf-8", errors="replace") as opened:
        text = opened.read()
    with _reading(root) as store, printing(**how) as output:
        moved = store.import_groups(text, dry_run=not apply)
        rows = [{"group": name, **asdict(row)} for name, some in moved.items() for row in some]
        _emit(rows, (Column("group"), *_MOVED), output)
        _say_moved(len(rows), apply)


@app.command()
def delete(
    root: RootArgument,
    group: GroupArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a group with its positions. It must have no living member."""
    with _reading(root) as store:
        _check_group(store, group)
        found = store.describe_group(group)
        count = sum(row.position is not None for row in found.partitions)
        if not yes:
            typer.confirm(f"Delete group {group!r} with {count} positions?", abort=True, err=True)
        store.delete_group(group)


@printing_command("limit long-format int64 text out")
def consume(
    how: How,
    root: RootArgument,
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPICS", help="Their names.", autocompletion=complete_topic),
    ],
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="As a member of this group.",
            autocompletion=complete_group,
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--start", metavar="PLACE", help="earliest, latest, or a time: -2h, ISO-8601."
        ),
    ] = "earliest",
    commit: Annotated[
        bool, typer.Option("--commit/--no-commit", help="Commit what was printed.")
    ] = True,
    idle_timeout: Annotated[
        float | None,
        typer.Option(
            "--idle-timeout",
            parser=seconds,
            metavar="SECONDS",
            help="Stop after so many SECONDS without a message.",
        ),
    ] = None,
    filter_item: Annotated[
        list[str] | None,
        typer.Option("--filter-item", help="Only messages with this filter item; may be repeated."),
    ] = None,
) -> None:
    """Print messages as they come, alone or as a member of a group.

    --start counts for partitions without a position. --idle-timeout 0 stops at the end. A message
    is committed after it was printed.
    """
    limit = how.pop("limit")
    wanted = Consumed(topics, group, start, commit, limit, idle_timeout, filter_item)
    _consume(root, wanted, **how)


def _check_group(store: Any, group: str) -> None:
    """Raise NotThere for a group that the store does not have."""
    there = store.groups()
    if group not in there:
        raise NotThere(f"group {group!r} in this store", there, group)


def _emit(rows: Sequence[Row], columns: tuple[Column, ...], output: Output) -> None:
    """Print rows; a note behind them counts them, so that text without a row has no head."""
    if rows or output.format is not Format.TEXT:
        emit_rows(rows, columns, output)


def _say_moved(count: int, apply: bool) -> None:
    if apply:
        note(f"{count} positions set")
    else:
        note(f"{count} positions would change" + ("; --apply sets them" if count else ""))


def _reading(root: str) -> Any:
    import tubestore
    from tubestore.segments.listing import check_root

    check_root(root, disk_of(root))
    return tubestore.open(root, mode="r")


def _consume(root: str, wanted: Consumed, *, out: str | None, **how: Any) -> None:
    from tubestore.cli.read import COLUMNS
    from tubestore.clock import SystemClock

    if how["format"] not in _LINES:
        raise UsageMistake("consume prints text, jsonl or csv")
    start: Any = wanted.start
    if start not in ("earliest", "latest"):
        start = parse_time(start, SystemClock().now_ms())
    with _reading(root) as store, printing(out, **how) as output:
        for topic in wanted.topics:
            check_topic(root, topic)
        consumer = store.consumer(
            wanted.group,
            wanted.topics,
            start=start,
            filter_items=wanted.filter_items or None,
            auto_commit=wanted.commit,
        )
        with consumer:
            rows = _rows(consumer, wanted)
            if output.format is Format.TEXT:
                shown = False
                for row in rows:
                    print(_line(row), flush=True)
                    shown = True
                if not shown and wanted.limit != 0:
                    note("no such messages")
            else:
                emit_rows(rows, COLUMNS, output)


def _rows(consumer: Any, wanted: Consumed) -> Iterator[Row]:
    from tubestore.cli.read import rows_of

    left = wanted.limit
    while left is None or left > 0:
        timeout = 3600.0 if wanted.idle_timeout is None else wanted.idle_timeout
        polled = consumer.poll(1000 if left is None else min(left, 1000), timeout=timeout)
        for gone in polled.removed:
            note(
                f"{gone.topic}/{gone.partition}: retention removed the messages from"
                f" {gone.position} to {gone.first}"
            )
        if not len(polled) and not polled.removed and wanted.idle_timeout is not None:
            return
        for batch in polled.table.to_batches():
            yield from rows_of(batch)
        left = None if left is None else left - len(polled)
        sys.stdout.flush()


def _line(row: Row) -> str:
    words = [time_text(row["received_time"]), f"{row['topic']}/{row['partition']}@{row['offset']}"]
    words += [f"[{row['filter_item']}]"] if row["filter_item"] else []
    words += [row["state"]] if row["state"] != "ok" else []
    return message_line(words, row["body"] or b"")
