"""The next queue offset of every queue: RocketMQ's topic-queue table.

Guards: none; the caller holds the log's put lock. Without it a queue's next offset may be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.prepare import Prepared, add_offsets
from rocketcompat.record.properties import LMQ_PREFIX
from tubestore.core.kernels import Int64s
from tubestore.errors import InvalidMessage

QueueKey = tuple[str, int]
#: There is room for so many queues at first; then for twice as many each time.
_ROOM = 64


class TooManyQueues(InvalidMessage):
    """A message for one more %LMQ% queue than `max_lmq_consume_queue_num`."""


class QueueOffsetTable:
    """Queues and the offset that their next message gets; a queue that is missing begins at 0.

    A queue has a number, by which batches count in columns.
    """

    def __init__(self, config: MessageStoreConfig) -> None:
        self._config = config
        self._lmq_count = 0
        #: The numbers, by topic and queue id.
        self._numbers: dict[str, dict[int, int]] = {}
        #: By number: the queue, and the offset of its next message; `number_of` may replace it.
        self._keys: list[QueueKey] = []
        self.next: Int64s = np.zeros(_ROOM, np.int64)

    def get(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's next message."""
        number = self._numbers.get(topic, {}).get(queue_id)
        return 0 if number is None else self.next.item(number)

    def raise_to(self, offsets: Iterable[tuple[QueueKey, int]]) -> None:
        """Take in next queue offsets; the greater counts."""
        for key, offset in offsets:
            if offset > self.get(*key):
                self.move(key, offset)

    def move(self, key: QueueKey, offset: int) -> None:
        """Set the offset of a queue's next message; %LMQ% queues are counted."""
        number = self.number_of(*key)
        if key[0].startswith(LMQ_PREFIX) and not self.next[number]:
            self._lmq_count += 1
        self.next[number] = offset

    def offsets_of_copies(self, prepared: Prepared) -> list[tuple[QueueKey, int]]:
        """Complete a message that gets units in further queues; returns those and the offsets.

        As 5.3.3 only %LMQ% queues get one. Takes no offset yet. MessageTooLarge,
        TooManyQueues.
        """
        config = self._config
        found: list[tuple[QueueKey, int]] = []
        texts: list[int | None] = []
        fresh = 0
        for key in prepared.copies:
            is_lmq = key[0].startswith(LMQ_PREFIX)
            if config.compat == "5.3.3" and not is_lmq:
                texts.append(None)
                continue
            offset = self.get(*key)
            fresh += is_lmq and not offset
            found.append((key, offset))
            texts.append(offset)
        if fresh and self._lmq_count + fresh > config.max_lmq_consume_queue_num:
            raise TooManyQueues(
                f"more than {config.max_lmq_consume_queue_num} queues of {LMQ_PREFIX}"
            )
        add_offsets(prepared, texts, config)
        return found

    # -- many queues at once, by their numbers

    def numbers_of(self, topics: list[str], codes: Any, queue_ids: Any) -> list[int]:
        """Return the numbers of queues, given as columns: places in `topics`, and queue ids."""
        numbers = self._numbers
        pairs = list(zip(codes.tolist(), queue_ids.tolist(), strict=True))
        try:
            return [numbers[topics[code]][queue_id] for code, queue_id in pairs]
        except KeyError:
            return [self.number_of(topics[code], queue_id) for code, queue_id in pairs]

    def keys_of(self, numbers: list[int]) -> list[QueueKey]:
        """Return the queues that have these numbers."""
        return list(map(self._keys.__getitem__, numbers))

    def offsets_of(self, numbers: list[int]) -> Int64s:
        """Return the offset of the next message of each queue."""
        return self.next[numbers]

    def count_up(self, numbers: list[int], counts: Int64s) -> None:
        """Move distinct queues on by the messages that were written."""
        offsets = self.next[numbers]
        for place in np.flatnonzero((offsets == 0) & (counts > 0)).tolist():
            self._lmq_count += self._keys[numbers[place]][0].startswith(LMQ_PREFIX)
        self.next[numbers] = offsets + counts

    def number_of(self, topic: str, queue_id: int) -> int:
        """Return a queue's number; a new one gets the next."""
        queues = self._numbers.get(topic)
        if queues is None:
            queues = self._numbers[topic] = {}
        number = queues.get(queue_id)
        if number is None:
            number = len(self._keys)
            if number == len(self.next):
                self.next = np.concatenate((self.next, np.zeros_like(self.next)))
            self._keys.append((topic, queue_id))
            queues[queue_id] = number
        return number
