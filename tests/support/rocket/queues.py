"""One queue of a store, with files of seven units; and the same one opened anew."""

from __future__ import annotations

import numpy as np

from rocketcompat.queues.consume_queue import ConsumeQueue
from rocketcompat.queues.table import ConsumeQueueTable
from tubestore.core.vfs import Vfs


def table_of(vfs: Vfs, file_size: int = 140) -> ConsumeQueueTable:
    return ConsumeQueueTable(vfs, "/store/consumequeue", file_size)


def queue_of(vfs: Vfs, file_size: int = 140) -> ConsumeQueue:
    return table_of(vfs, file_size).find_or_create("T", 1)


def put(queue: ConsumeQueue, first: int, count: int, physical: int = 1000) -> None:
    offsets = np.arange(first, first + count)
    queue.put_units(offsets, physical + 100 * offsets, np.full(count, 100), offsets + 7)


def reopened(vfs: Vfs, file_size: int = 140) -> ConsumeQueue:
    table = table_of(vfs, file_size)
    table.load()
    queue = table.find("T", 1)
    assert queue is not None
    return queue
