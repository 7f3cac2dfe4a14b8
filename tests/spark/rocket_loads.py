"""Loads of rows into a log, staged and published as Spark does it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa

from rocketcompat.check.whole import check
from rocketcompat.spark.loads import RocketLoad
from rocketcompat.spark.write_options import RocketWriteOptions

#: Of the stores that are made here; checking them needs the index's geometry.
SMALL = {
    "mappedFileSizeCommitLog": str(64 << 10),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}

GEOMETRY = {"maxHashSlotNum": 100, "maxIndexNum": 400}


def load_of(root: Path, schema: pa.Schema, **options: str) -> RocketLoad:
    parsed = RocketWriteOptions.parse({"path": str(root), **SMALL, **options})
    again: RocketLoad = pickle.loads(pickle.dumps(RocketLoad.prepare(parsed, schema)))
    return again


def run(root: Path, batches: list[pa.RecordBatch], job_id: str = "j", **options: str) -> Any:
    """Do what Spark does: a task a batch, then a commit."""
    load = load_of(root, batches[0].schema, **options)
    staged = [load.stage(job_id, f"{n}-{n}", iter([one])) for n, one in enumerate(batches)]
    return load.publish(job_id, [piece for pieces in staged for piece in pieces])


def batch(first: int, count: int, **columns: Any) -> pa.RecordBatch:
    rows = {
        "topic": ["orders"] * count,
        "body": [b"%d" % n for n in range(first, first + count)],
        **columns,
    }
    return pa.RecordBatch.from_pydict(rows)


def sound(root: Path) -> bool:
    return list(check(root, GEOMETRY)) == []
