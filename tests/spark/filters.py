"""Spark's filters, evaluated here: what a reader takes of them must change no result."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

ORDERED = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
HOLDS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: lambda found, wanted: found == wanted,
    In: lambda found, wanted: found in wanted,
    GreaterThan: lambda found, wanted: found > wanted,
    GreaterThanOrEqual: lambda found, wanted: found >= wanted,
    LessThan: lambda found, wanted: found < wanted,
    LessThanOrEqual: lambda found, wanted: found <= wanted,
    StringStartsWith: lambda found, wanted: found.startswith(wanted),
}
Row = dict[str, Any]


def passing(rows: Iterable[Row], filters: Iterable[Any]) -> list[Row]:
    """Return the rows that Spark would leave."""
    return [
        row
        for row in rows
        if all(
            row[one.attribute[0]] is not None and HOLDS[type(one)](row[one.attribute[0]], one.value)
            for one in filters
        )
    ]


def some_filters(rng: random.Random, rows: list[Row], columns: Iterable[str]) -> list[Any]:
    """Return a few filters with values of some rows, or near them."""
    found = []
    for column in rng.sample(list(columns), rng.randrange(1, 4)):
        values = [row[column] for row in rng.choices(rows, k=3)]
        values = [value for value in values if value is not None] or [rows[0]["topic"]]
        if isinstance(values[0], int) and rng.random() < 0.3:
            values = [value + rng.choice((-1, 1)) for value in values]
        kinds = [EqualTo, In, *(() if isinstance(values[0], str) else ORDERED)]
        kind = rng.choice(kinds)
        found.append(kind((column,), tuple(values) if kind is In else values[0]))
    return found


def pushed_rows(source: DataSource, filters: list[Any]) -> tuple[list[Row], list[Any], int]:
    """Read with filters as Spark does: (the rows that are left, those it had to apply, splits)."""
    reader = source.reader(source.schema())
    left = list(reader.pushFilters(filters))
    partitions = reader.partitions()
    task = pickle.loads(pickle.dumps(reader))
    rows = [
        row
        for partition in partitions or [InputPartition(None)]
        for batch in task.read(partition)
        for row in batch.to_pylist()
    ]
    return passing(rows, left), left, len(rows)
