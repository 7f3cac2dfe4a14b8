"""Arguments and options that several commands take, and where their output goes."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from tubestore.cli.kit.errors import NotThere, UsageMistake, printable
from tubestore.cli.kit.options import Shared, with_shared
from tubestore.cli.kit.output import (
    Format,
    FormatOption,
    Int64,
    Int64Option,
    LimitOption,
    LongFormat,
    Output,
    Summary,
    SummaryOption,
    TextOption,
    emit_rows,
    report,
)
from tubestore.cli.kit.progress import bars
from tubestore.cli.kit.text import Column, Row
from tubestore.clock import SystemClock
from tubestore.core.paths import OWN_DIRECTORY
from tubestore.record.names import parse_store_key, store_key
from tubestore.record.state_files import read_topics
from tubestore.values import checked_seconds, parse_age, parse_time

RootArgument = Annotated[str, typer.Argument(metavar="ROOT", help="The store's directory.")]


def root_of(context: typer.Context) -> str:
    """Return the ROOT of a command line that the shell wants to complete; "" without one."""
    # Arguments before an option that waits for its value have not been parsed.
    return str(context.params.get("root") or next(iter(context.args), ""))


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics of ROOT that begin so; for the shell, so it has to be quick and quiet."""
    names = (name for name in _topics_of(root_of(context)) or () if name.isprintable())
    return sorted(name for name in names if name.startswith(incomplete))


def is_empty(root: str) -> bool:
    """True if a directory has no entries; NotAStore if it is missing, or something else."""
    from tubestore.disks.roots import disk_of
    from tubestore.segments.listing import check_root

    vfs = disk_of(root)
    check_root(root, vfs)
    return not vfs.entries(root)


def check_topic(root: str, topic: str | None, store_id: int | None = None) -> None:
    """Raise NotThere for a topic or a shard that a directory lacks.

    A slip of the hand would otherwise look like a sound store.
    """
    there = _topics_of(root)
    if topic is not None and there == set() and is_empty(root):
        raise NotThere(f"topic {topic!r}: {root} is empty, there is no store")
    if topic is not None and there and topic not in there:
        raise NotThere(f"topic {topic!r} in this store", sorted(there), topic)
    if store_id is not None:
        shards = [key for key in _shards_in(root) if topic in (None, key[0])]
        if shards and store_id not in {number for _, number in shards}:
            text = f"shard {store_id} of topic {topic!r}" if topic else f"shard {store_id}"
            raise NotThere(text, sorted(store_key(*key) for key in shards))


def _shards_in(root: str) -> list[tuple[str, int]]:
    """Return (topic, store id) of the directories of shards in a root."""
    try:
        return [key for name in os.listdir(root) if (key := parse_store_key(name))]
    except OSError:
        return []


def _topics_of(root: str) -> set[str] | None:
    """Return the topics that files and settings name; None if they cannot be read."""
    try:
        names = {topic for topic, _ in _shards_in(root)}
        with contextlib.suppress(FileNotFoundError):  # a broker's directory
            names |= set(read_topics(lambda f: Path(root, OWN_DIRECTORY, f).read_bytes()).settings)
        return names
    except (OSError, ValueError, KeyError, TypeError):
        return None


TopicArgument = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topic),
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="Only this topic.", autocompletion=complete_topic),
]
StoreIdOption = Annotated[
    int | None, typer.Option("--store-id", min=0, help="Only this shard of the topic.")
]
PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", "-p", min=0, help="Partition id: shard * 10000 + its place there."),
]
OutOption = Annotated[
    str | None,
    typer.Option(
        "--out", "-o", metavar="FILE", help="Write to a file; it is there when it is complete."
    ),
]

#: Both programs' intervals of time are [--start, --end): see `kit.options`.
EndOption = Annotated[
    str | None, typer.Option("--end", metavar="TIME", help="Only messages before this time.")
]
LinesOption = Annotated[
    int, typer.Option("--lines", "-n", min=0, help="Number of messages to begin with.")
]
FollowOption = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Print new messages as they come, until interrupted."),
]


