"""What a command prints, declared as columns, and as people read it.

A command declares the columns of its rows (`Column`). People get them aligned, with times in UTC
and without control characters.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from shutil import get_terminal_size
from typing import Any, Literal

from tubestore.cli.kit.errors import printable
from tubestore.values import age_text, size_text

#: Rows that set the widths of the columns.
_TEXT_WINDOW = 100
_TEXT_WIDTH_MAX = 60
#: Bytes of a body in a line of `tail`.
_BODY_SHOWN = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = Mapping[str, Any]
Kind = Literal[
    "int32", "int64", "int64s", "ms", "age", "size", "text", "line", "bytes", "map", "row", "rows"
]
#: Kinds that are 64-bit integers for programs.
INT64_KINDS = ("int64", "ms", "age", "size")


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a row: its name and its kind; "rows" and "row" have columns of their own.

    "int64s" is a list of int64 with nulls allowed, "map" a dict of texts or null, "line" a text
    that is shown whole, however long it is. Programs get a number of these, and people a text:
    "ms", a time in ms since the epoch, in UTC; "age", ms; "size", bytes.
    """

    name: str
    kind: Kind = "text"
    columns: tuple[Column, ...] = ()


def write_text(rows: Iterable[Row], columns: Sequence[Column]) -> None:
    """Print aligned columns; the first rows set the widths, later ones may be wider.

    On a terminal that is too narrow for the columns, each row is a block of lines, a field each.
    """
    source = iter(rows)
    window = [_cells(row, columns) for row in islice(source, _TEXT_WINDOW)]
    names = [c.name for c in columns]
    widths = [max(map(len, cells)) for cells in zip(names, *window, strict=True)]
    bold = _bold()
    if sys.stdout.isatty() and sum(widths) + 2 * (len(widths) - 1) > get_terminal_size().columns:
        margin = max(map(len, names))
        for number, cells in enumerate(chain(window, (_cells(row, columns) for row in source)), 1):
            print(bold(f"-- {number}"))
            for name, cell in zip(names, cells, strict=True):
                print(f"{name.ljust(margin)}  {cell}")
        return
    right = [c.kind in ("int32", *INT64_KINDS) for c in columns]
    print(bold(_line(names, widths, right)))
    for cells in window:
        print(_line(cells, widths, right))
    for row in source:
        print(_line(_cells(row, columns), widths, right))


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    places = zip(cells, widths, right, strict=True)
    return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in places).rstrip()


def _cells(row: Row, columns: Sequence[Column]) -> list[str]:
    return [_cell(row.get(c.name), c.kind) for c in columns]


def _cell(value: Any, kind: Kind = "text") -> str:
    """Return a value on one line, without control characters, cut when long."""
    whole = kind == "line"
    if value is None:
        return "-"
    if kind in _TEXTS:
        return _TEXTS[kind](value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    elif isinstance(value, list):
        value = ", ".join("-" if part is None else str(part) for part in value)
    elif isinstance(value, Mapping):
        value = " ".join(f"{k}={v}" for k, v in value.items())
    text = str(value)
    shown = text if whole else text[:_TEXT_WIDTH_MAX]
    clean = printable(shown)
    return clean if len(shown) == len(text) else clean + "…"


def message_line(words: Iterable[Any], body: bytes) -> str:
    """Return one line of `tail`: words, then the beginning of a body."""
    text = body[:_BODY_SHOWN].decode("utf-8", "replace")
    return printable(" ".join(map(str, [*words, text])))


def time_text(ms: int) -> str:
    """Return ms since the epoch as people read it, in UTC; the number if no calendar has it.

    >>> time_text(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return str(ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_TEXTS: Mapping[Kind, Callable[[int], str]] = {
    "ms": time_text,
    "age": age_text,
    "size": size_text,
}


def write_object_text(value: Row, columns: Sequence[Column], indent: str = "") -> None:
    """Print an object's plain fields one a line, then the objects and the rows in it."""
    nested = {c.name: c for c in columns if c.kind in ("row", "rows")}
    kinds = {c.name: c.kind for c in columns}
    plain = {n: v for n, v in value.items() if n not in nested}
    width = max(map(len, plain), default=0)
    for name, content in plain.items():
        print(f"{indent}{name.ljust(width)}  {_cell(content, kinds.get(name, 'text'))}")
    for name, column in nested.items():
        if column.kind == "row":
            print(f"{indent}{name}")
            write_object_text(value[name] or {}, column.columns, f"{indent}  ")
            continue
        rows = [row or {} for row in value[name]]
        if rows:
            print()
            write_text(rows, column.columns)


def _bold() -> Callable[[str], str]:
    """Return what makes a header bold: nothing, unless a terminal is there that wants it."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in (None, "dumb")
    if plain or not sys.stdout.isatty():
        return lambda text: text
    return lambda text: f"\x1b[1m{text}\x1b[0m"
