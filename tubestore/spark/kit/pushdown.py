"""What Spark pushes down of a `where`: bounds of columns, which a source applies before it reads.

Spark 4.3.0 keeps what one query pushes down for every later query that uses the same DataFrame
(`PythonDataSourceV2.setReadInfo`), and gives wrong rows without a word. So a DataFrame of `read`
has one set of filters for its life: `read` adds a condition that is always true, by which Spark
asks at every use, and a use with other filters is refused (`keep`). The file in which they are
kept lives as long as the process that called `read`.

Nothing here imports Spark: its filters are known by the names of their classes.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from tubestore.errors import InvalidOption

Array = np.ndarray[Any, Any]
#: Spark's setting: without it a reader with `pushFilters` fails.
SETTING = "spark.sql.python.filterPushdown.enabled"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bound:
    """The values of a column that are wanted: some of them, and those in [low, high)."""

    among: frozenset[Any] | None = None
    low: int | None = None
    high: int | None = None

    def both(self, other: Bound) -> Bound:
        """Return what both want."""
        sets = [one for one in (self.among, other.among) if one is not None]
        lows = [one for one in (self.low, other.low) if one is not None]
        highs = [one for one in (self.high, other.high) if one is not None]
        return Bound(
            frozenset.intersection(*sets) if sets else None,
            max(lows, default=None),
            min(highs, default=None),
        )

    def holds(self, value: Any) -> bool:
        """Return whether a value is wanted."""
        return (
            (self.among is None or value in self.among)
            and (self.low is None or value >= self.low)
            and (self.high is None or value < self.high)
        )

    def mask(self, values: Array) -> Array:
        """Return which numbers are wanted."""
        keep = np.ones(len(values), bool)
        if self.among is not None:
            keep &= np.isin(values, np.array(sorted(self.among), np.int64))
        if self.low is not None:
            keep &= values >= self.low
        if self.high is not None:
            keep &= values < self.high
        return keep

    def __str__(self) -> str:
        found = [f"in {sorted(self.among)}"] if self.among is not None else []
        found += [f">= {self.low}"] if self.low is not None else []
        found += [f"< {self.high}"] if self.high is not None else []
        return " and ".join(found)


#: The bound of a column without one.
ALL = Bound()


@dataclass(frozen=True, slots=True)
class Pushed:
    """What was pushed down: a bound for each column of the store that has one."""

    bounds: Mapping[str, Bound] = field(default_factory=dict)

    def of(self, column: str) -> Bound:
        """Return the bound of a column; all values without one."""
        return self.bounds.get(column, ALL)

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def __str__(self) -> str:
        return ", ".join(f"{name} {bound}" for name, bound in sorted(self.bounds.items()))


@dataclass(frozen=True, slots=True)
class Pushable:
    """A column of the store with bounds that the source applies."""

    #: How a value of the filter becomes one that is compared; None if it cannot.
    take: Callable[[Any], Any]
    #: Whether its bound may be some values, and whether it may be an interval.
    sets: bool = False
    ordered: bool = False
    #: False: some rows that are not wanted are read all the same, so Spark filters again.
    exact: bool = True
    #: The column of the store that the bound is of, if it is another one.
    column: str | None = None


def whole(value: Any) -> int | None:
    """Take a whole number."""
    return value if type(value) is int else None


def words(value: Any) -> str | None:
    """Take a text."""
    return value if isinstance(value, str) else None


def moment(value: Any) -> datetime | None:
    """Take a time with a zone."""
    return value if isinstance(value, datetime) and value.tzinfo is not None else None


def push(
    filters: Iterable[Any], columns: Mapping[str, Pushable], source_of: Callable[[str], str | None]
) -> tuple[Pushed, list[Any]]:
    """Take what can be applied: (the bounds, the filters that Spark has to apply).

    `columns` by the store's names, `source_of` gives these for the names of the DataFrame.
    """
    found: dict[str, Bound] = {}
    left = []
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        name = source_of(path[0]) if len(path) == 1 else None
        known = None if name is None else columns.get(name)
        bound = None if known is None else _bound(one, known)
        if bound is None or known is None or name is None:
            left.append(one)
            continue
        target = known.column or name
        found[target] = found.get(target, Bound()).both(bound)
        if not known.exact or (type(one).__name__ == "In" and not known.sets):
            left.append(one)
    return Pushed(found), left


def _bound(one: Any, known: Pushable) -> Bound | None:
    """Return the bound that a filter makes, None if it cannot be applied."""
    kind = type(one).__name__
    if kind == "In":
        # Null is equal to nothing.
        values = [known.take(value) for value in one.value if value is not None]
    else:
        values = [known.take(getattr(one, "value", None))]
    if not values or None in values:
        return None
    if known.sets and kind in ("EqualTo", "In"):
        return Bound(among=frozenset(values))
    if not known.ordered:
        return None
    low, high = _place(min(values))[0], _place(max(values))[1]
    return {
        "EqualTo": Bound(low=low, high=high),
        "In": Bound(low=low, high=high),
        "GreaterThan": Bound(low=high),
        "GreaterThanOrEqual": Bound(low=low),
        "LessThan": Bound(high=low),
        "LessThanOrEqual": Bound(high=high),
    }.get(kind)


def _place(value: Any) -> tuple[int, int]:
    """Return the least whole number at or after a value, and the least one after it."""
    if isinstance(value, datetime):
        # As a number: beyond the last time that Python has there is none.
        since = (value - _EPOCH) // timedelta(microseconds=1)
        return -(-since // 1000), since // 1000 + 1
    return value, value + 1


def keep(path: str, pushed: Pushed) -> None:
    """Keep what a DataFrame's first use pushes down; InvalidOption for a use with other filters."""
    text = str(pushed)
    draft = f"{path}.{uuid.uuid4().hex}"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
    try:
        os.link(draft, path)
    except FileExistsError:
        with open(path, encoding="utf-8") as file:
            before = file.read()
        if before != text:
            raise InvalidOption(
                "pushdown",
                f"this DataFrame is in use with ({before or 'no filter'}), and Spark would apply "
                f"that to ({text or 'no filter'}), too: read the store again for each, or with "
                "pushdown=False",
            ) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