def seconds(value: str | float) -> float:
    """Read an option's wait: seconds, or a text such as "1m"; BadParameter."""
    given: Any = value
    with contextlib.suppress(ValueError):
        given = float(value)
    try:
        return checked_seconds("SECONDS", given)
    except ValueError as error:
        text = f"{value!r}: seconds, or a text such as 500ms or 2m"
        raise typer.BadParameter(text if given is value else str(error)) from None


IdleTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--idle-timeout",
        parser=seconds,
        metavar="SECONDS",
        help="With -f: stop after so many SECONDS without a message.",
    ),
]
ProgressOption = Annotated[
    bool, typer.Option("--progress/--no-progress", help="Show progress; on a terminal only.")
]

#: What a command was given of the options in `printing_command`: arguments of `printing`.
How = dict[str, Any]
_PRINTED: dict[str, Shared] = {
    "limit": ("limit", LimitOption, None),
    "format": ("format", FormatOption, Format.TEXT),
    "long-format": ("format", LongFormat, Format.TEXT),
    "int64": ("int64", Int64Option, Int64.NUMBER),
    "text": ("text", TextOption, False),
    "out": ("out", OutOption, None),
    "progress": ("progress", ProgressOption, True),
    "summary": ("summary", SummaryOption, None),
}


def printing_command(options: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that prints, with `How` as its first parameter."""
    shared = [_PRINTED[name] for name in options.split()]
    return lambda function: with_shared(function, shared, dict)


def add_version(app: typer.Typer, name: str) -> None:
    """Give a program the option --version."""

    def show(wanted: bool) -> None:
        if wanted:
            from tubestore import __version__

            print(f"{name} {__version__}")
            raise typer.Exit

    @app.callback()
    def _options(
        version: bool = typer.Option(
            False, "--version", callback=show, is_eager=True, help="Print the version."
        ),
    ) -> None:
        pass


class DurabilityName(enum.StrEnum):
    """What an acknowledged message survives."""

    MEMORY = "memory"
    PAGE_CACHE = "page_cache"
    FSYNC = "fsync"


class InputFormat(enum.StrEnum):
    """What is appended."""

    LINES = "lines"
    JSONL = "jsonl"


def given_age(text: str | None) -> str | None:
    """Return an age as it was given, or None; InvalidMessage for what is none."""
    if text is not None:
        parse_age(text)
    return text


def parse_bound(text: str | None) -> int | None:
    """Return ms since the epoch of a time that may be left out."""
    return None if text is None else parse_time(text, SystemClock().now_ms())


def below_root(root: str, row: Row) -> Row:
    """Return a row with its path below the root as the caller named the root."""
    from tubestore.core.paths import join
    from tubestore.disks.roots import absolute_root

    inside = row["path"].removeprefix(join(absolute_root(root), ""))
    return {**row, "path": inside if inside == row["path"] else join(root, inside)}


@contextlib.contextmanager
def printing(
    out: str | None,
    format: Format = Format.TEXT,
    int64: Int64 = Int64.NUMBER,
    limit: int | None = None,
    summary: str | None = None,
    text: bool = False,
    progress: bool = True,
) -> Iterator[Output]:
    """Send what is printed inside to the file of `--out`; it appears when it is complete.

    `--out -` is stdout. A binary format goes there too, unless it is a terminal. Without `progress`
    no bars are drawn.
    """
    binary = format in (Format.ARROW, Format.PARQUET)
    if binary and out in (None, "-") and sys.stdout.isatty():
        raise UsageMistake(f"--format {format} is binary: send it to a file (--out) or a program")
    output = Output(format, int64, limit, summary, text)
    if out in (None, "-"):
        with bars(progress):
            yield output
        return
    assert out is not None
    directory = os.path.dirname(out)
    if directory and not os.path.isdir(directory):
        raise UsageMistake(f"{out}: there is no directory {directory}")
    special = os.path.exists(out) and not os.path.isfile(out)  # /dev/null, a named pipe
    target = out if special else f"{out}.part"
    if not special:  # a new file, never what a link of that name leads to
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
    try:
        with (
            open(target, "w" if special else "x", encoding="utf-8", newline="") as file,
            contextlib.redirect_stdout(file),
            bars(progress),
        ):
            yield output
        if not special:
            os.replace(target, out)
    except BaseException:
        if not special:
            with contextlib.suppress(OSError):
                os.unlink(target)
        raise


def note(text: str) -> None:
    """Print a line on stderr; stdout is for data."""
    sys.stdout.flush()
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr)


def emit_found(
    rows: Iterable[Row],
    columns: Sequence[Column],
    output: Output,
    nothing: str | Callable[[], str],
    *,
    position: Callable[[Row], Any] | None = None,
    summary: Summary | None = None,
) -> Summary:
    """As `emit_rows`, but text without a row is the note `nothing` instead of a head of columns."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None and output.format is Format.TEXT:
        note(nothing if isinstance(nothing, str) else nothing())
        summary = summary or Summary()
        report(summary, output)
        return summary
    found = rows if first is None else chain([first], rows)
    return emit_rows(found, columns, output, position=position, summary=summary)


class Planned:
    """Counts a repair's actions: those that mend, and those that only leave something as it is."""

    def __init__(self) -> None:
        #: Actions that change something.
        self.to_do = 0
        #: What no action mends.
        self.left = 0

    def counted(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Pass rows of actions on."""
        for row in rows:
            if row["action"] == "leave":
                self.left += 1
            else:
                self.to_do += 1
            yield row

    def note(self, program: str, *, applied: bool) -> None:
        """Print what the caller can do next."""
        if self.to_do and not applied:
            note("nothing was changed; --apply does it")
        elif self.left and not self.to_do:
            text = "nothing here can be mended: what is listed stays as it is"
            note(f"{text}; `{program} check --accept` acknowledges it")


AcceptOption = Annotated[
    bool, typer.Option("--accept", help="Accept the findings: they no longer count.")
]
AllOption = Annotated[
    bool, typer.Option("--all", help="List accepted findings, too, with that as their severity.")
]


def emit_findings(
    rows: Iterable[Row],
    columns: Sequence[Column],
    output: Output,
    root: str,
    *,
    accept: bool,
    everything: bool,
    partly: bool = False,
) -> bool:
    """Print findings; returns whether one of them is neither accepted before nor now.

    With `accept` they are acknowledged, also those that were before; `partly`: only a part of the
    store was checked, so that what was accepted of the rest stays.
    """
    from tubestore.cli.kit.accepted import AcceptedFindings

    accepted = AcceptedFindings(root)
    if accepted.problem:
        note(accepted.problem)
    found: list[Row] = []
    old = new = 0

    def shown() -> Iterator[Row]:
        nonlocal old, new
        for row in rows:
            if accept:
                found.append(row)
            if row not in accepted:
                new += 1
                yield {**row, "severity": "accepted"} if accept else row
                continue
            old += 1
            if everything:
                yield {**row, "severity": "accepted"}

    source = shown()
    emit_found(source, columns, output, "nothing found")
    for _ in source:  # behind --limit: to be counted, and accepted
        pass
    if accept:
        count = accepted.write(found, keep=partly)
        note(f"{count} findings are accepted now; {accepted.path} names them")
        return False
    if old and not everything:
        note(f"{old} accepted findings are not shown; --all lists them")
    return new > 0


def json_of_line(text: str, **how: Any) -> Any:
    """Parse a line of JSON; ValueError if it is none, or has a number that is too long."""
    try:
        return json.loads(text, **how)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError:
        found = re.search(rf"\d{{{sys.get_int_max_str_digits() + 1},}}", text)
        if found is None:
            raise
        text = f"column {found.start() + 1}: a number of {len(found[0])} digits"
        raise ValueError(text) from None
