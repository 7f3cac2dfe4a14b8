"""Write files for a bulk load, in any process: they become part of a store by `store.publish`.

    # in each task; the process holds no lock and opens no store
    with StagedWriter("data", job_id="load-7", attempt="3-17") as writer:
        for batch in batches:
            writer.write(batch)  # the columns of `append_batch`, and topic
        staged = writer.finish()  # small descriptions: pickle them, or send as_json()

    # in one process, when all tasks are done
    with tubestore.open("data") as store:
        store.publish("load-7", staged_of_all_tasks)

Always true:
- a writer makes files of its own only (exclusively, with a random part in the name), below
  `<root>/.tubestore/staging/<job>/`: a task that is run twice, or by two workers at once, does no
  harm, and what is not published is never seen;
- files of a pair are whole when they are described, and synced unless that is left to `publish`;
- positions in them are those of the place that was expected for the pair, if one was, else they
  count from 0; if `publish` gives another place, it rewrites them.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import xxhash

from tubestore.clock import Clock, SystemClock
from tubestore.core import kernels
from tubestore.core.layout import Buffer
from tubestore.core.paths import join
from tubestore.core.vfs import OsVfs, Vfs, VfsFile
from tubestore.disks.roots import local_root
from tubestore.errors import (
    DiskFull,
    InvalidMessage,
    InvalidName,
    StoreClosed,
    StoreFailed,
    failed_write,
)
from tubestore.options import PARTITIONS_PER_STORE, StoreOptions, TopicOptions
from tubestore.record import ingest
from tubestore.record.attributes import LENGTH_SIZE
from tubestore.record.layouts import DATA_HEADER
from tubestore.record.names import DATA_SUFFIX, INDEX_SUFFIX, check_topic_name
from tubestore.record.records import (
    ENTRY_SIZE,
    HEADER_SIZE,
    EncodedBatch,
    RecordColumns,
    encode_columns,
    has_attributes,
)
from tubestore.staging.job_files import (
    StagedFile,
    check_job_id,
    content_of,
    staging_directory,
    topic_number,
)

Array = np.ndarray[Any, Any]
#: Bytes of index and of data before a place in a shard.
Place = tuple[int, int]
_INT = np.dtype(">i4")

#: Rows of a shard are written together when there are so many bytes of them …
_WRITE_BYTES = 256 << 10
#: … or when all shards' rows that wait take so much memory.
_HELD_BYTES = 64 << 20
#: What rows may be routed to when their topic's settings are not known: they bring a partition.
_ANY_PARTITION = TopicOptions(partitions=PARTITIONS_PER_STORE, stores=PARTITIONS_PER_STORE)


class TaskStaging:
    """One task's attempt at a job; leaving its context discards what was not described.

    `token` replaces the random part of names. InvalidName for a job's id or an attempt.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        job_id: str,
        attempt: str,
        *,
        vfs: Vfs | None = None,
        token: str | None = None,
    ) -> None:
        self.job_id = check_job_id(job_id)
        if not attempt or not all(c.isascii() and (c.isalnum() or c in "_.-") for c in attempt):
            raise InvalidName(attempt, "an attempt is named by letters, digits, _ . and -")
        self.directory = staging_directory(local_root(root), job_id)
        self._vfs: Vfs = vfs or OsVfs()
        #: What the names of all its files begin with.
        self._name = f"a{attempt}-{token or uuid.uuid4().hex[:12]}"
        self._closed = False

    def discard(self) -> None:
        """Remove what this writer made and has not described; harmless when repeated."""
        self._closed = True

    def _failed(self, error: OSError) -> DiskFull | StoreFailed:
        """Return what to raise for a failed write; nothing is taken any more."""
        self._closed = True
        return failed_write(self.directory, error)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the writer for job {self.job_id!r} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()


