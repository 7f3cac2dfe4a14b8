"""Stores for the tests of Spark: rows that say which they are, in many small files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import tubestore
from tubestore.core.vfs import Vfs
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.kit.shapes import TUBESTORE, Shape
from tubestore.spark.planning import Plan, plan
from tubestore.spark.reading import Reading

T0 = 1_700_000_000_000
#: Small files, so that a store of a few thousand messages has many.
SMALL = {"segment_size_bytes": 1 << 16, "index_segment_size_bytes": 28 * 500}


def batch_of(count: int, *, partitions: int, seed: int = 0, longest: int = 200) -> pa.Table:
    """Return messages with bodies of different lengths that name their number."""
    rng = random.Random(seed)
    numbers = range(count)
    return pa.table(
        {
            "body": [b"%d " % n + b"." * rng.randrange(longest) for n in numbers],
            "partition": pa.array([rng.randrange(partitions) for _ in numbers], pa.int32()),
            "filter_item": [("paid", "sent", None)[n % 3] for n in numbers],
            "received_time_ms": pa.array([T0 + n for n in numbers], pa.int64()),
        }
    )


def write_store(
    root: str | Path,
    topics: dict[str, int],
    *,
    vfs: Vfs | None = None,
    partitions: int = 7,
    seed: int = 0,
    **settings: Any,
) -> None:
    """Append so many messages to each topic of a store of small files, and close it."""
    options = {**SMALL, **settings}
    with tubestore.open(root, vfs=vfs, background=False, **options) as store:
        for number, (topic, count) in enumerate(topics.items()):
            made = store.create_topic(topic, partitions=partitions, exist_ok=True)
            table = batch_of(count, partitions=partitions, seed=seed + number)
            for start in range(0, count, 100):
                made.append_batch(table.slice(start, 100))


#: The partition that holds half of the rows of `write_skewed`.
SKEWED = 3


def write_skewed(root: str | Path) -> None:
    """Write one topic of two shards, of which one partition holds half of all rows."""
    count = 1500
    table = batch_of(count, partitions=7)
    others = [0, 1, 2, 10_000, 10_001, 10_002]
    places = [SKEWED if n % 2 else others[n // 2 % 6] for n in range(count)]
    table = table.set_column(1, "partition", pa.array(places, pa.int32()))
    with tubestore.open(root, background=False, **SMALL) as store:
        made = store.create_topic("logs", partitions=7, stores=2)
        for start in range(0, count, 100):
            made.append_batch(table.slice(start, 100))


def check_shared_out(made: Plan, root: str | Path, **chosen: str) -> None:
    """Check that no task reads more than a quarter of `write_skewed`'s large partition."""
    tasks = [read_plan(Plan(made.root, (split,))) for split in made.splits]
    skewed = [sum(row["partition"] == SKEWED for row in rows) for rows in tasks]
    there = scanned_rows(root)
    assert sum(skewed) == len(there) / 2
    assert max(skewed) <= sum(skewed) / 4
    wanted = [row for row in there if not chosen or row["partition"] == SKEWED]
    assert [row for rows in tasks for row in rows] == wanted


def read_plan(
    made: Plan,
    vfs: Vfs | None = None,
    columns: Sequence[str] | None = None,
    *,
    shape: Shape = TUBESTORE,
    **how: Any,
) -> list[dict[str, Any]]:
    """Return the rows of all splits, one after the other, without Spark."""
    names = shape.schema.names if columns is None else columns
    schema = pa.schema([shape.schema.field(name) for name in names])
    reading = Reading(shape, schema, made.root, **how)
    return [row for s in made.splits for b in reading.batches(s, vfs) for row in b.to_pylist()]


def planned(root: str | Path, vfs: Vfs | None = None, **options: str) -> Plan:
    """Plan by the names that a user gives."""
    return plan(ReadOptions.parse({"path": str(root), **options}), vfs)


def scanned_rows(
    root: str | Path, vfs: Vfs | None = None, columns: Sequence[str] = tuple(TUBESTORE.schema.names)
) -> list[dict[str, Any]]:
    """Return every row of a store as the engine reads it, topic by topic."""
    with tubestore.open(root, mode="r", vfs=vfs) as store:
        return [
            row
            for name in store.topics()
            for batch in store.topic(name).scan(columns=columns)
            for row in batch.to_pylist()
        ]
