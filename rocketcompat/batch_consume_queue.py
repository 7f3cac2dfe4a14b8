"""A queue of inner batches, read: 5.x's `BatchConsumeQueue` (spec §2.9).

A record of such a queue holds many messages in its body (`batches.decode_items`), and takes as
many queue offsets. Its unit says the first of them and how many there are, so a message is
found by a binary search. Topics with these queues are those whose attribute `queue.type` is
BatchCQ. Reads only: a store that has them is not opened to write.

Next to read: `batches.py`.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from rocketcompat.formats import BATCH_CONSUME_QUEUE_DIRECTORY, BATCH_CQ_UNIT, parse_offset_name
from tubestore.vfs import Vfs

Units = np.ndarray[Any, Any]


class BatchConsumeQueue:
    """The units of one queue, as they were when it was made; offsets are queue offsets."""

    def __init__(self, vfs: Vfs, root: str, topic: str, queue_id: int) -> None:
        self.topic, self.queue_id = topic, queue_id
        directory = os.path.join(root, BATCH_CONSUME_QUEUE_DIRECTORY, topic, str(queue_id))
        rows = [(parse_offset_name(n), n) for n, is_dir, _ in vfs.entries(directory) if not is_dir]
        parts = []
        for _, name in sorted((start, name) for start, name in rows if start is not None):
            raw = vfs.read_file(os.path.join(directory, name))
            parts.append(raw[: len(raw) - len(raw) % BATCH_CQ_UNIT.size])
        units = np.frombuffer(b"".join(parts), BATCH_CQ_UNIT.dtype)
        good = (units["size"] > 0) & (units["batch_size"] > 0)
        count = len(units) if good.all() else int(good.argmin())
        #: One unit a record, in order.
        self.units: Units = units[:count]

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message; -1 without any, as the real one answers."""
        return int(self.units["base_offset"][0]) if len(self.units) else -1

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last message; 0 without any."""
        if not len(self.units):
            return 0
        last = self.units[-1]
        return int(last["base_offset"]) + int(last["batch_size"])

    def find(self, offset: int) -> Any:
        """Return the unit of the record that holds the message at a queue offset, or None."""
        place = int(np.searchsorted(self.units["base_offset"], offset, "right")) - 1
        if place < 0 or offset >= self.max_offset:
            return None
        unit = self.units[place]
        return unit if offset < unit["base_offset"] + unit["batch_size"] else None


def batch_queues(vfs: Vfs, root: str) -> list[tuple[str, int]]:
    """Return topic and queue id of the queues of inner batches of a store, sorted."""
    base = os.path.join(root, BATCH_CONSUME_QUEUE_DIRECTORY)
    return sorted(
        (topic, int(name))
        for topic, is_directory, _ in vfs.entries(base)
        if is_directory
        for name, is_queue, _ in vfs.entries(os.path.join(base, topic))
        if is_queue and name.isascii() and name.isdecimal()
    )
