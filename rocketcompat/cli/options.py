"""What all commands share: the directory that they name, how they print, and its options.

    @store_command()
    def queues(given: Given, trust_queues: TrustQueues = False) -> None:
        emit_rows(rows_of(given.directory()), COLUMNS, given.output)

`store_command` puts ROOT in front of a command's own parameters and the shared options behind.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketcompat import formats
from tubestore.cli.kit.arguments import (
    EndOption,
    ProgressOption,
    note,
    parse_bound,
    printing,
    root_of,
)
from tubestore.cli.kit.errors import Leave, UsageMistake
from tubestore.cli.kit.options import REQUIRED, Shared, with_shared
from tubestore.cli.kit.output import (
    Format,
    FormatOption,
    Int64,
    Int64Option,
    LimitOption,
    Output,
    SummaryOption,
    TextOption,
)
from tubestore.cli.kit.progress import watching
from tubestore.cli.kit.text import Column
from tubestore.clock import time_ms

if TYPE_CHECKING:
    from rocketcompat.inspect.directory import StoreDirectory
    from rocketcompat.inspect.selection import Selection

Root = Annotated[
    str, typer.Argument(metavar="ROOT", help="The store's root, which contains commitlog/.")
]
StoreOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE",
        help="A store option with RocketMQ's name, such as maxHashSlotNum=5000000.",
    ),
]  # fmt: skip
#: Without the letter, which is that of a store's options here.
OutFile = Annotated[
    str | None,
    typer.Option("--out", metavar="FILE", help="Write to a file; it is there when it is complete."),
]
ConfFile = Annotated[
    str | None, typer.Option("--conf", metavar="FILE", help="A broker's configuration file.")
]
TrustQueues = Annotated[
    bool,
    typer.Option(
        "--trust-queues", help="Trust the queues' files. Without it the whole log is read."
    ),
]


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics of ROOT's queues that begin so; for the shell: quick and quiet."""
    try:
        names = os.listdir(os.path.join(root_of(context), formats.CONSUME_QUEUE_DIRECTORY))
    except OSError:
        return []
    return sorted(name for name in names if name.isprintable() and name.startswith(incomplete))


Topic = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="Only this topic.", autocompletion=complete_topic),
]
Queue = Annotated[int | None, typer.Option("--queue", "-q", min=0, help="Only this queue.")]
TheTopic = Annotated[
    str, typer.Option("--topic", "-t", help="The topic.", autocompletion=complete_topic)
]
TheQueue = Annotated[int, typer.Option("--queue", "-q", min=0, help="The queue.")]
StartOption = Annotated[
    str | None,
    typer.Option("--start", metavar="TIME", help="Stored at or after: ms, ISO-8601, -2h."),
]
#: What `--start` was called.
FormerStart = Annotated[str | None, typer.Option("--begin", hidden=True)]
Tags = Annotated[
    str | None, typer.Option("--tags", help='Only messages with one of these tags: "A || B".')
]
Key = Annotated[
    str | None, typer.Option("--key", "-k", help="Only messages with this key or unique key.")
]
Grep = Annotated[
    str | None,
    typer.Option("--grep", metavar="REGEX", help="Only messages with a match in the body."),
]
Decompress = Annotated[
    bool, typer.Option("--decompress", help="Unpack bodies that the producer compressed.")
]

#: The options by which commands choose records of the log.
CONDITIONS: dict[str, Shared] = {
    option: (name, kind, default)
    for option, name, kind, default in (
        ("start", "begin", StartOption, None),
        ("former start", "former_begin", FormerStart, None),
        ("end", "before", EndOption, None),
        ("topic", "topic", Topic, None),
        ("queue", "queue_id", Queue, None),
        ("tags", "tags", Tags, None),
        ("key", "key", Key, None),
        ("grep", "pattern", Grep, None),
        ("decompress", "unpack", Decompress, False),
    )
}

#: The options behind a command's own: name, annotation, default.
_SHARED: tuple[Shared, ...] = (
    ("format", FormatOption, Format.TEXT),
    ("int64", Int64Option, Int64.NUMBER),
    ("text", TextOption, False),
    ("limit", LimitOption, None),
    ("summary", SummaryOption, None),
    ("out", OutFile, None),
    ("progress", ProgressOption, True),
    ("option", StoreOptions, None),
    ("conf", ConfFile, None),
)

#: The columns of a message, with their kinds for the output.
MESSAGE_COLUMNS = tuple(Column(column.name, column.kind) for column in formats.MESSAGE_COLUMNS)


#: A command that took longer names the option that is quicker.
_LONG_SECONDS = 2.0


@contextlib.contextmanager
def _announced(
    watch: Callable[[str], contextlib.AbstractContextManager[Any]], text: str, what: str
) -> Iterator[Any]:
    """Print a note behind a long scan where no bar shows it."""
    begun = time.monotonic()
    with watch(what) as found:
        yield found
    if time.monotonic() - begun >= _LONG_SECONDS and not sys.stderr.isatty():
        note(text)


