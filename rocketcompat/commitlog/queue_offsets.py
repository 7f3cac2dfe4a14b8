"""The next queue offset of every queue: RocketMQ's topic-queue table.

Guards: none; the caller holds the log's put lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.prepare import Prepared, add_offsets
from rocketcompat.record.properties import LMQ_PREFIX
from tubestore.core.kernels import Int64s
from tubestore.errors import InvalidMessage

QueueKey = tuple[str, int]


class TooManyQueues(InvalidMessage):
    """A message for one more %LMQ% queue than `max_lmq_consume_queue_num`."""


class QueueOffsetTable(dict[QueueKey, int]):
    """Queues and the offset that their next message gets; a queue that is missing begins at 0."""

    def __init__(self, config: MessageStoreConfig) -> None:
        self._config = config
        self._lmq_count = 0

    def raise_to(self, offsets: Iterable[tuple[QueueKey, int]]) -> None:
        """Take in next queue offsets; the greater counts."""
        for key, offset in offsets:
            if offset > self.get(key, 0):
                self.move(key, offset)

    def move(self, key: QueueKey, offset: int) -> None:
        """Set a queue's next offset."""
        if key not in self and key[0].startswith(LMQ_PREFIX):
            self._lmq_count += 1
        self[key] = offset

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
            fresh += is_lmq and key not in self
            found.append((key, self.get(key, 0)))
            texts.append(found[-1][1])
        if fresh and self._lmq_count + fresh > config.max_lmq_consume_queue_num:
            raise TooManyQueues(
                f"more than {config.max_lmq_consume_queue_num} queues of {LMQ_PREFIX}"
            )
        add_offsets(prepared, texts, config)
        return found

    def count_up(self, keys: list[QueueKey], bases: Int64s, counts: Int64s) -> None:
        """Move queues on from their bases by the messages that were written."""
        if counts.all() and all(map(self.__contains__, keys)):
            self.update(zip(keys, (bases[: len(keys)] + counts).tolist(), strict=True))
            return
        for key, base, taken in zip(keys, bases.tolist(), counts.tolist(), strict=False):
            if taken:
                self.move(key, base + taken)
