"""Write records for a bulk load, in any process: `store.publish` makes them part of a log.

    # in each task; the process holds no lock and opens no store
    with StagedLogWriter("store", "load-7", attempt="3-17", config=config) as writer:
        for batch in batches:
            writer.write(batch)  # the columns of `put_columns`
        staged = writer.finish()  # small descriptions: pickle them, or send as_json()

    # in one process, when all tasks are done
    with rocketcompat.open("store", "w", config) as store:
        store.publish("load-7", staged_of_all_tasks)

Always true:
- a writer makes files of its own only (exclusively, with a random part in the name), below
  `<root>/.tubestore/staging/<job>/`: a task that is run twice, or by two workers at once, does no
  harm, and what is not published is never seen;
- files are whole and synced when they are described;
- a record is complete but for queue offset, physical offset and, unless it brings one, store time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from rocketcompat.commitlog.batch import batch_of_records
from rocketcompat.commitlog.queue_offsets import QueueKey
from rocketcompat.formats import BLANK, SYS_FLAG_INNER_BATCH
from rocketcompat.messages import has_queue_unit
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.columns import RecordColumns, queue_columns
from rocketcompat.record.encode import encode_columns
from rocketcompat.record.given import put_aside
from rocketcompat.record.properties import SCHEDULE_TOPIC
from rocketcompat.staging.pieces import (
    BLOCK_BYTES,
    KEY_HASH,
    LOG_SUFFIX,
    ROW,
    ROWS_SUFFIX,
    StagedPiece,
    digest_of,
)
from tubestore.core.kernels import Int64s, joined
from tubestore.core.paths import join
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.errors import (
    InvalidMessage,
    MessageTooLarge,
)
from tubestore.staging.job_files import content_of, topic_number
from tubestore.staging.placing import EarlyWriteOut
from tubestore.staging.writer import TaskStaging


class StagedLogWriter(TaskStaging):
    """Writes records into one staged piece of a job.

    `root` is the store's directory as this process sees it, `attempt` names the task's attempt
    (letters, digits, `_ . -`), `config` the options of the store: its file size bounds a record.
    Not thread-safe.

    Errors: InvalidMessage, InvalidName and MessageTooLarge (the batch was not taken); DiskFull
    and StoreFailed when a file cannot be written: the writer is of no use any more then.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        job_id: str,
        attempt: str,
        *,
        config: MessageStoreConfig,
        vfs: Vfs | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(root, job_id, attempt, vfs=vfs, token=token)
        self._config = config
        self._files: list[VfsFile] = []
        self._queues: dict[QueueKey, int] = {}
        self._blocks: list[tuple[int, int, str]] = []
        self._rows: list[Any] = []
        self._hashes: list[Any] = []
        self._is_plain = True
        self._kind: tuple[bool, bool] | None = None
        self._size = self._content = 0
        self._write_out: EarlyWriteOut | None = None

    def write(self, messages: Any) -> None:
        """Take messages as `put_columns` does; they get their store time when published."""
        self._check_open()
        encoded = encode_columns(put_aside(messages, self._config), self._config)
        if len(encoded):
            self._check_kind(False, not encoded.born_missing)
            nothing = np.zeros(len(encoded), np.int64)
            records = encoded.records(0, nothing, 0)
            self._add(encoded.data, encoded.bounds, self._queues_of(records), records)

    def write_records(self, records: RecordColumns) -> None:
        """Take records as they are, with their times; they only get new offsets."""
        self._check_open()
        if not len(records):
            return
        sizes = records.column("total_size").astype(np.int64)
        room = self._config.mapped_file_size_commit_log - BLANK.size
        if int(sizes.max()) > room:
            setting = "mapped_file_size_commit_log"
            raise MessageTooLarge(int(sizes.max()), room, "record", setting)
        if (records.column("sys_flag") & SYS_FLAG_INNER_BATCH).any() and (
            self._config.compat == "5.3.3" or self._config.batch_topics
        ):
            raise InvalidMessage("an inner batch: its queue offsets are given out by put only")
        self._check_kind(True, True)
        data, bounds = joined(records.data, records.starts, sizes)
        self._add(data, bounds, self._queues_of(records), records)

    def _queues_of(self, records: RecordColumns) -> Int64s:
        """Return the number of each row's queue in this piece, -1 if it takes no place in one."""
        keys, codes = records.queues = queue_columns(records)  # of which the rows are made, too
        counted = has_queue_unit(records.column("sys_flag"))
        used = np.flatnonzero(np.bincount(codes[counted], minlength=len(keys)))
        numbers = np.full(len(keys), -1, np.int64)
        for code in used.tolist():
            numbers[code] = self._queues.setdefault(keys[code], len(self._queues))
        return np.where(counted, numbers[codes], -1)

    def _check_kind(self, has_times: bool, has_born: bool) -> None:
        kind = (has_times, has_born)
        if self._kind not in (None, kind):
            raise InvalidMessage("times: either all batches of a writer have them or none")
        self._kind = kind

    def _add(self, data: Any, bounds: Int64s, queues: Int64s, records: RecordColumns) -> None:
        """Write records, some MiB at a time; `records` are the same as columns."""
        try:
            if not self._files:
                self._vfs.make_directories(self.directory)
                for suffix in (LOG_SUFFIX, ROWS_SUFFIX):
                    path = join(self.directory, self._name + suffix)
                    self._files.append(self._vfs.open(path, create=True))
                self._write_out = EarlyWriteOut(self._files[0])
            for first, end in blocks_of(bounds):
                block = memoryview(data)[int(bounds[first]) : int(bounds[end])]
                self._files[0].pwrite(block, self._size)
                self._blocks.append((end - first, len(block), digest_of(block)))
                self._size += len(block)
            assert self._write_out is not None
            self._write_out.reached(self._size)
        except OSError as error:
            raise self._failed(error) from error
        self._note(queues, records)

    def _note(self, queues: Int64s, records: RecordColumns) -> None:
        """Write the facts that queues and index need of records."""
        batch = batch_of_records(records, 0, 0, self._config.delay_levels_ms)
        rows = np.empty(len(queues), ROW)
        rows["size"], rows["queue"], rows["sys_flag"] = batch.sizes, queues, batch.sys_flags
        rows["keys"] = np.bincount(batch.key_rows, minlength=len(rows))
        rows["tags_code"] = batch.tags_codes
        rows["store_timestamp"] = batch.store_timestamps
        self._rows.append(rows)
        self._hashes.append(batch.key_hashes)
        keys, codes = queue_columns(records)
        topics = np.array([topic_number(topic) for topic, _ in keys], np.uint64)
        self._content += content_of(topics[codes], records.column("body_crc"))
        assert self._kind is not None
        has_times = self._kind[0]
        self._is_plain &= not len(batch.copy_rows) and batch.message_counts is None
        # A unit of a delayed message has the time at which it is due.
        self._is_plain &= has_times or all(t != SCHEDULE_TOPIC for t, _ in batch.queue_keys)

    def finish(self) -> list[StagedPiece]:
        """Bring everything to stable storage and describe it; empty if nothing was written."""
        self._check_open()
        self._closed = True
        if self._kind is None:
            return []
        rows, hashes = np.concatenate(self._rows), np.concatenate(self._hashes).astype(KEY_HASH)
        raw = rows.tobytes() + hashes.tobytes()
        try:
            self._files[1].pwrite(raw, 0)
            for file in self._files:
                file.sync()
                file.close()
            self._vfs.sync_directory(self.directory)
        except OSError as error:
            raise self._failed(error) from error
        self._files = []
        return [
            StagedPiece(
                name=self._name,
                rows=len(rows),
                size=self._size,
                queues=tuple(self._queues),
                blocks=tuple(self._blocks),
                rows_digest=digest_of(raw),
                keys=len(hashes),
                is_plain=self._is_plain,
                has_times=self._kind[0],
                has_born=self._kind[1],
                content=self._content % (1 << 64),
            )
        ]

    def discard(self) -> None:
        """Remove the files that this writer made and has not described; harmless when repeated."""
        self._closed = True
        files, self._files = self._files, []
        for file in files:
            file.close()
            with suppress(OSError):
                self._vfs.remove(file.path)


def blocks_of(bounds: Int64s) -> Iterator[tuple[int, int]]:
    """Cut the records between boundaries into blocks of about `BLOCK_BYTES`: rows [first, end)."""
    first, size = int(bounds[0]), int(bounds[-1] - bounds[0])
    count = round(size / BLOCK_BYTES)
    cuts = bounds.searchsorted([first + size * number // count for number in range(1, count)])
    yield from pairwise(sorted({0, *cuts.tolist(), len(bounds) - 1}))
