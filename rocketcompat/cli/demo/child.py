"""The demo's victim: puts messages and prints each acknowledgement until it is killed."""

from __future__ import annotations

import sys

import rocketcompat
from rocketcompat.options import LAYOUTS
from tubestore.cli.kit.demo import TOPIC


def main(root: str) -> None:
    """Put one by one, every hundredth on stable storage."""
    with rocketcompat.open(root, mode="w", layouts=LAYOUTS) as store:
        number = 0
        while True:
            message = rocketcompat.Message(
                TOPIC,
                f"message {number}".encode(),
                queue_id=number % 100,
                tags=f"t{number % 7}",
                keys=[f"k{number}"],
            )
            level = "fsync" if number % 100 == 0 else "page_cache"
            result = store.put_message(message, durability=level)  # type: ignore[arg-type]
            places = f"{result.physical_offset} {message.queue_id} {result.queue_offset}"
            # One write a line: each line in the pipe was acknowledged before the kill.
            sys.stdout.write(f"{number} {places}\n")
            sys.stdout.flush()
            number += 1


if __name__ == "__main__":
    main(sys.argv[1])
