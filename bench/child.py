"""A process of its own that writes or opens a store and is killed: `python -m bench.child`.

fill ROOT MESSAGES   append that many messages in batches, then kill -9
open ROOT 0          open, read the last message, say how long that took, then kill -9
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from itertools import cycle, islice

import tubestore
import tubestore.manager  # loaded before the clock starts
from bench.payload import standard_library

BATCH = 1000
PARTITIONS = 10


def fill(root: str, messages: int) -> None:
    store = tubestore.open(root)
    topic = store.create_topic("topic00000", partitions=PARTITIONS)
    tables = [
        t.drop_columns(["topic"]) for t in standard_library().batches(BATCH, partitions=PARTITIONS)
    ]
    for table in islice(cycle(tables), max(1, messages // BATCH)):
        topic.append_batch(table)


def reopen(root: str) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    store = tubestore.open(root)
    shard = store.topic("topic00000").shard(0)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    counted = sum(shard.view().counts().values())
    found = {"seconds": seconds, "cpu_seconds": cpu_seconds, "messages": counted}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    command, where, number = sys.argv[1:]
    if command == "fill":
        fill(where, int(number))
    else:
        reopen(where)
    os.kill(os.getpid(), signal.SIGKILL)
