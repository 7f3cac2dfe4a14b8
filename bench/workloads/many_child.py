"""A process of its own with many topics: `python -m bench.workloads.many_child COMMAND ROOT COUNT`.

create-each, create-batch  make COUNT topics with a message each, one by one or in one call; kill -9
create-raw                 the same files, without a store; kill -9
closed-each, closed-batch  the same, then close
closed                     one topic with COUNT messages, then close
open-many                  open a store of COUNT topics, then read some; kill -9

What took how long it prints as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import tubestore
import tubestore.store.manager  # loaded before the clock starts
from bench.workloads.child import PARTITIONS, fill
from bench.workloads.payload import standard_library

#: Bytes of a record's header, and of an index entry.
HEADER, ENTRY = 60, 28


def peak_mb() -> int:
    """Return the most memory that was resident; not `ru_maxrss`, which begins with the parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) >> 10
    return 0


@contextmanager
def said(messages: int) -> Iterator[dict[str, Any]]:
    """Measure a block, and print that."""
    found: dict[str, Any] = {"messages": messages}
    start, cpu = time.perf_counter(), time.process_time()
    yield found
    found["seconds"] = time.perf_counter() - start
    found["cpu_seconds"] = time.process_time() - cpu
    found["memory_mb"] = peak_mb()
    found["descriptors"] = len(os.listdir("/dev/fd"))


def names_of(count: int) -> list[str]:
    return [f"topic{n:05d}" for n in range(count)]


def create(root: str, count: int, how: str) -> tubestore.MessageStoreManager | None:
    names, bodies = names_of(count), list(standard_library().messages(count))
    table = pa.table({"topic": names, "partition": [0] * count, "body": bodies})
    store = None
    with said(count) as found:
        if how == "raw":
            _make_files(Path(root), zip(names, bodies, strict=True))
        else:
            store = tubestore.open(root)
            options = tubestore.TopicOptions(partitions=PARTITIONS)
            topics = store.ensure_topics(dict.fromkeys(names, options))
            if how == "batch":
                store.append_batch(table)
            else:
                for topic, body in zip(topics, bodies, strict=True):
                    topic.append(body, partition=0)
    print(json.dumps(found), flush=True)
    return store


def _make_files(root: Path, messages: Iterator[tuple[str, bytes]]) -> None:
    name = f"{0:020d}"
    for topic, body in messages:
        shard = f"{root}/{topic}-0"
        os.mkdir(shard)
        os.mkdir(f"{shard}/index")
        for path, data in (
            (f"{shard}/{name}.tube", bytes(HEADER) + body),
            (f"{shard}/index/{name}.index", bytes(ENTRY)),
        ):
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
            os.pwrite(fd, data, 0)
            os.close(fd)


def open_many(root: str, count: int) -> None:
    with said(count) as found:
        store = tubestore.open(root)
    names = names_of(count)
    assert store.topics() == names
    for name in names[:: max(1, count // 50)]:
        assert len(store.topic(name).read(0)) == 1, name
    print(json.dumps(found), flush=True)


def main(command: str, root: str, count: int) -> None:
    """Do it."""
    what, _, how = command.partition("-")
    store = None
    if what == "open":
        open_many(root, count)
    elif how:
        store = create(root, count, how)
    else:
        store = fill(root, count)
    if what == "closed" and store is not None:
        store.close()
    else:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
