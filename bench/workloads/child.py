"""Write or open a store in a process that is killed: `python -m bench.workloads.child`.

fill ROOT MESSAGES   append that many messages in batches, then kill -9
open ROOT 0          open, read the last message, print how long that took, then kill -9
rocket-fill ROOT MESSAGES QUEUES, rocket-open ROOT 0 0: the same with RocketMQ's layout
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tubestore
import tubestore.store.manager  # loaded before the clock starts
from bench.workloads.payload import standard_library
from tubestore.store.topic import shards_of

BATCH = 1000
PARTITIONS = 10


def fill(root: str, messages: int) -> tubestore.MessageStoreManager:
    store = tubestore.open(root)
    topic = store.create_topic("topic00000", partitions=PARTITIONS)
    tables = [
        t.drop_columns(["topic"]) for t in standard_library().batches(BATCH, partitions=PARTITIONS)
    ]
    for table in islice(cycle(tables), max(1, messages // BATCH)):
        topic.append_batch(table)
    return store


def reopen(root: str) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    store = tubestore.open(root)
    shard = shards_of(store.topic("topic00000")).shard(0)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    counted = sum(shard.view().counts().values())
    found = {"seconds": seconds, "cpu_seconds": cpu_seconds, "messages": counted}
    print(json.dumps(found), flush=True)


def rocket_layout(root: str, queues: int) -> Any:
    from bench.layouts.layout import SingleLog

    return SingleLog(Path(root), topics=1, partitions=queues, durability="page_cache")


def rocket_fill(root: str, messages: int, queues: int) -> None:
    layout = rocket_layout(root, queues)
    tables = standard_library().batches(BATCH, partitions=queues)
    for number in range(max(1, messages // BATCH)):
        table = tables[number % len(tables)]
        places = pa.array((np.arange(BATCH) + number * BATCH) % queues, pa.int32())
        layout.append_batch(table.set_column(1, "partition", places))
    layout.flush()


def rocket_open(root: str) -> None:
    import rocketcompat.store.default_message_store  # noqa: F401  before the clock starts

    start, cpu = time.perf_counter(), time.process_time()
    layout = rocket_layout(root, 1)
    layout.flush()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    status = Path("/proc/self/status").read_text()
    anonymous = re.search(r"RssAnon:\s+(\d+)", status)
    found = {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "anonymous_kb": int(anonymous[1]) if anonymous else 0,
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    command, where, *numbers = sys.argv[1:]
    if command == "fill":
        fill(where, int(numbers[0]))
    elif command == "rocket-fill":
        rocket_fill(where, int(numbers[0]), int(numbers[1]))
    elif command == "rocket-open":
        rocket_open(where)
    else:
        reopen(where)
    os.kill(os.getpid(), signal.SIGKILL)
