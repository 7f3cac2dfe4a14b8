"""One side of a replication in a process of its own: `python -m bench.replication.child`.

    serve ROOT              a master that serves the log of ROOT
    slave ROOT PORT LEVEL   a mirror of the master at PORT
    put ROOT RATE           a master that puts RATE messages a second, each with the time in it

Each line of its input is a command, and each is answered by a line of JSON: `state`, or for `put`
the number of messages. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.ha.mirror import Mirror
from rocketcompat.ha.server import HaServer

CONFIG = MessageStoreConfig(layouts=frozenset({"consume_queue", "index"}))
TOPIC = "topic00000"


def anonymous_kb() -> int:
    """Return the anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def answer(**row: Any) -> None:
    """Print a row."""
    print(json.dumps(row), flush=True)


def serve(root: str) -> None:
    """Serve a log that nothing appends to."""
    with (
        rocketcompat.open(root, config=CONFIG.changed(layouts=frozenset())) as store,
        HaServer(store, port=0, first="FULL") as server,
    ):
        server.start()
        answer(port=server.port)
        sys.stdin.read()


def slave(root: str, port: int, level: Any) -> None:
    """Follow, and answer how far the log is and what that has cost."""
    with Mirror(root, "127.0.0.1", port, CONFIG, acknowledge=level, slave_timeout=0.0) as mirror:
        mirror.start()
        answer(started=True)
        for _ in sys.stdin:
            status = mirror.status()
            answer(
                end=status.end or 0, behind=status.dispatch_behind_bytes,
                cpu_seconds=time.process_time(), memory_mb=anonymous_kb() >> 10,
                descriptors=len(os.listdir("/dev/fd")),
            )  # fmt: skip


def put(root: str, rate: int) -> None:
    """Put at a rate; a message that is late is put at once."""
    with (
        rocketcompat.open(root, "w", CONFIG) as store,
        HaServer(store, port=0, first="FULL") as server,
    ):
        server.start()
        answer(port=server.port)
        for line in sys.stdin:
            begin, filler = time.monotonic(), b"x" * 1016
            for number in range(int(line)):
                while (early := begin + number / rate - time.monotonic()) > 0:
                    time.sleep(early)
                stamp = time.monotonic_ns().to_bytes(8, "big")
                store.put_message(Message(TOPIC, stamp + filler))
            answer(seconds=time.monotonic() - begin)


if __name__ == "__main__":
    command, where, *more = sys.argv[1:]
    if command == "serve":
        serve(where)
    elif command == "slave":
        slave(where, int(more[0]), more[1])
    else:
        put(where, int(more[0]))
