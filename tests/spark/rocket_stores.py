"""RocketMQ stores for the tests of Spark, in small files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.inspect.directory import StoreDirectory
from rocketcompat.inspect.dump import dump_tables
from rocketcompat.options import LAYOUTS
from rocketcompat.record.rows import MESSAGE_SCHEMA
from rocketcompat.spark.options import RocketOptions
from rocketcompat.spark.planning import LogPlan, plan
from rocketcompat.spark.reading import LogReading
from rocketcompat.spark.shapes import SHAPES

CONFIG = MessageStoreConfig.from_camel(
    {
        "mappedFileSizeCommitLog": 64 << 10,
        "mappedFileSizeConsumeQueue": 20 * 100,
        "maxHashSlotNum": 100,
        "maxIndexNum": 400,
        "layouts": LAYOUTS,
    }
)


def write_rocket_store(
    root: Path,
    count: int,
    first: int = 0,
    topics: int = 3,
    config: MessageStoreConfig = CONFIG,
) -> None:
    """Put messages that name their number into a store of small files, and close it."""
    with rocketcompat.open(root, "w", config, background=False) as store:
        for number in range(first, first + count):
            message = Message(
                f"topic{number % topics}",
                b"%d " % number + b"." * (number * 37 % 300),
                tags=("paid", "sent", None)[number % 3],
                keys=[f"k-{number}"],
                queue_id=number % 4,
            )
            store.put_message(message)


def write_skewed_log(root: Path) -> None:
    """Put messages of which every second one is in queue 3 of one topic."""
    with rocketcompat.open(root, "w", CONFIG, background=False) as store:
        for number in range(800):
            queue = 3 if number % 2 else number % 6 // 2
            body = b"%d " % number + b"." * (number * 37 % 300)
            store.put_message(Message("orders", body, queue_id=queue))


def check_shared_out(root: Path, made: LogPlan) -> None:
    """Check that no task reads more than a quarter of `write_skewed_log`'s large queue."""
    options = {"subscribe": "orders", "queues": "3"}
    tasks = [read_log(root, replace(made, splits=(split,)), **options) for split in made.splits]
    assert [int(row["body"].split()[0]) for rows in tasks for row in rows] == [*range(1, 800, 2)]
    assert max(map(len, tasks)) <= 400 / 4


def planned(root: Path, **given: str) -> LogPlan:
    """Plan by the names that a user gives."""
    return plan(RocketOptions.parse({"path": str(root), **given}))


def read_log(root: Path, made: LogPlan, **given: str) -> list[dict[str, Any]]:
    """Return the rows of all splits, one after the other, without Spark."""
    options = RocketOptions.parse({"path": str(root), **given})
    shape = SHAPES[options.shape]
    reading = LogReading(shape, shape.schema, options, made.sizes)
    return [row for s in made.splits for b in reading.batches(s) for row in b.to_pylist()]


def dumped(root: Path) -> list[dict[str, Any]]:
    """Return what the in-process dump says, without what stands behind the end."""
    tables = list(dump_tables(StoreDirectory(root)))
    rows = pa.concat_tables(tables).to_pylist() if tables else []
    return [row for row in rows if row["state"] != "torn"]


def of_dump(row: dict[str, Any]) -> dict[str, Any]:
    """Reduce a row to the columns of the dump."""
    return {name: row[name] for name in MESSAGE_SCHEMA.names}
