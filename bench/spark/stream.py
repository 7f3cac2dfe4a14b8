"""How long a message is on its way: from a live writer to the rows of a query."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tubestore
from bench.spark.stores import BODY, PARTITIONS
from tubestore.spark import read_stream

#: Messages a second, and how often some are appended.
RATE = 20_000
_PAUSE = 0.05
BAR_MS = 400
#: Batches that do not count, and how long they may take.
_WARM, _START_SECONDS = 20, 120.0


def latency(spark: Any, place: Path, seconds: float = 20.0) -> dict[str, Any]:
    """Return how old messages were when a query had them: the oldest and newest of each batch.

    The clock starts when some batches have been seen.
    """
    root = place / "live"
    with tubestore.open(root) as store:
        store.create_topic("logs", partitions=PARTITIONS)
    ages: list[float] = []
    ending = threading.Event()
    appended = 0

    def produce() -> None:
        nonlocal appended
        body = [bytes(BODY)] * int(RATE * _PAUSE)
        with tubestore.open(root) as store:
            due = time.monotonic()
            while not ending.is_set():
                store.topic("logs").append_batch({"body": body})
                appended += len(body)
                due += _PAUSE
                ending.wait(max(0.0, due - time.monotonic()))

    def seen(frame: Any, _: int) -> None:
        row = frame.selectExpr("min(received_time_ms)", "max(received_time_ms)").first()
        if row[0] is not None:
            now = time.time() * 1000
            ages.extend((now - row[0], now - row[1]))

    query = (
        read_stream(
            spark, str(root), startingOffsets="latest", columns=["received_time_ms", "body"]
        )
        .writeStream.foreachBatch(seen)
        .option("checkpointLocation", str(place / "checkpoint"))
        .start()
    )
    thread = threading.Thread(target=produce)
    thread.start()
    try:
        _until(query, lambda: len(ages) > 2 * _WARM, _START_SECONDS)
        del ages[:]
        began, before = time.monotonic(), appended
        _until(query, lambda: False, seconds)
        took, count = time.monotonic() - began, appended - before
    finally:
        ending.set()
        thread.join()
    if query.exception() is None:
        query.processAllAvailable()  # a stop within a batch logs a thousand lines
    query.stop()
    found = sorted(ages)
    return {
        "kind": "stream",
        "mb_per_second": round(count * BODY / took / 1e6, 1),
        "batches": len(ages) // 2,
        "p50_ms": round(found[len(found) // 2]),
        "p90_ms": round(found[len(found) * 9 // 10]),
        "bar_p90_ms": BAR_MS,
    }


def _until(query: Any, done: Callable[[], bool], seconds: float) -> None:
    """Wait for something as long as the query runs; its error is raised."""
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        if (failed := query.exception()) is not None:
            raise failed
        time.sleep(0.05)
