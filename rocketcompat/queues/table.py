"""All queues of a store, made on demand; the dispatcher feeds them, pulls read them.

RocketMQ's `consumeQueueTable`, one table for each kind of queues: ordinary ones,
and those of the topics of batches (`record/batches.py`). Loading reads directory names only: a
queue opens its files when it is first touched, so ten thousand idle queues cost their names.

The number of all places below a mark is kept with it: a recovery finds by it that units are missing
which no unit behind them shows.

Guards: none for the queues of a table, which the one thread that puts adds; `_lock` guards the set
of those that were written since the last sync.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from rocketcompat.commitlog.reads import ReadableLog
from rocketcompat.files.progress import QueueKey, Trust
from rocketcompat.formats import CONSUME_QUEUE_EXT_DIRECTORY, CQ_UNIT, offset_name
from rocketcompat.messages import DispatchBatch
from rocketcompat.queues.batch_consume_queue import BatchConsumeQueue
from rocketcompat.queues.consume_queue import ConsumeQueue
from rocketcompat.queues.extension import ConsumeQueueExt
from rocketcompat.queues.files import holds_rocksdb, queue_names
from rocketcompat.queues.recovery import recover_queues
from rocketcompat.queues.units import LogMinimum, Units, units_of
from tubestore.core.doors import logger
from tubestore.core.quarantine import Quarantine
from tubestore.core.vfs import Vfs
from tubestore.errors import CorruptRecord, NotAStore, TubeStoreError

Q = TypeVar("Q", ConsumeQueue, BatchConsumeQueue)
_log = logger(__name__)


class QueueTable(ABC, Generic[Q]):
    """The queues of one kind and how far they are written; a follower of the dispatcher.

    `put` is called by one thread; everything else by any. Offsets are queue offsets; physical ones
    are named so.
    """

    def __init__(self, vfs: Vfs, directory: str, file_size: int, *, writable: bool) -> None:
        self._vfs, self._directory, self._file_size = vfs, directory, file_size
        self._writable = writable
        self._queues: dict[QueueKey, Q] = {}
        self._log_minimum = LogMinimum()
        self._open_lock = threading.RLock()
        self._lock = threading.Lock()
        self._dirty: set[Q] = set()
        #: How many places each queue has that were counted, and all together.
        self._counted: dict[Q, int] = {}
        self._count = 0
        #: A physical offset and the places of the units below it: written, and synced.
        self._written = self._synced = (0, 0)
        self._problems: list[TubeStoreError] = []

    @abstractmethod
    def _make(self, topic: str, queue_id: int, trusted_end: int | None) -> Q:
        """Make a queue; `trusted_end` is its max offset by a clean close."""

    # -- the queues --------------------------------------------------------------------------

    def attach(
        self, log_minimum: int, log_end: int | None, ends: Mapping[QueueKey, int] | None = None
    ) -> None:
        """Take in the queues, and where the log begins and, for a reader, ends."""
        self.load(ends)
        self.correct_min_offset(log_minimum, log_end)

    def load(self, ends: Mapping[QueueKey, int] | None = None) -> None:
        """Take in the queues with new directories; other names are passed by.

        `ends` are max offsets that the caller has (from a clean close): ordinary queues with one
        are not read at all.
        """
        known = ends or {}
        for key in queue_names(self._vfs, self._directory):
            if key not in self._queues:
                self._queues[key] = self._make(*key, known.get(key))

    def of_kind(self, topic: str, queue_id: int) -> Q | None:
        """Return a queue of this kind, None if there is none."""
        return self._queues.get((topic, queue_id))

    def find_or_create(self, topic: str, queue_id: int) -> Q:
        """Return a queue, new and empty if there is none; its directory comes with a unit."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[(topic, queue_id)] = self._make(topic, queue_id, None)
        return queue

    def __iter__(self) -> Iterator[Q]:
        """Go over the queues, by topic and queue id, as of now."""
        return iter([self._queues[key] for key in sorted(self._queues)])

    def __len__(self) -> int:
        return len(self._queues)

    def max_offsets(self) -> dict[QueueKey, int]:
        """Return every queue's next offset (the commit log's topic-queue table)."""
        return {key: queue.max_offset for key, queue in list(self._queues.items())}

    def correct_min_offset(self, physical_offset: int, end: int | None = None) -> None:
        """Set where the log begins; each queue finds its first unit when it is asked.

        `end` is where a reader's log ends: units of later records are not shown.
        """
        self._log_minimum.value, self._log_minimum.end = physical_offset, end

    def expire(self, log_minimum: int) -> int:
        """Delete files that only have records below a physical offset; returns how many.

        It also sets where the log begins. A queue keeps its last file for ever.
        """
        self.correct_min_offset(log_minimum)
        return sum(queue.delete_expired(log_minimum) for queue in list(self._queues.values()))

    def close(self) -> None:
        """Give all descriptors back."""
        for queue in list(self._queues.values()):
            queue.close()

    # -- how far they are written ------------------------------------------------------------

    @property
    def problems(self) -> Sequence[TubeStoreError]:
        """What a recovery built again because it was missing."""
        return tuple(self._problems)

    def mark(self, end: int) -> None:
        """Set the physical offset up to which the files are known to hold everything."""
        self._counted, self._count = {}, 0
        self._count_places(self._queues.values())
        self._written = self._synced = end, self._count

    @property
    def ends(self) -> tuple[int, int]:
        """(written, synced): everything below is in the files, and on stable storage."""
        return self._written[0], self._synced[0]

    @property
    def places(self) -> int:
        """How many places of units there are below the synced end."""
        return self._synced[1]

    def lacks_file(self, trust: Trust, *, from_zero: bool) -> bool:
        """Return whether a queue lacks a file before its last; then it is reported.

        With `from_zero` the first file has to start at 0, too. Without a trusted mark no queue is
        known to have had more.
        """
        for queue in self:
            path = queue.lacking(from_zero=from_zero)
            if path is not None:
                if trust.mark is not None:
                    self.report(path, "the file is missing or empty")
                return True
        return False

    def lacks_places(self, trust: Trust) -> bool:
        """Return whether queues that were cut at the trusted mark lack units; it is reported."""
        places = sum(queue.places for queue in list(self._queues.values()))
        if trust.places is None or places >= trust.places:
            return False
        self.report(self._directory, f"the queues have {places} units of {trust.places}")
        return True

    def report(self, path: str, reason: str) -> None:
        """Note, and log, what is missing and is built again."""
        self.note(CorruptRecord(path, 0, f"{reason}; the queues are built again from the log"))

    def note(self, error: CorruptRecord) -> None:
        """Report, and log, what is damaged."""
        _log.warning("%s", error)
        self._problems.append(error)

    def replayed(self) -> None:
        """Do nothing: queues keep nothing for recovery."""

    def flush(self, sync: bool) -> None:
        """With `sync`, bring every queue that was written to stable storage."""
        if not sync:
            return
        with self._lock:
            written, dirty = self._written, self._dirty
            self._dirty = set()
        self._flush(dirty)
        self._synced = max(self._synced, written)

    def flush_due(self, least_pages: int) -> int:
        """Sync the queues that have at least so many dirty pages; returns how many.

        No mark moves: the other queues are not on stable storage. OSError passes through.
        """
        with self._lock:
            due = [queue for queue in self._dirty if queue.dirty_pages >= least_pages]
            self._dirty.difference_update(due)
        self._flush(due)
        return len(due)

    def _count_places(self, touched: Iterable[Q]) -> None:
        """Add the places that queues got since they were last counted."""
        counted = self._counted
        for queue in touched:
            places = queue.places
            self._count += places - counted.get(queue, 0)
            counted[queue] = places

    def _has_put(self, end: int) -> None:
        """Everything below a physical offset is in the files."""
        if end > self._written[0]:
            self._written = end, self._count

    def _note(self, touched: Collection[Q]) -> None:
        """Note queues after they were written: a sync in between may not cover it."""
        with self._lock:
            self._dirty.update(touched)

    def _flush(self, queues: Collection[Q]) -> None:
        """Sync queues; those that fail stay dirty."""
        left = set(queues)
        try:
            for queue in queues:
                queue.flush()
                left.remove(queue)
        finally:
            self._note(left)


