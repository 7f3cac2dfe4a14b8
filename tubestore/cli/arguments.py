"""Arguments and options that several commands take, and times as users write them.

Shared by `tubestore` and `rocketcompat`.

| a time | means |
| --- | --- |
| `1767225600000` | ms since the epoch |
| `2026-01-01T00:00:00Z`, `2026-01-01T01:00:00+01:00` | ISO-8601; a zone is needed |
| `-2h`, `-30m`, `-7d`, `-90s`, `-1w` | so long before now |
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated

import typer

from tubestore.cli.errors import UsageMistake
from tubestore.cli.output import Format, Int64, Output

_AGO = re.compile(r"-(\d+)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")

RootArgument = Annotated[str, typer.Argument(metavar="ROOT", help="The store's directory.")]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")]
StoreIdOption = Annotated[
    int | None, typer.Option("--store-id", min=0, help="Only this shard of the topic.")
]
PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", "-p", min=0, help="Partition id: shard * 10000 + its place there."),
]
OutOption = Annotated[
    str | None,
    typer.Option("--out", "-o", metavar="FILE", help="Write to a file; needed for arrow, parquet."),
]


class DurabilityName(enum.StrEnum):
    """What an acknowledged message survives."""

    MEMORY = "memory"
    PAGE_CACHE = "page_cache"
    FSYNC = "fsync"


class InputFormat(enum.StrEnum):
    """What is appended."""

    LINES = "lines"
    JSONL = "jsonl"


def parse_time(text: str | None, option: str = "time") -> int | None:
    """Return ms since the epoch of a time as users write it; UsageMistake if it is none.

    >>> parse_time("2026-01-01T01:00:00+01:00"), parse_time("1767225600000")
    (1767225600000, 1767225600000)
    """
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    if ago:
        return time.time_ns() // 1_000_000 - int(ago[1]) * _SECONDS[ago[2]] * 1000
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        stamp = datetime.fromisoformat(text)
    except ValueError:
        raise UsageMistake(
            f"{option} {text!r}: ms since the epoch, ISO-8601 with a zone, or an age such as -2h"
        ) from None
    if stamp.tzinfo is None:
        raise UsageMistake(f"{option} {text!r} has no zone: add Z for UTC, or +01:00")
    return (stamp - _EPOCH) // timedelta(milliseconds=1)


@contextlib.contextmanager
def printing(
    out: str | None,
    format: Format = Format.TEXT,
    int64: Int64 = Int64.NUMBER,
    limit: int | None = None,
    summary: str | None = None,
) -> Iterator[Output]:
    """Send what is printed inside to the file of `-o`; it appears when it is complete.

    `-o -` is stdout, for programs that take a binary format from a pipe.
    """
    if format in (Format.ARROW, Format.PARQUET) and out is None:
        raise UsageMistake(f"--format {format} is binary: name a file with -o")
    output = Output(format, int64, limit, summary)
    if out in (None, "-"):
        yield output
        return
    assert out is not None
    special = os.path.exists(out) and not os.path.isfile(out)  # /dev/null, a named pipe
    target = out if special else f"{out}.part"
    try:
        with (
            open(target, "w", encoding="utf-8", newline="") as file,
            contextlib.redirect_stdout(file),
        ):
            yield output
        if not special:
            os.replace(target, out)
    except BaseException:
        if not special:
            with contextlib.suppress(OSError):
                os.unlink(target)
        raise


def say(text: str) -> None:
    """Tell a person something on stderr; stdout is for data."""
    sys.stdout.flush()
    print(text, file=sys.stderr)
