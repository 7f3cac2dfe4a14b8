"""All queues of inner batches of a store; a follower of the dispatcher beside the ordinary queues.

Only topics of batches (`record/batches.py`) have any; without such topics there is no table.

Guards: none; the table is only added to, by the one thread that puts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from rocketcompat.commitlog.readable_log import ReadableLog
from rocketcompat.files.progress import QueueKey, Trust
from rocketcompat.messages import DispatchBatch
from rocketcompat.queues.batch_consume_queue import BatchConsumeQueue
from rocketcompat.queues.follower import QueueFollower
from rocketcompat.queues.units import LogMinimum, Units, units_of
from tubestore.core.vfs import Vfs


class BatchQueueTable(QueueFollower[BatchConsumeQueue]):
    """The queues of the topics of batches. Offsets are queue offsets unless a name says physical.

    `put` is called by one thread; everything else by any.
    """

    name = "batch_consume_queue"

    def __init__(
        self, vfs: Vfs, directory: str, file_size: int, topics: frozenset[str],
        *, writable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self._vfs, self._directory, self._file_size = vfs, directory, file_size
        self._writable = writable
        #: The topics that have such queues.
        self.topics = topics
        self._log_minimum = LogMinimum()
        self._queues: dict[QueueKey, BatchConsumeQueue] = {}

    def attach(
        self, log_minimum: int, log_end: int | None, ends: Mapping[QueueKey, int] | None = None
    ) -> None:
        """Take in the queues, and where the log begins and, for a reader, ends."""
        self.load()
        self.correct_min_offset(log_minimum, log_end)

    def load(self) -> None:
        """Take in the queues whose directories are there and new."""
        for key in queue_names(self._vfs, self._directory):
            if key not in self._queues:
                self._queues[key] = self._make(*key)

    def find(self, topic: str, queue_id: int) -> BatchConsumeQueue | None:
        """Return a queue, None if there is none."""
        return self._queues.get((topic, queue_id))

    def __iter__(self) -> Iterator[BatchConsumeQueue]:
        return iter([self._queues[key] for key in sorted(self._queues)])

    def __len__(self) -> int:
        return len(self._queues)

    def max_offsets(self) -> dict[QueueKey, int]:
        """Return every queue's next offset."""
        return {key: queue.max_offset for key, queue in list(self._queues.items())}

    def correct_min_offset(self, physical_offset: int, end: int | None = None) -> None:
        """Say where the log begins now; `end` as `ConsumeQueueTable` has it."""
        self._log_minimum.value, self._log_minimum.end = physical_offset, end

    def expire(self, log_minimum: int) -> int:
        """Delete files that only know records below a physical offset; returns how many."""
        self.correct_min_offset(log_minimum)
        return sum(queue.delete_expired(log_minimum) for queue in list(self._queues.values()))

    def recover(
        self, log: ReadableLog, trust: Trust, lower_mark: Callable[[int], None] | None
    ) -> int:
        """Cut every queue at the trusted mark; without one keep what the log cannot give again."""
        start = log.max_offset
        if not trust.as_left:
            mark = trust.mark
            if mark is None and not trust.own:
                mark = trust.verified_from
            start = max(log.min_offset, min(start, log.min_offset if mark is None else mark))
            for queue in list(self._queues.values()):
                queue.recover(start, trust.keeper)
        self.mark(start, start)
        return start

    def put(self, batch: DispatchBatch) -> None:
        """Append the units of a batch's records; those that are there are passed by."""
        found = units_of(batch, self.topics, of_batches=True)
        units = found.of_batches()
        for key, start, end in found.runs():
            self.put_run(*key, units[start:end])
        self._written = max(self._written, batch.end)

    def put_run(self, topic: str, queue_id: int, units: Units) -> None:
        """Append units of one queue, in the order of the log; as `put`."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[topic, queue_id] = self._make(topic, queue_id)
        try:
            queue.put_rows(units)
        finally:
            self._note([queue])

    def close(self) -> None:
        """Give all descriptors back."""
        for queue in list(self._queues.values()):
            queue.close()

    def _make(self, topic: str, queue_id: int) -> BatchConsumeQueue:
        return BatchConsumeQueue(
            self._vfs, self._directory, topic, queue_id, file_size=self._file_size,
            log_minimum=self._log_minimum, writable=self._writable,
        )  # fmt: skip


def queue_names(vfs: Vfs, directory: str) -> list[QueueKey]:
    """Return topic and queue id of the queues below a directory, sorted."""
    return sorted(
        (topic, int(name))
        for topic, is_directory, _ in vfs.entries(directory)
        if is_directory
        for name, is_queue, _ in vfs.entries(os.path.join(directory, topic))
        if is_queue and name.isascii() and name.isdecimal() and str(int(name)) == name
    )
