"""One side of a replication in a process of its own, until it is killed.

    python -m tests.proof.replication.child master ROOT PORT FIRST
    python -m tests.proof.replication.child slave ROOT PORT

The master puts messages that wait for a slave and writes a line for each that one has: number and
offset behind it. The slave writes one line when its store is open.
"""

from __future__ import annotations

import sys
import time

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.ha.mirror import Mirror
from rocketcompat.ha.server import HaServer
from rocketcompat.messages import PutStatus

CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=100_000,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=100,
    max_index_num=4000,
    layouts=frozenset({"consume_queue", "index"}),
)


def body_of(number: int) -> bytes:
    return b"%08d" % number + b"x" * (number * 37 % 900)


def master(root: str, port: int, number: int) -> None:
    with (
        rocketcompat.open(root, "w", CONFIG) as store,
        HaServer(store, port=port, first="FULL", synchronous=True, slave_timeout=0.5) as server,
    ):
        server.start()
        print("listening", flush=True)
        while True:
            put = store.put_message(Message(f"T{number % 3}", body_of(number), keys=f"k{number}"))
            if put.status is PutStatus.PUT_OK:
                print(number, put.physical_offset + put.size, flush=True)
            else:
                time.sleep(0.005)
            number += 1


def slave(root: str, port: int) -> None:
    with Mirror(
        root, "127.0.0.1", port, CONFIG, acknowledge="page_cache", retry_seconds=0.02
    ) as mirror:
        print("open", flush=True)
        mirror.run()


if __name__ == "__main__":
    if sys.argv[1] == "master":
        master(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        slave(sys.argv[2], int(sys.argv[3]))
