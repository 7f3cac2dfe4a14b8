"""All queues of a store, made on demand; what the dispatcher feeds, and where pulls look.

RocketMQ's `consumeQueueTable` (spec §0, §2.1). Loading reads directory names only: a queue
opens its files when it is first touched, so ten thousand idle queues cost their names.

Guards: none; the table of queues is only added to, by the one thread that puts.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rocketcompat.commitlog.readable_log import ReadableLog
from rocketcompat.files.progress import QueueKey, Trust
from rocketcompat.formats import CONSUME_QUEUE_EXT_DIRECTORY, CQ_UNIT, offset_name
from rocketcompat.messages import DispatchBatch
from rocketcompat.queues.batch_consume_queue import BatchConsumeQueue
from rocketcompat.queues.batch_table import BatchQueueTable
from rocketcompat.queues.consume_queue import ConsumeQueue
from rocketcompat.queues.extension import ConsumeQueueExt
from rocketcompat.queues.follower import QueueFollower
from rocketcompat.queues.recovery import recover_queues
from rocketcompat.queues.units import LogMinimum, Units, units_of
from tubestore.core.vfs import Vfs
from tubestore.errors import NotAStore

#: A file of RocksDB's, whose queues lie in the same directory in another format (spec §2.10).
_ROCKSDB_FILE = "CURRENT"
_log = logging.getLogger(__name__)


class ConsumeQueueTable(QueueFollower[ConsumeQueue]):
    """The queues of all topics; a follower of the dispatcher.

    `put` is called by one thread; everything else by any. Offsets are queue offsets
    unless a name says physical.
    """

    name = "consume_queue"

    def __init__(
        self, vfs: Vfs, directory: str, file_size: int, *, writable: bool = True,
        ext_file_size: int | None = None, batch_topics: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        super().__init__()
        self._vfs, self._directory, self._file_size = vfs, directory, file_size
        #: Topics that have no queues here.
        self.batch_topics = batch_topics
        #: Bytes of an extension's file where extensions are written.
        self._ext_file_size = ext_file_size
        self._ext_directory = os.path.join(os.path.dirname(directory), CONSUME_QUEUE_EXT_DIRECTORY)
        self._has_ext = vfs.exists(self._ext_directory)
        self._writable = writable
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._log_minimum = LogMinimum()
        self._open_lock = threading.RLock()
        self._refused_topics: set[str] = set()
        #: Where the first files of queues start that were not looked at, in bytes, if not at 0.
        self._first_files: Mapping[tuple[str, int], int] = {}
        #: The queues of topics of batches, when there are any; found here, and fed by themselves.
        self.batches: BatchQueueTable | None = None

    def attach(
        self, log_minimum: int, log_end: int | None, ends: Mapping[QueueKey, int] | None = None
    ) -> None:
        """Take in the queues, and where the log begins and, for a reader, ends."""
        self.load(ends)
        self.correct_min_offset(log_minimum, log_end)

    def load(self, ends: Mapping[tuple[str, int], int] | None = None) -> None:
        """Take in the queues whose directories are there and new; what is no queue is passed by.

        `ends` are max offsets that the caller knows (a clean close wrote them down): those
        queues are not read at all. NotAStore if the queues are RocksDB's.
        """
        known = ends or {}
        for topic, is_directory, _ in self._vfs.entries(self._directory):
            if not is_directory:
                if topic == _ROCKSDB_FILE:
                    raise NotAStore(
                        self._directory, "holds RocksDB queues, which are not supported"
                    )
                continue
            for name, is_queue, _ in self._vfs.entries(os.path.join(self._directory, topic)):
                if is_queue and name.isascii() and name.isdecimal() and str(int(name)) == name:
                    key = (topic, int(name))
                    if key not in self._queues:
                        self._queues[key] = self._make(*key, known.get(key))

    def missing_file(
        self, ends: Mapping[tuple[str, int], int], starts: Mapping[tuple[str, int], int] | None
    ) -> str | None:
        """Return a file or directory that is not there by what a clean close noted; None if all is.

        `ends` are the queues' max offsets, `starts` where their first files start (in bytes) if
        not at 0; without it only directories are looked for.
        """
        self._first_files = starts or {}
        for (topic, queue_id), end in ends.items():
            directory = os.path.join(self._directory, topic, str(queue_id))
            if end and self.find(topic, queue_id) is None:
                return directory
            if starts is None or (topic, queue_id) not in self._queues:
                continue
            first = starts.get((topic, queue_id), 0)
            for start in range(first, end * CQ_UNIT.size, self._file_size):
                path = f"{directory}/{offset_name(start)}"
                if not self._vfs.exists(path):
                    return path
        return None

    def first_files(self) -> dict[tuple[str, int], int]:
        """Return where the first files of queues start, in bytes, where that is not at 0."""
        found = {}
        for key, queue in list(self._queues.items()):
            start = queue.first_file_offset
            if start is None:
                start = self._first_files.get(key, 0)
            if start:
                found[key] = start
        return found

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | BatchConsumeQueue | None:
        """Return a queue of any kind, None if there is none."""
        queue = self._queues.get((topic, queue_id))
        if queue is None and self.batches is not None:
            return self.batches.find(topic, queue_id)
        return queue

    def ordinary(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue of 20-byte units, None if there is none."""
        return self._queues.get((topic, queue_id))

    def all_queues(self) -> list[ConsumeQueue | BatchConsumeQueue]:
        """Return the queues of all kinds."""
        return [*self, *(self.batches or ())]

    def find_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, new and empty if there is none; its directory comes with a unit."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[(topic, queue_id)] = self._make(topic, queue_id, None)
        return queue

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Go over the queues, by topic and queue id, as of now."""
        return iter([self._queues[key] for key in sorted(self._queues)])

    def __len__(self) -> int:
        return len(self._queues)

    def max_offsets(self) -> dict[tuple[str, int], int]:
        """Return every queue's next offset (the commit log's topic-queue table, spec §8.1)."""
        own = {key: queue.max_offset for key, queue in list(self._queues.items())}
        return own if self.batches is None else {**own, **self.batches.max_offsets()}

    def correct_min_offset(self, physical_offset: int, end: int | None = None) -> None:
        """Say where the log begins now; each queue finds its first unit when it is asked.

        `end` is where a reader's log ends: units of later records are not shown.
        """
        self._log_minimum.value, self._log_minimum.end = physical_offset, end

    def expire(self, log_minimum: int) -> int:
        """Delete files that only know records below a physical offset; returns how many.

        And say where the log begins now. A queue keeps its last file for ever (spec §2.7).
        """
        self.correct_min_offset(log_minimum)
        return sum(queue.delete_expired(log_minimum) for queue in list(self._queues.values()))

    def recover(
        self, log: ReadableLog, trust: Trust, lower_mark: Callable[[int], None] | None
    ) -> int:
        """Cut every queue at what is trusted, durably; see `recovery.py`."""
        start = recover_queues(self, log, trust)
        self.mark(start, start)
        return start

    def put(self, batch: DispatchBatch) -> None:
        """Write the units of a batch's records, one write for each queue and file it touches.

        Units that are there are passed by, so after an OSError any part may be put again.
        """
        found = units_of(batch, self.batch_topics)
        codes, offsets, units = found.codes, found.offsets, found.plain()
        if not len(units):  # prepared and rolled back records only
            self._written = max(self._written, batch.end)
            return
        times = found.store_timestamps if self._ext_file_size is not None else None
        raw = memoryview(units.tobytes())
        same = codes[1:] == codes[:-1]
        starts = np.concatenate(([0], np.flatnonzero(~same) + 1))
        broken = np.zeros(len(codes), bool)
        broken[1:] = (offsets[1:] - offsets[:-1] != 1) & same
        groups = zip(
            codes[starts].tolist(),
            starts.tolist(),
            [*starts[1:].tolist(), len(units)],
            offsets[starts].tolist(),
            np.logical_or.reduceat(broken, starts).tolist(),
            strict=True,
        )
        touched: list[ConsumeQueue] = []
        try:
            for code, start, end, first, has_gap in groups:
                queue = self._queue_of(*batch.queue_keys[code])
                if queue is None:
                    continue
                touched.append(queue)
                if times is not None:
                    places = slice(start, end)
                    extended = queue.extended(offsets[places], units[places], times[places])
                    queue.put_rows(offsets[places], extended, batch.damaged)
                    continue
                part = raw[start * CQ_UNIT.size : end * CQ_UNIT.size]
                if has_gap or not queue.append_units(first, part):
                    queue.put_rows(offsets[start:end], units[start:end], batch.damaged)
        finally:
            self._note(touched)
        self._written = max(self._written, batch.end)

    def put_run(
        self, topic: str, queue_id: int, offsets: Any, units: Units, times: Any,
        damaged: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        """Write units of one queue, in the order of the log; `damaged` as in `DispatchBatch`.

        `times` are the store times of their records, for the extension.
        """
        queue = self._queue_of(topic, queue_id)
        if queue is None or not len(units):
            return
        try:
            if self._ext_file_size is not None:
                queue.put_rows(offsets, queue.extended(offsets, units, times), damaged)
                return
            consecutive = int(offsets[-1]) - int(offsets[0]) == len(units) - 1
            consecutive = consecutive and bool((np.diff(offsets) == 1).all())
            if not consecutive or not queue.append_units(int(offsets[0]), units.tobytes()):
                queue.put_rows(offsets, units, damaged)
        finally:
            self._note([queue])

    def _queue_of(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue of a record; None for a topic that no directory can be named after."""
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            return queue
        if queue_id < 0 or not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
            if topic not in self._refused_topics:
                self._refused_topics.add(topic)
                _log.warning("topic %r, queue %d: cannot be a directory", topic, queue_id)
            return None
        return self.find_or_create(topic, queue_id)

    def close(self) -> None:
        """Give all descriptors back."""
        for queue in list(self._queues.values()):
            queue.close()

    def _make(self, topic: str, queue_id: int, trusted_end: int | None) -> ConsumeQueue:
        return ConsumeQueue(
            self._vfs,
            self._directory,
            topic,
            queue_id,
            file_size=self._file_size,
            log_minimum=self._log_minimum,
            open_lock=self._open_lock,
            trusted_end=trusted_end,
            writable=self._writable,
            ext=self._make_ext(topic, queue_id),
        )

    def _make_ext(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        """Return a queue's extension: where they are written, or there is one."""
        directory = os.path.join(self._ext_directory, topic, str(queue_id))
        size = self._ext_file_size
        if size is None and not self._has_ext:
            return None
        if size is None:
            sizes = [size for _, is_dir, size in self._vfs.entries(directory) if not is_dir]
            if not sizes:
                return None
            size = sizes[0]
        return ConsumeQueueExt(self._vfs, directory, size, writable=self._writable)
