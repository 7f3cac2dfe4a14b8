"""A writer in a process of its own: `python -m bench.groups.child ROOT MESSAGES RATE`.

It appends so many messages at a rate a second once a line comes; each begins with the monotonic
clock in ns at its append.
"""

from __future__ import annotations

import sys
import time

import tubestore

TOPIC = "in"


def write(root: str, messages: int, rate: int) -> None:
    """Append, and end."""
    with tubestore.open(root, durability="page_cache") as store:
        topic = store[TOPIC]
        print("ready", flush=True)
        sys.stdin.readline()
        begin = time.monotonic()
        for number in range(messages):
            left = begin + number / rate - time.monotonic()
            if left > 0:
                time.sleep(left)
            topic.append(time.monotonic_ns().to_bytes(8, "big"), partition=number % 10)
        sys.stdin.readline()  # the store stays open until everything was read


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