class ConsumeQueueTable(QueueTable[ConsumeQueue]):
    """The queues of all topics but those of batches."""

    name = "consume_queue"

    def __init__(
        self, vfs: Vfs, directory: str, file_size: int, *, writable: bool = True,
        ext_file_size: int | None = None, batch_topics: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        super().__init__(vfs, directory, file_size, writable=writable)
        #: Topics that have no queues here.
        self.batch_topics = batch_topics
        #: Bytes of an extension's file where extensions are written.
        self._ext_file_size = ext_file_size
        self._ext_directory = os.path.join(os.path.dirname(directory), CONSUME_QUEUE_EXT_DIRECTORY)
        self._has_ext = vfs.exists(self._ext_directory)
        self._refused_topics: set[str] = set()
        #: Start of the first files of queues that were not read, in bytes, if not at 0.
        self._first_files: Mapping[QueueKey, int] = {}
        #: The queues of topics of batches, when there are any; found here, and fed by themselves.
        self.batches: BatchQueueTable | None = None

    def load(self, ends: Mapping[QueueKey, int] | None = None) -> None:
        """As `QueueTable.load`; NotAStore if the queues are RocksDB's."""
        if holds_rocksdb(self._vfs, self._directory):
            raise NotAStore(self._directory, "holds RocksDB queues, which are not supported")
        super().load(ends)

    def missing_file(
        self, ends: Mapping[QueueKey, int], starts: Mapping[QueueKey, int] | None
    ) -> str | None:
        """Return a file or directory that is missing since a clean close; None if all is there.

        A file without bytes is missing, too, and so is one of inner batches if their end moved.
        `ends` are the queues' max offsets, `starts` the starts of their first files (in bytes) if
        not at 0. Without `starts` only directories are compared.
        """
        self._first_files = starts or {}
        for (topic, queue_id), end in ends.items():
            directory = os.path.join(self._directory, topic, str(queue_id))
            if end and self.find(topic, queue_id) is None:
                return directory
            of_batches = None if self.batches is None else self.batches.of_kind(topic, queue_id)
            whole = starts is not None and (topic, queue_id) not in starts
            if of_batches is not None:
                lacking = of_batches.lacking(from_zero=whole)
                if lacking is None and of_batches.max_offset != end:
                    lacking = of_batches.place_of_unit(end)[0]
                if lacking is not None:
                    return lacking
            if starts is None or (topic, queue_id) not in self._queues:
                continue
            first = starts.get((topic, queue_id), 0)
            sizes = {name: size for name, _, size in self._vfs.entries(directory)}
            for start in range(first, end * CQ_UNIT.size, self._file_size):
                if not sizes.get(offset_name(start)):
                    return f"{directory}/{offset_name(start)}"
        return None

    def first_files(self) -> dict[QueueKey, int]:
        """Return the starts of the queues' first files, in bytes, if not at 0."""
        found = {}
        for key, queue in list(self._queues.items()):
            start = queue.first_file_offset
            if start is None:
                start = self._first_files.get(key, 0)
            if start:
                found[key] = start
        for queue_of_batches in self.batches or ():
            if queue_of_batches.first_file_offset:
                key = (queue_of_batches.topic, queue_of_batches.queue_id)
                found[key] = queue_of_batches.first_file_offset
        return found

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | BatchConsumeQueue | None:
        """Return a queue of any kind, None if there is none."""
        queue = self._queues.get((topic, queue_id))
        if queue is None and self.batches is not None:
            return self.batches.of_kind(topic, queue_id)
        return queue

    def all_queues(self) -> list[ConsumeQueue | BatchConsumeQueue]:
        """Return the queues of all kinds."""
        return [*self, *(self.batches or ())]

    def max_offsets(self) -> dict[QueueKey, int]:
        """Return every queue's next offset, those of batches included."""
        own = super().max_offsets()
        return own if self.batches is None else {**own, **self.batches.max_offsets()}

    def recover(
        self, log: ReadableLog, trust: Trust, lower_mark: Callable[[int], None] | None
    ) -> int:
        """Cut every queue at what is trusted, durably; see `recovery.py`."""
        start = recover_queues(self, log, trust, lower_mark)
        self.mark(start)
        return start

    def put(self, batch: DispatchBatch) -> None:
        """Write the units of a batch's records, one write for each queue and file it touches.

        Units that are there are passed by, so after an OSError any part may be put again.
        """
        found = units_of(batch, self.batch_topics)
        codes, offsets, units = found.codes, found.offsets, found.plain()
        if not len(units):  # prepared and rolled back records only
            self._has_put(batch.end)
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
            self._count_places(touched)
        self._has_put(batch.end)

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
            self._count_places([queue])

    def _queue_of(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue of a record; None for a topic that cannot be a directory's name."""
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            return queue
        if queue_id < 0 or not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
            if topic not in self._refused_topics:
                self._refused_topics.add(topic)
                _log.warning("topic %r, queue %d: cannot be a directory", topic, queue_id)
            return None
        return self.find_or_create(topic, queue_id)

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
        size = self._ext_file_size
        if size is None and not self._has_ext:
            return None
        directory = os.path.join(self._ext_directory, topic, str(queue_id))
        if size is None:
            sizes = [size for _, is_dir, size in self._vfs.entries(directory) if not is_dir]
            if not sizes:
                return None
            size = sizes[0]
        return ConsumeQueueExt(self._vfs, directory, size, writable=self._writable)


class BatchQueueTable(QueueTable[BatchConsumeQueue]):
    """The queues of the topics of batches; without such topics there is no table."""

    name = "batch_consume_queue"

    def __init__(
        self, vfs: Vfs, directory: str, file_size: int, topics: frozenset[str],
        *, writable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(vfs, directory, file_size, writable=writable)
        #: The topics that have such queues.
        self.topics = topics

    def recover(
        self, log: ReadableLog, trust: Trust, lower_mark: Callable[[int], None] | None
    ) -> int:
        """Cut every queue at the trusted mark; without one keep what the log cannot give again."""
        start = log.max_offset
        if not trust.as_left:
            mark = trust.mark
            if mark is None and not trust.own:
                mark = trust.verified_from
            if self.lacks_file(trust, from_zero=not log.min_offset):
                mark = None
            if mark is not None:
                start = max(log.min_offset, min(start, mark))
                self._cut(start, trust.keeper)
                if self.lacks_places(trust):
                    mark = None
            if mark is None:
                if trust.own and lower_mark is not None:
                    lower_mark(log.min_offset)  # a crash from here on must not trust what is cut
                start = log.min_offset
                self._cut(start, trust.keeper)
        self.mark(start)
        return start

    def _cut(self, keep_below: int, keeper: Quarantine | None) -> None:
        for queue in list(self._queues.values()):
            queue.recover(keep_below, keeper)

    def put(self, batch: DispatchBatch) -> None:
        """Append the units of a batch's records; those that are there are passed by."""
        found = units_of(batch, self.topics, of_batches=True)
        units = found.of_batches()
        for key, start, end in found.runs():
            self.put_run(*key, units[start:end])
        self._has_put(batch.end)

    def put_run(self, topic: str, queue_id: int, units: Units) -> None:
        """Append units of one queue, in the order of the log; as `put`."""
        queue = self.find_or_create(topic, queue_id)
        try:
            queue.put_rows(units)
        finally:
            self._note([queue])
            self._count_places([queue])

    def _make(self, topic: str, queue_id: int, trusted_end: int | None) -> BatchConsumeQueue:
        return BatchConsumeQueue(
            self._vfs, self._directory, topic, queue_id, file_size=self._file_size,
            log_minimum=self._log_minimum, open_lock=self._open_lock, writable=self._writable,
        )  # fmt: skip
