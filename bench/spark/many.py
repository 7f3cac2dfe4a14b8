"""What it costs to plan over many topics: the work of Spark's planning process, without Spark."""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import tubestore
from bench.spark.stores import PARTITIONS, fresh
from tubestore.spark.kit.options import ReadOptions
from tubestore.spark.micro_batches import MicroBatches
from tubestore.spark.planning import plan
from tubestore.spark.positions import Position

TOPICS = (3_000, 10_000)
#: Processor seconds of a plan and of a trigger over the most topics; bytes of their offsets.
BAR_PLAN, BAR_TRIGGER, BAR_OFFSETS = 0.5, 0.2, 60_000
_MESSAGES_MAX = 40
_AT_A_TIME = 500
_SEED = 15


def planning(place: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Return what planning took, in processor seconds (medians), for each number of topics.

    - `plan`: of a batch read of everything
    - `restart`: the first trigger of a query that was started again
    - `trigger`, `trigger_grown`: later ones, without messages and after one in each topic
    - `plan_grown`: of the batch that these messages are
    - `offsets`: bytes of a batch's offsets in a checkpoint
    """
    for topics in TOPICS:
        root = fresh(place / "many")
        names = [f"topic-{number:05d}" for number in range(topics)]
        _append(root, names, partial(random.Random(_SEED).randrange, 1, _MESSAGES_MAX))
        yield {"kind": "planning", "topics": topics, "partitions": topics * PARTITIONS,
               **_measured(root, names, rounds)}  # fmt: skip
        fresh(root)


def _append(root: Path, names: list[str], count: Callable[[], int]) -> None:
    with tubestore.open(root) as store:
        for name in names:
            store.create_topic(name, partitions=PARTITIONS, exist_ok=True)
        for first in range(0, len(names), _AT_A_TIME):
            rows = [name for name in names[first : first + _AT_A_TIME] for _ in range(count())]
            partitions = pa.array([n % PARTITIONS for n in range(len(rows))], pa.int32())
            body = [bytes(100)] * len(rows)
            store.append_batch({"topic": rows, "partition": partitions, "body": body})
    # A process that plans has no store that was written by it.
    del store
    gc.collect()
    gc.freeze()


def _measured(root: Path, names: list[str], rounds: int) -> dict[str, Any]:
    options = ReadOptions.parse({"path": str(root)}, stream=None)
    took: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[..., Any], *given: Any) -> Any:
        began = time.process_time()
        found = work(*given)
        took.setdefault(name, []).append(time.process_time() - began)
        return found

    batches = MicroBatches(options)
    at = batches.initial()
    for _ in range(rounds):
        timed("plan", plan, options)
        again = MicroBatches(options)
        timed("restart", again.latest, at)
        again.close()
        at = batches.latest(at)
        timed("trigger", batches.latest, at)
        _append(root, names, lambda: 1)
        end: Position = timed("trigger_grown", batches.latest, at)
        timed("plan_grown", batches.plan, at, end)
        at = end
    batches.close()
    figures = {name: round(statistics.median(times), 3) for name, times in took.items()}
    return {**figures, "offsets": len(json.dumps(at.as_json()))}


def planning_line(found: dict[str, Any]) -> str:
    """Format what planning took; bars are those of the most topics."""

    def bar(value: float, bound: float, unit: str) -> str:
        if found["topics"] < max(TOPICS):
            return ""
        return f" (bar {bound:,}{unit}: {'reached' if value <= bound else 'MISSED'})"

    return (
        f"spark-planning: {found['topics']:,} topics of {PARTITIONS} partitions, processor time: "
        f"plan {found['plan']} s{bar(found['plan'], BAR_PLAN, ' s')}, first trigger after a "
        f"restart {found['restart']} s, a trigger {found['trigger']} s"
        f"{bar(found['trigger'], BAR_TRIGGER, ' s')}, after a message in each topic "
        f"{found['trigger_grown']} s and its plan {found['plan_grown']} s, offsets "
        f"{found['offsets']:,} bytes{bar(found['offsets'], BAR_OFFSETS, '')}"
    )
