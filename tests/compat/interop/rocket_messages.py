"""Messages of every kind, made from their number alone, so that another process knows them too.

`python -m tests.compat.interop.rocket_messages ROOT` puts them until the process is killed, and
prints a line for each acknowledgement.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa

import rocketcompat
from rocketcompat import Message, MessageStoreConfig
from rocketcompat.options import LAYOUTS

#: Small files, so that everything rolls: the log, the queues, the index.
SETTINGS = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 20 * 40,
    "maxHashSlotNum": 101,
    "maxIndexNum": 150,
}
#: Topics and their queues: names that TubeMQ refuses, and a queue that lies in a second shard.
QUEUES = {"orders": (0, 1, 2, 3), "%RETRY%group": (0,), "a-b": (0, 10_001), "%DLQ%g|1": (0,)}
TOPICS = ("orders", "orders", "orders", "a-b", "orders", "orders", "%DLQ%g|1", "%RETRY%group")
BODY_SIZES = (0, 1, 7, 60, 60, 60, 300, 300, 1000, 4000)
LARGE = 40_000  # above what the driver shows in full, below a file of the log
BORN = 1_600_000_000_000
STORE_HOST = "10.0.0.7:10911"
COLUMNS = {
    "topic": pa.string(),
    "body": pa.large_binary(),
    "queue_id": pa.int32(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),
    "born_timestamp": pa.int64(),
    "reconsume_times": pa.int32(),
    "born_host": pa.string(),
    "store_host": pa.string(),
}


def config(**options: Any) -> MessageStoreConfig:
    """The options of a store with small files."""
    return MessageStoreConfig.from_camel(SETTINGS).changed(**{"layouts": LAYOUTS, **options})


def message_of(number: int) -> Message:
    """Return the message of a number: its topic, queue, size, keys, tag and properties."""
    random = Random(number)
    topic = TOPICS[number % len(TOPICS)]
    size = LARGE if number % 97 == 50 else random.choice(BODY_SIZES)
    body = b"%06d:" % number + random.randbytes(size) if number % 53 else b""
    message = Message(
        topic,
        body,
        queue_id=random.choice(QUEUES[topic]),
        flag=number,
        born_timestamp=BORN + number,
        born_host=f"10.1.{number % 200}.3:{1024 + number % 1000}",
        store_host=STORE_HOST,
        reconsume_times=number % 3,
    )
    kind = number % 6
    if kind in (1, 2, 3):
        message.tags = random.choice(("paid", "sent", "größer"))
    if kind in (2, 3, 4):
        message.keys = f"k{number} twenty-{number // 20} ключ-{number % 1000}"
    if kind in (3, 4):
        message.properties = {"UNIQ_KEY": f"U{number:08X}", "WAIT": "true", "a": "b = c, d"}
    if kind == 5:
        message.properties = {"only": "äöü" * (number % 40 + 1)}
    return message


def columns_of(messages: Iterable[Message]) -> pa.Table:
    """Return messages as columns for `put_columns`."""
    rows = [
        {name: getattr(message, name) for name in COLUMNS}
        | {"properties": list((message.properties or {}).items())}  # type: ignore[union-attr]
        for message in messages
    ]
    return pa.Table.from_pylist(rows, pa.schema(list(COLUMNS.items())))


def main(root: str) -> None:
    """Put messages one by one and now and then seven at once, until the process is killed."""
    with rocketcompat.open(root, mode="w", config=config()) as store:
        numbers = count()
        for number in numbers:
            if number % 20 != 19:
                result = store.put_message(message_of(number))
                lines = [f"{number} {result.physical_offset} {result.queue_offset}\n"]
            else:
                batch = [number, *(next(numbers) for _ in range(6))]
                put = store.put_columns(columns_of(map(message_of, batch)))
                places = zip(
                    batch,
                    put["physical_offset"].to_pylist(),
                    put["queue_offset"].to_pylist(),
                    strict=True,
                )
                lines = [f"{n} {physical} {queue}\n" for n, physical, queue in places]
            # One write an acknowledgement: what stands in the pipe was given before the kill.
            for line in lines:
                sys.stdout.write(line)
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
