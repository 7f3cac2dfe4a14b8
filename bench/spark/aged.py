"""Whether a micro-batch costs more when a stream has run for long, without Spark's part of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.spark.stores import fresh
from rocketcompat.spark.loads import RocketLoad
from rocketcompat.spark.write_options import RocketWriteOptions
from tubestore.spark.kit.loads import Load
from tubestore.spark.kit.write_options import WriteOptions

BATCHES = 2_000
_PART = 100
#: A micro-batch of Spark takes some 200 ms: the last ones may take 1.2 times that.
BAR_MORE_MS = 40
_ROWS = 120


def aging(place: Path, batches: int = BATCHES) -> Iterator[dict[str, Any]]:
    """Return what staging and publishing a batch of three topics takes, in processor time.

    Medians in ms of the first hundred, of the last, and of the hundred that took longest; `files`
    are those of the root at the end.
    """
    rows = pa.RecordBatch.from_pydict(
        {"topic": ["a", "b", "c"] * (_ROWS // 3), "body": [bytes(200)] * _ROWS}
    )
    for kind in ("shards", "log"):
        root = fresh(place / "aged")
        load: Any
        if kind == "shards":
            load = Load.prepare(WriteOptions.parse({"path": str(root)}), rows.schema)
        else:
            load = RocketLoad.prepare(RocketWriteOptions.parse({"path": str(root)}), rows.schema)
        took = []
        for number in range(batches):
            began = time.process_time()
            job = f"stream:{number}"
            load.publish(job, load.stage(job, "0", [rows], content=True), "query")
            took.append((time.process_time() - began) * 1000)
        parts = [statistics.median(took[n : n + _PART]) for n in range(0, batches, _PART)]
        yield {
            "kind": "aging", "sink": kind, "batches": batches, "first_ms": round(parts[0], 1),
            "last_ms": round(parts[-1], 1), "longest_ms": round(max(parts), 1),
            "files": sum(path.is_file() for path in root.rglob("*")),
        }  # fmt: skip
        fresh(root)


def aging_line(found: dict[str, Any]) -> str:
    """Format what batches took."""
    more = found["longest_ms"] - found["first_ms"]
    met = "reached" if more <= BAR_MORE_MS else "MISSED"
    return (
        f"spark-aging: {found['batches']:,} micro-batches into {found['sink']}, processor time "
        f"without Spark's: {found['first_ms']} ms each at first, {found['last_ms']} ms at last, "
        f"{found['longest_ms']} ms at most (bar {BAR_MORE_MS} ms more than at first: {met}), "
        f"{found['files']} files"
    )
