"""The demo's victim: appends and prints each acknowledgement until it is killed.

A module of its own because it is the program of another process.
"""

from __future__ import annotations

import sys

import tubestore
from tubestore.cli.kit.demo import TOPIC


def main(root: str) -> None:
    """Append one by one at the page_cache level, every hundredth with fsync."""
    with tubestore.open(root) as store:
        topic = store.create_topic(TOPIC, partitions=100, exist_ok=True)
        number = 0
        while True:
            level = "fsync" if number % 100 == 0 else "page_cache"
            ack = topic.append(f"message {number}".encode(), durability=level)  # type: ignore[arg-type]
            # One write a line: each line in the pipe was acknowledged before the kill.
            sys.stdout.write(f"{number} {ack.partition} {ack.offset}\n")
            sys.stdout.flush()
            number += 1


if __name__ == "__main__":
    main(sys.argv[1])
