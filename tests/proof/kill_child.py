"""A process that writes to a store and says what was acknowledged, until it is killed.

    python -m tests.proof.kill_child engine|threads|stack|mapped ROOT FIRST_ID SEED

Each acknowledgement is a line on stdout: id, topic, partition or queue, offset. The lines go
out unbuffered and one by one, so that what the parent has read was acknowledged.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from random import Random

import pyarrow as pa

import rocketcompat
import tubestore
from rocketcompat.messages import Message
from rocketcompat.options import LAYOUTS, MessageStoreConfig

TOPIC, OTHER = "orders", "audit"
#: Enough of them for the journal.
MANY = (TOPIC, OTHER, *(f"topic{n}" for n in range(8)))
PARTITIONS = 3
CONFIG = MessageStoreConfig(
    mapped_file_size_commit_log=64 << 10,
    mapped_file_size_consume_queue=20 * 500,
    max_hash_slot_num=200,
    max_index_num=1000,
    flush_interval_commit_log=20,
    layouts=LAYOUTS,
)
#: The log through maps, as RocketMQ writes it.
CONFIGS = {"stack": CONFIG, "mapped": CONFIG.changed(write_without_mmap=False)}
#: A thread may number its messages up to here.
IDS_A_THREAD = 300_000
SHARDS = {"segment_size_bytes": 48 << 10, "index_segment_size_bytes": 28 * 400}


def body_of(number: int) -> bytes:
    """Return the body of a message: nothing else has it, and its length varies."""
    return b"%08d:" % number + b"x" * (number * 37 % 300)


def say(lines: list[tuple[int, str, int, int]]) -> None:
    """Report acknowledgements."""
    text = "".join(
        f"{number} {topic} {partition} {offset}\n" for number, topic, partition, offset in lines
    )
    os.write(1, text.encode())


def write_engine(root: str, first: int, random: Random) -> None:
    """Append one by one, in batches and over many topics, at the levels that survive a kill."""
    store = tubestore.open(
        root, mem_flush_interval_ms=50, journal_flush_ms=20, journal_size_bytes=40_000,
        ring_journal=random.random() < 0.7, ring_size_bytes=40_000, **SHARDS,
    )  # fmt: skip
    for name in MANY:
        store.create_topic(name, partitions=PARTITIONS, exist_ok=True)
    say([])
    numbers = itertools.count(first)
    while True:
        topic = random.choice((TOPIC, OTHER))
        level = random.choice(("page_cache", "page_cache", "fsync"))
        drawn = random.random()
        if drawn < 0.3:
            places = [(next(numbers), t, random.randrange(PARTITIONS))
                      for t in MANY for _ in range(random.randint(1, 4))]  # fmt: skip
            table = {
                "topic": [t for _, t, _ in places],
                "body": [body_of(n) for n, _, _ in places],
                "partition": [p for _, _, p in places],
            }
            offsets = store.append_batch(table, durability=level).offsets.to_pylist()
            say([(n, t, p, at) for (n, t, p), at in zip(places, offsets, strict=True)])
            continue
        if drawn < 0.7:
            number, partition = next(numbers), random.randrange(PARTITIONS)
            ack = store[topic].append(body_of(number), partition=partition, durability=level)
            say([(number, topic, partition, ack.offset)])
            continue
        rows = [(next(numbers), random.randrange(PARTITIONS)) for _ in range(random.randint(1, 50))]
        table = pa.table({
            "body": pa.array([body_of(n) for n, _ in rows], pa.large_binary()),
            "partition": pa.array([p for _, p in rows], pa.int32()),
        })  # fmt: skip
        acks = store[topic].append_batch(table, durability=level)
        say([(n, topic, p, a.offset) for (n, p), a in zip(rows, acks, strict=True)])


def write_threads(root: str, first: int, random: Random) -> None:
    """Append from a thread for each partition, at all levels; `memory` promises nothing."""
    store = tubestore.open(
        root, mem_flush_interval_ms=50, ring_size_bytes=random.choice((40_000, 400_000)), **SHARDS
    )
    for name in MANY:
        store.create_topic(name, partitions=PARTITIONS, exist_ok=True)
    say([])

    def append(partition: int, random: Random) -> None:
        for number in itertools.count(first + partition * IDS_A_THREAD):
            topic = random.choice(MANY)
            level = random.choice(("memory", "page_cache", "page_cache", "fsync"))
            ack = store[topic].append(body_of(number), partition=partition, durability=level)
            if level != "memory":
                say([(number, topic, partition, ack.offset)])

    for partition in range(PARTITIONS):
        threading.Thread(target=append, args=(partition, Random(random.random()))).start()


def write_stack(root: str, first: int, random: Random, kind: str) -> None:
    """Put one by one and in columns, with all structures and threads at work."""
    store = rocketcompat.open(root, mode="w", config=CONFIGS[kind])
    say([])
    numbers = itertools.count(first)
    while True:
        topic = random.choice((TOPIC, OTHER))
        level = random.choice(("page_cache", "page_cache", "fsync"))
        if random.random() < 0.7:
            number, queue = next(numbers), random.randrange(PARTITIONS)
            message = Message(topic, body_of(number), keys=[f"k{number}"], queue_id=queue)
            put = store.put_message(message, durability=level)
            say([(number, topic, queue, put.physical_offset)])
            continue
        rows = [(next(numbers), random.randrange(PARTITIONS)) for _ in range(random.randint(1, 50))]
        result = store.put_columns(
            {
                "topic": [topic] * len(rows),
                "body": [body_of(n) for n, _ in rows],
                "queue_id": [q for _, q in rows],
                "keys": [[f"k{n}"] for n, _ in rows],
            },
            durability=level,
        )
        places = result.column("physical_offset").to_pylist()
        say([(n, topic, q, at) for (n, q), at in zip(rows, places, strict=True)])


ENGINES = {"engine": write_engine, "threads": write_threads}

if __name__ == "__main__":
    kind, where, begin, seed = sys.argv[1:]
    if kind in ENGINES:
        ENGINES[kind](where, int(begin), Random(int(seed)))
    else:
        write_stack(where, int(begin), Random(int(seed)), kind)
