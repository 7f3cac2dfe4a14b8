"""A process that consumes a topic as a member of a group until it is killed.

    python -m tests.proof.consume_child ROOT GROUP

Each message is a line on stdout before it counts as processed: partition, body.
"""

from __future__ import annotations

import os
import sys

import tubestore


def consume(root: str, group: str) -> None:
    with (
        tubestore.open(root, mode="r") as store,
        store.consumer(group, "orders", session_timeout=1.0, auto_commit_interval=0.05) as consumer,
    ):
        os.write(1, b"ready\n")
        while True:
            polled = consumer.poll(20, timeout=1.0)
            for message in polled:
                os.write(1, b"%d %s\n" % (message.partition, message.body or b""))


if __name__ == "__main__":
    consume(*sys.argv[1:])