class StagedWriter(TaskStaging):
    """Writes rows of any topics into staged files, a pair (data, index) at a time for each shard.

    `root` is the store's directory as this process sees it, `job_id` the job to publish, `attempt`
    the name of the task's attempt (letters, digits, `_ . -`).

    `topics` gives the settings of topics for rows without a partition: they are routed by key, or
    take turns. `new_topics` are the settings of topics that `topics` does not name. A pair is
    closed when its data or its index has the segment size of `options`.

    `places` has, by topic and store id, the place where the rows of this writer will probably
    begin. `publish` takes a pair without a change if it is in its expected place and its rows
    brought their ids.

    Without `sync` a pair may be gone or damaged after a power cut, which `publish` detects. That is
    for jobs that are then done anew, and that `publish` rewrites in any case, so that their files
    would go to the disk twice. `content` sums up topics, filter items and bodies: by the sum
    `publish` refuses other messages under the id of a job that the store has. Not thread-safe.

    Errors: InvalidMessage and MessageTooLarge (the batch was not taken), InvalidName; DiskFull
    and StoreFailed when a file cannot be written: the writer is of no use any more then.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        job_id: str,
        attempt: str,
        *,
        topics: Mapping[str, TopicOptions] | None = None,
        new_topics: TopicOptions | None = None,
        options: StoreOptions | None = None,
        places: Mapping[tuple[str, int], Place] | None = None,
        sync: bool = True,
        content: bool = True,
        vfs: Vfs | None = None,
        clock: Clock | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(root, job_id, attempt, vfs=vfs, token=token)
        self._topics, self._new_topics = dict(topics or {}), new_topics
        self._options = options or StoreOptions()
        self._clock: Clock = clock or SystemClock()
        self._turn = xxhash.xxh3_64_intdigest(self._name.encode()) >> 1
        self._sync, self._sums_up = sync, content
        #: The expected place of a shard's next pair.
        self._places = dict(places or {})
        self._pairs: dict[tuple[str, int], _Pair] = {}
        self._made: list[_Pair] = []
        self._has_ids: bool | None = None
        self._held = 0

    # -- write -------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        """Take a batch: the columns of `append_batch`, `topic`, and perhaps `msg_id` (int64).

        Rows of a partition keep their order. Either all batches bring `msg_id` or none does;
        in that case `publish` gives every message an id that is unique in the store.
        """
        self._check_open()
        table = ingest.as_table(data, with_topic=True, with_ids=True)
        if table.num_rows == 0:
            return
        self._check_ids("msg_id" in table.column_names)
        names, codes = ingest.split_topics(table)
        given = {"partition", "partition_id"} & set(table.column_names)
        options = [self._options_of(name, known=not given) for name in names]
        partition_ids = ingest.route(table, codes, options, self._turns)
        columns = ingest.build_columns(
            table,
            partition_ids,
            now_ms=self._clock.now_ms(),
            payload_size_max=self._options.payload_size_max,
            next_msg_ids=lambda count: np.zeros(count, np.int64),
        )
        self._add_columns(names, codes, columns)

    def write_columns(self, topic: str, columns: RecordColumns) -> None:
        """Take checked columns of one topic, message ids included."""
        self._check_open()
        if len(columns):
            self._check_ids(True)
            check_topic_name(topic)
            self._add_columns([topic], np.zeros(len(columns), np.int64), columns)

    def write_records(self, topic: str, records: EncodedBatch) -> None:
        """Take whole sound records of one topic, with matching entries.

        Only the offsets are changed, in the given bytes: nothing is encoded or summed up.
        """
        self._check_open()
        if len(records):
            self._check_ids(True)
            check_topic_name(topic)

            def ordered(order: Array | None) -> EncodedBatch:
                return records if order is None else records.take(order)

            ids = records.entries["partition_id"]
            self._add([topic], np.zeros(len(records), np.int64), ids, ordered)

    def _check_ids(self, given: bool) -> None:
        if self._has_ids is None:
            self._has_ids = given
        if self._has_ids != given:
            raise InvalidMessage("column msg_id: either all batches of a writer have it or none")

    def _options_of(self, topic: str, *, known: bool) -> TopicOptions:
        check_topic_name(topic)
        found = self._topics.get(topic, self._new_topics if known else None)
        if found is None and known:
            text = f"topic {topic!r}: how many partitions it has is not known here"
            raise InvalidMessage(f"{text}; give the writer `topics`, or the rows a partition")
        return found or _ANY_PARTITION

    def _turns(self, codes: Array) -> Array:
        first, self._turn = self._turn, self._turn + len(codes)
        return np.arange(first, first + len(codes), dtype=np.uint64)

    def _add_columns(self, names: list[str], codes: Array, columns: RecordColumns) -> None:
        def encoded(order: Array | None) -> EncodedBatch:
            return encode_columns(columns if order is None else columns.take(order))

        self._add(names, codes, columns.partition_ids, encoded)

    def _add(
        self,
        names: list[str],
        codes: Array,
        partition_ids: Array,
        ordered: Callable[[Array | None], EncodedBatch],
    ) -> None:
        """Take rows; `ordered` returns them in an order, None for their own."""
        order, firsts, keys = ingest.shard_order(codes, partition_ids)
        batch = ordered(order)
        bounds = [*firsts.tolist(), len(batch)]
        try:
            for key, first, end in zip(keys.tolist(), bounds, bounds[1:], strict=False):
                code, store_id = divmod(key, PARTITIONS_PER_STORE)
                self._add_part(names[code], store_id, batch.part(first, end))
            if self._held > _HELD_BYTES:
                for pair in self._pairs.values():
                    self._held -= pair.flush()
        except OSError as error:
            raise self._failed(error) from error

    def _add_part(self, topic: str, store_id: int, part: EncodedBatch) -> None:
        pair = self._pairs.get((topic, store_id))
        if pair is None:
            if not self._made:
                self._vfs.make_directories(self.directory)
            name = f"{self._name}-{len(self._made)}"
            place = self._places.get((topic, store_id), (0, 0))
            pair = _Pair(self._vfs, self.directory, name, topic, store_id, place)
            self._made.append(pair)
            self._pairs[topic, store_id] = pair
        if self._sums_up:
            pair.content += content_of(topic_number(topic), body_checksums(part))
        self._held += pair.add(part)
        if pair.held >= _WRITE_BYTES:
            self._held -= pair.flush()
        options = self._options
        full = pair.data_size >= options.segment_size_bytes
        if full or pair.rows * ENTRY_SIZE >= options.index_segment_size_bytes:
            del self._pairs[topic, store_id]
            self._held -= pair.close(sync=self._sync)
            if (topic, store_id) in self._places:
                self._places[topic, store_id] = pair.end

    # -- end ---------------------------------------------------------------------------------

    def finish(self) -> list[StagedFile]:
        """Finish all files and describe them, in the order of their making.

        They are on stable storage when this returns, unless that is left to `publish`.
        """
        self._check_open()
        self._closed = True
        try:
            for pair in self._pairs.values():
                pair.close(sync=self._sync)
            if self._made and self._sync:
                self._vfs.sync_directory(self.directory)
        except OSError as error:
            raise self._failed(error) from error
        made, self._made = self._made, []
        has_ids = bool(self._has_ids)
        return [pair.described(has_ids=has_ids, synced=self._sync) for pair in made]

    def discard(self) -> None:
        """Remove what this writer made and has not described; harmless when repeated."""
        self._closed = True
        made, self._made = self._made, []
        for pair in made:
            pair.remove()


def body_checksums(part: EncodedBatch) -> Array:
    """Return a checksum of each body, without the attributes: those name the minute of staging."""
    flags = kernels.gather(part.data, part.starts + DATA_HEADER.position("flag"), _INT)
    checksums = kernels.gather(part.data, part.starts + DATA_HEADER.position("checksum"), _INT)
    rows = np.flatnonzero(has_attributes(flags))
    if len(rows):
        checksums = checksums.copy()
        begins = part.starts[rows] + HEADER_SIZE
        ends = part.starts[rows] + part.entries["data_size"][rows]
        begins = begins + LENGTH_SIZE + kernels.gather(part.data, begins, _INT).astype(np.int64)
        checksums[rows] = kernels.crc_each(part.data.data, begins, ends)
    found: Array = checksums ^ part.entries["key_code"]  # the filter item
    return found


class _Pair:
    """A data file and its index file, being written; offsets count from `place`."""

    def __init__(
        self, vfs: Vfs, directory: str, name: str, topic: str, store_id: int, place: Place
    ) -> None:
        self._vfs, self.name, self.topic, self.store_id = vfs, name, topic, store_id
        self._index_start, self._data_start = place
        self._data = _Stream(vfs, join(directory, name + DATA_SUFFIX))
        self._index = _Stream(vfs, join(directory, name + INDEX_SUFFIX))
        self.rows = self.data_size = self.content = 0
        self._first_time, self._last_time = 1 << 63, -(1 << 63)
        self._partitions = 0

    @property
    def held(self) -> int:
        """Bytes that wait in memory."""
        return len(self._data.held) + len(self._index.held)

    @property
    def end(self) -> Place:
        """The place of the shard's next pair, if this one gets its expected place."""
        return self._index_start + self.rows * ENTRY_SIZE, self._data_start + self.data_size

    def add(self, part: EncodedBatch) -> int:
        """Take rows; returns how many more bytes wait in memory."""
        before = self.held
        part.place(*self.end)
        self._data.add(part.data.data)
        self._index.add(part.entries.view(np.uint8).data)
        self.rows += len(part)
        self.data_size += len(part.data)
        times = part.entries["received_time"]
        self._first_time = min(self._first_time, int(times.min()))
        self._last_time = max(self._last_time, int(times.max()))
        place = int(part.entries["partition_id"].max()) % PARTITIONS_PER_STORE
        self._partitions = max(self._partitions, place + 1)
        return self.held - before

    def flush(self) -> int:
        """Write what waits; returns how many bytes that were."""
        held = self.held
        self._data.flush()
        self._index.flush()
        return held

    def close(self, *, sync: bool) -> int:
        """Write what waits, sync if asked to, and close; returns how many bytes waited."""
        held = self.held
        self._data.close(sync=sync)
        self._index.close(sync=sync)
        return held

    def remove(self) -> None:
        """Remove both files, as far as they are there."""
        self._data.remove()
        self._index.remove()

    def described(self, *, has_ids: bool, synced: bool) -> StagedFile:
        """Describe the closed pair."""
        return StagedFile(
            topic=self.topic,
            store_id=self.store_id,
            name=self.name,
            rows=self.rows,
            data_size=self.data_size,
            first_time=self._first_time,
            last_time=self._last_time,
            partitions=self._partitions,
            has_ids=has_ids,
            data_digest=self._data.digest.hexdigest(),
            index_digest=self._index.digest.hexdigest(),
            index_start=self._index_start,
            data_start=self._data_start,
            synced=synced,
            content=self.content % (1 << 64),
        )


class _Stream:
    """One file that is written from its start to its end; made by its first write."""

    def __init__(self, vfs: Vfs, path: str) -> None:
        self._vfs, self._path = vfs, path
        self._file: VfsFile | None = None
        self._size = 0
        self.held = bytearray()
        self.digest = xxhash.xxh3_64()

    def add(self, data: memoryview) -> None:
        """Take bytes: many are written at once, from where they are, few wait for others."""
        if len(data) < _WRITE_BYTES:
            self.held += data
        else:
            self.flush()
            self._write(data)

    def flush(self) -> None:
        """Write what waits."""
        held, self.held = self.held, bytearray()
        self._write(held)

    def _write(self, data: Buffer) -> None:
        if self._file is None:
            self._file = self._vfs.open(self._path, create=True)
        if len(data):
            self._file.pwrite(data, self._size)
            self.digest.update(data)
            self._size += len(data)

    def close(self, *, sync: bool) -> None:
        """Write what waits, sync if asked to, and close."""
        self.flush()
        assert self._file is not None
        if sync:
            self._file.sync()
        self._file.close()

    def remove(self) -> None:
        """Remove the file, if it was made; what cannot be removed stays for the janitor."""
        self.held = bytearray()
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(OSError):
                self._vfs.remove(self._path)
