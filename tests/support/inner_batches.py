"""A small store with a topic of inner batches, what is put into it, and what its queue then has."""

from __future__ import annotations

from typing import Any

import rocketcompat
from rocketcompat import BatchItem, Message, MessageBatch, MessageStoreConfig
from rocketcompat.queues.batch_consume_queue import BatchConsumeQueue
from rocketcompat.store.default_message_store import DefaultMessageStore
from tests.support.rocket.inside import dispatcher_of, queues_of

CONFIG = MessageStoreConfig(
    compat="5.3.3",
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    mapper_file_size_batch_consume_queue=5 * 46,
    max_hash_slot_num=5,
    max_index_num=50,
    layouts=frozenset({"consume_queue", "index"}),
    batch_topics=frozenset({"B"}),
)


def opened(root: Any, config: MessageStoreConfig = CONFIG, **given: Any) -> DefaultMessageStore:
    return rocketcompat.open(root, "w", config, background=False, **given)


def batch(count: int, queue_id: int = 0, tag: str = "TagA", topic: str = "B") -> MessageBatch:
    items = [BatchItem(b"item %d of %d" % (n, count), tags=f"I{n}") for n in range(count)]
    return MessageBatch(topic, items, queue_id=queue_id, properties={"TAGS": tag})


def put_some(store: DefaultMessageStore, counts: tuple[int, ...] = (3, 1, 5, 2, 4, 6, 1)) -> None:
    """Inner batches in B/0, a plain message in it after the second, ordinary ones beside it."""
    for number, count in enumerate(counts):
        store.put_inner_batch(batch(count))
        if number == 1:
            store.put_message(Message("B", b"plain", tags="P"))
        store.put_message(Message("T", b"beside", keys=f"k{number}"))
    dispatcher_of(store).dispatch_pending()


def queue_of(store: DefaultMessageStore, queue_id: int = 0, topic: str = "B") -> BatchConsumeQueue:
    queue = queues_of(store).find(topic, queue_id)
    assert isinstance(queue, BatchConsumeQueue)
    return queue


def rows_of(store: DefaultMessageStore) -> list[tuple[int, int, int]]:
    """Physical offset, base and number of each unit of B/0."""
    names = ("physical_offset", "base_offset", "batch_size")
    units = queue_of(store).units()
    return list(zip(*(units[name].tolist() for name in names), strict=True))
