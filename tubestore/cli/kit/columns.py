"""How a command declares what it prints: the columns of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Row = Mapping[str, Any]
Kind = Literal["int32", "int64", "int64s", "ms", "text", "line", "bytes", "map", "row", "rows"]


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a row: its name and its kind; "rows" and "row" have columns of their own.

    "int64s" is a list of int64 with nulls allowed, "ms" a time in ms since the epoch, which
    people are shown in UTC, "map" a dict of texts or null, "line" a text that is shown whole,
    however long it is.
    """

    name: str
    kind: Kind = "text"
    columns: tuple[Column, ...] = ()