@dataclass(frozen=True, slots=True)
class Given:
    """The values of a command's shared arguments."""

    root: str
    output: Output
    options: list[str] | None = None
    conf: str | None = None
    #: The values of `CONDITIONS`, as far as the command has them.
    conditions: Mapping[str, Any] = field(default_factory=dict)
    address: str = ""
    #: The command's option that does without a scan of the log; "" if it has none.
    without_scan: str = ""
    #: The file to print to; None for the standard output.
    out: str | None = None
    progress: bool = True

    def directory(self, *, lost_log: bool = False) -> StoreDirectory:
        """Open the directory, with the options of the command line over those of the file."""
        from rocketcompat.inspect.directory import StoreDirectory

        directory = StoreDirectory(self.root, self.store_options(), lost_log=lost_log)
        directory.watching = partial(watching, in_bytes=True)
        if self.without_scan:
            more = f" (not read with {self.without_scan})"
            directory.watching = lambda what: watching(f"{what}{more}", in_bytes=True)
            text = f"the whole log was read; {self.without_scan} does without, and trusts the files"
            directory.watching = partial(_announced, directory.watching, text)
        return directory

    def selection(self, **more: Any) -> Selection:
        """Return which records of the log the command is to choose."""
        from rocketcompat.inspect.selection import Selection

        start, end = (parse_bound(self.conditions.get(n)) for n in ("begin", "before"))
        bounds = {"begin": time_ms(start, "start"), "before": time_ms(end, "end")}
        return Selection(**{**self.conditions, **bounds, **more})

    def store_options(self) -> dict[str, Any]:
        """Return the store's options, with RocketMQ's names."""
        return {**_from_file(self.conf), **_from_pairs(self.options)}


def store_command(
    *,
    limit: bool = True,
    bodies: bool = False,
    format_option: Any = FormatOption,
    conditions: str = "",
    address: Any = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function with `Given` as its first parameter.

    `bodies`: it prints messages, and has --text. Without `limit` there is no --limit;
    `format_option` may leave `-f` to the command;
    `conditions` names those of `CONDITIONS` that `Given.selection` has; `address` is an argument
    before ROOT.
    """

    names = conditions.split()
    chosen = [CONDITIONS[name] for name in names]
    if "start" in names:
        chosen.append(CONDITIONS["former start"])
    left_out = {name for name, has in (("limit", limit), ("text", bodies)) if not has}

    def given(without_scan: str, taken: dict[str, Any]) -> Given:
        limit = taken.get("limit")
        text = taken.get("text", False)
        output = Output(taken["format"], taken["int64"], limit, taken["summary"], text)
        found = {name: taken[name] for name, _, _ in chosen}
        former = found.pop("former_begin", None)
        if former is not None and found["begin"] is None:
            found["begin"] = former
        place = taken.get("address", "")
        return Given(
            taken["root"], output, taken["option"], taken["conf"], found, place, without_scan,
            taken.get("out"), taken["progress"],
        )  # fmt: skip

    first: list[Shared] = [] if address is None else [("address", address, REQUIRED)]
    first.append(("root", Root, REQUIRED))

    def command(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function).parameters
        trust = next((name for name in own if name.startswith("trust_")), "")
        option = f"--{trust}".replace("_", "-") if trust else ""
        shared = [row for row in _SHARED if row[0] not in {*left_out, *own}]
        shared[0] = ("format", format_option, Format.TEXT)
        return with_shared(_printed(function), [*chosen, *shared], partial(given, option), first)

    return command


def _printed(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command print to the file that it was given, also where it ends with a code."""

    @functools.wraps(function)
    def command(given: Given, **own: Any) -> None:
        leaving: Leave | None = None
        output = given.output
        with printing(given.out, output.format, progress=given.progress):
            try:
                function(given, **own)
            except Leave as code:
                leaving = code
        if leaving is not None:
            raise leaving

    return command


def _from_pairs(options: list[str] | None) -> dict[str, Any]:
    pairs = {}
    for option in options or []:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise UsageMistake(f"--option {option!r}: NAME=VALUE is expected")
        pairs[name.strip()] = value.strip()
    return pairs


def _from_file(conf: str | None) -> dict[str, Any]:
    """Return the options of a broker's file that matter for its store's files."""
    if conf is None:
        return {}
    import javaproperties

    from rocketcompat.options import MessageStoreConfig, camel_to_snake, refuse_dledger_option

    known = MessageStoreConfig.__dataclass_fields__
    pairs = javaproperties.loads(Path(conf).read_text(encoding="utf-8", errors="replace"))
    refuse_dledger_option(pairs)
    return {name: value for name, value in pairs.items() if camel_to_snake(name) in known}
