"""A process that consumes as a member of a group until it is killed.

    python -m tests.proof.consume_child ROOT GROUP          reads "orders" beside a writer
    python -m tests.proof.consume_child ROOT GROUP SEED     writes, too: messages of "in" become
                                                            output of several topics, exactly once

The first writes a line for each message before it counts as processed: partition, body. The
second writes a dot after each commit.
"""

from __future__ import annotations

import os
import sys
from random import Random
from typing import Any

import tubestore

OUTPUTS = ("a", "b", "c")


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


def output_of(polled: tubestore.Polled) -> dict[str, list[Any]]:
    """Return a message in each topic for each that was polled."""
    rows = [(name, message.body) for message in polled for name in OUTPUTS]
    return {"topic": [name for name, _ in rows], "body": [body for _, body in rows]}


def transfer(root: str, group: str, random: Random) -> None:
    with tubestore.open(root, journal_shards_min=random.choice((2, 100))) as store:
        topic = store.create_topic("in", partitions=3, exist_ok=True)
        for name in OUTPUTS:
            store.create_topic(name, partitions=2, exist_ok=True)
        with store.consumer(group, "in", auto_commit=False, session_timeout=0.5) as consumer:
            while True:
                for _ in range(random.randrange(40)):
                    topic.append(os.urandom(8).hex().encode(), durability="page_cache")
                consumer.commit_with(
                    output_of(consumer.poll(random.randrange(1, 60), timeout=0.01))
                )
                os.write(1, b".")


if __name__ == "__main__":
    place, name, *seed = sys.argv[1:]
    if seed:
        transfer(place, name, Random(int(seed[0])))
    else:
        consume(place, name)
