"""The one log of all messages, and the write-ahead log of everything that is built from it (D2).

Always true:
- a record never crosses a file's end and leaves 8 bytes for the blank that closes it;
- queue offsets are given out under the put lock, in log order, without gaps;
- a put that raised left no bytes and used no queue offset;
- after a failed sync, or a write that could not be undone, nothing is taken any more
  (`StoreFailed`); what was written stays readable.

Durability: a put has reached the page cache when it returns. `sync_to` brings it to stable
storage; callers that wait share one sync (the first becomes the leader of all that come while
the sync before is running).

Guards: `_put_lock` guards the end of the log, the next queue offsets and what is left for the
dispatcher; the group commit has a lock of its own. The first may be held when the second is
taken, never the other way round.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from rocketcompat.commitlog.appended import Appended
from rocketcompat.commitlog.queue_offsets import QueueKey, QueueOffsetTable
from rocketcompat.commitlog.refusals import Refusals
from rocketcompat.commitlog.walk import NO_GAPS, Checks, Gap, Gaps
from rocketcompat.files.mapped_file import LeftOver, MappedFile
from rocketcompat.files.mapped_file_queue import MappedFileQueue
from rocketcompat.files.mmap_file import MmapFile, WarmUp, new_mmap_file
from rocketcompat.files.transient_pool import BufferedFile, TransientStorePool
from rocketcompat.formats import BLANK, TRANSACTION_PREPARED
from rocketcompat.messages import ReadyBatches, has_queue_unit
from rocketcompat.options import MessageStoreConfig
from rocketcompat.record.codec import encode_blank, encode_one
from rocketcompat.record.encode import EncodedColumns
from rocketcompat.record.prepare import Prepared, add_base
from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.core.group_commit import GroupCommit
from tubestore.core.kernels import Int64s
from tubestore.core.layout import Buffer
from tubestore.core.vfs import Vfs
from tubestore.errors import StoreBusy, TubeStoreError, again

_log = logger(__name__)


class CommitLog:
    """RocketMQ's CommitLog: its files, its end, its syncs, its gaps."""

    def __init__(
        self, vfs: Vfs, directory: str, config: MessageStoreConfig, clock: Clock,
        appended: Appended, *, writable: bool = True, more: Sequence[str] = (),
        read_only: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.queue = MappedFileQueue(
            vfs,
            directory,
            config.mapped_file_size_commit_log,
            writable=writable,
            more=more,
            read_only=read_only,
        )
        #: What recovery found damaged; these places are passed over.
        self.gaps = NO_GAPS
        #: Next offsets of queues that neither a record nor a unit shows: their messages are lost.
        self.lost_numbers: dict[QueueKey, int] = {}
        #: True if records end in a checksum of the whole record, which is compared.
        self.record_crc = config.force_verify_prop_crc
        #: True if another program may have written the records: they come from a master.
        self.is_copy = False
        self.config = config
        self._clock, self._appended = clock, appended
        self._put_lock = appended.lock
        self._next_queue_offsets = QueueOffsetTable(config)
        #: Since when the put that is under way holds the lock, ms; 0 if none does.
        self._held_since = 0
        #: Where the next record goes, and up to where readers see.
        self._end = self._visible = 0
        self._syncs = GroupCommit(0)
        self._pool: TransientStorePool | None = None
        if writable and config.uses_transient_pool:
            self._pool = TransientStorePool(config.transient_store_pool_size, self.queue.file_size)
            self.queue.new_file = self._pool.new_file
        elif writable and not config.write_without_mmap:
            warm_up = WarmUp.of(config) if config.warm_maped_file_enable else None
            self.queue.new_file = partial(new_mmap_file, warm_up=warm_up)
            self.queue.loaded_file = MmapFile
        self._commit_lock = threading.Lock()
        self._last: MappedFile | None = None
        self.refusals = Refusals(directory)
        self._store_timestamp = 0
        #: How far the last sync reached, and the store time of the last record that it covered,
        #: ms; 0 before the first.
        self.synced = (0, 0)
        #: How often files were synced, and for how many waiters; for statistics and tests.
        self.sync_count = 0
        #: Messages put since the log was opened.
        self.put_count = 0

    def checks(self, own_from: int) -> Checks:
        """Return what recovery compares of a record; from `own_from` on only we have written."""
        config = self.config
        return Checks(config.check_crc_on_recover, self.record_crc, own_from, self.is_copy)

    def start_at(self, end: int, synced: int) -> None:
        """Set where the log ends, and up to where it is on stable storage (recovery does)."""
        self.queue.set_end(end)
        self.queue.set_flushed(synced)
        self._last = self.queue.last
        self._end = self._visible = end
        self._syncs, self.synced = GroupCommit(synced), (synced, 0)
        self._appended.begin()

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that is kept."""
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        """Physical offset behind the last record that can be read."""
        return self._visible

    def read_at(self, physical_offset: int, size: int) -> bytes:
        """Read bytes of the log as they are; fewer at the end of a file or of the log."""
        size = min(size, self.max_offset - physical_offset)
        return self.queue.read(physical_offset, size) if size > 0 else b""

    def note_gap(self, gap: Gap) -> None:
        """Remember a gap."""
        self.gaps = Gaps.merged((*self.gaps, gap))

    @property
    def uncommitted_bytes(self) -> int:
        """What only the transient pool holds (0 without one): lost when the process dies."""
        return self._end - self._visible

    @property
    def synced_offset(self) -> int:
        """Everything below this physical offset is on stable storage."""
        return self._syncs.end

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message of this queue gets."""
        return self._next_queue_offsets.get(topic, queue_id)

    def raise_queue_offsets(self, offsets: Iterable[tuple[QueueKey, int]]) -> None:
        """Take in next queue offsets; the greater counts (recovery does, from the queues)."""
        with self._put_lock:
            self._next_queue_offsets.raise_to(offsets)

    def keep_queue_offsets(self, offsets: Iterable[tuple[QueueKey, int]]) -> None:
        """As `raise_queue_offsets`, for messages that are lost: the marks keep these offsets."""
        found = list(offsets)
        self.raise_queue_offsets(found)
        for key, offset in found:
            self.lost_numbers[key] = max(offset, self.lost_numbers.get(key, 0))

    def put_one(self, prepared: Prepared) -> tuple[int, int, int]:
        """Append a message; returns (physical offset, queue offset, store timestamp).

        In the page cache on return; thread-safe. DiskFull without room on the disk (it may be
        tried again), StoreFailed once the log has failed.
        """
        message = prepared.message
        counted = not prepared.sys_flag & TRANSACTION_PREPARED  # a rollback has this bit too
        if self._held_since:
            self._refuse_if_busy()
        with self._put_lock:
            refusals = self.refusals
            if refusals.failed is not None or refusals.too_full is not None:
                refusals.refuse(1)
            now = self._held_since = self._clock.now_ms()
            try:
                table = self._next_queue_offsets
                copies = table.offsets_of_copies(prepared) if prepared.copies else ()
                number = table.number_of(message.topic, message.queue_id)
                queue_offset = table.next.item(number) if counted else 0
                if prepared.inner_count:
                    add_base(prepared, queue_offset, self.config)
                size = prepared.size
                file, physical_offset = self._place(size)
                record = encode_one(prepared, queue_offset, physical_offset, now)
                if file is None:
                    file = self._roll()
                file.append(record)
            except (OSError, LeftOver) as error:
                raise refusals.of_write(error, 1) from error
            finally:
                self._held_since = 0
            if refusals.no_room is not None:
                refusals.has_room()
            if counted:
                table.next[number] = queue_offset + (prepared.inner_count or 1)
            for copy, offset in copies:
                table.move(copy, offset + 1)
            self._end = physical_offset + size
            if self._pool is None:
                self._visible = self._end
            self._store_timestamp = now
            self.put_count += 1
            self._appended.add(physical_offset)
        return physical_offset, queue_offset, now

    def put_columns(
        self, encoded: EncodedColumns, *, together: bool = False
    ) -> tuple[Int64s, Int64s, int]:
        """Append messages in order; returns (physical offsets, queue offsets, store timestamp).

        As so many single puts, but for the one store time: at a file's end the batch is
        split; `together` keeps it in one file, which has to have room for it, and all of it is
        written or nothing. On an error rows before may be in the log: then it is PartPlaced.
        """
        count = len(encoded)
        if count == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64), self._clock.now_ms()
        counted = has_queue_unit(encoded.sys_flags)
        groups, firsts, group_ranks = encoded.queue_groups(counted)
        self._refuse_if_busy()
        with self._put_lock:
            refusals = self.refusals
            if refusals.failed is not None or refusals.too_full is not None:
                refusals.refuse(count)
            now = self._held_since = self._clock.now_ms()
            table = self._next_queue_offsets
            topic_codes, queue_ids = encoded.topic_codes[firsts], encoded.queue_ids[firsts]
            numbers = table.numbers_of(encoded.topic_names, topic_codes, queue_ids)
            bases = np.append(table.offsets_of(numbers), 0)
            queue_offsets = np.where(counted, bases[groups] + group_ranks, 0)
            physical_offsets, parts = self._places(encoded, together=together)
            encoded.place(queue_offsets, physical_offsets, now)
            written = 0
            try:
                for first, last, rolls in parts:
                    file = self._roll() if rolls else self._last
                    assert file is not None
                    file.append(
                        memoryview(encoded.data[encoded.bounds[first] : encoded.bounds[last]])
                    )
                    written = last
                    self._end = file.end_offset
                    if self._pool is None:
                        self._visible = self._end
                if refusals.no_room is not None:
                    refusals.has_room()
            except (OSError, LeftOver) as error:
                refusal = refusals.of_write(error, count - written)
                if written:
                    refusal.__cause__ = error
                    places = physical_offsets[:written], queue_offsets[:written], now
                    raise PartPlaced(refusal, *places) from error
                raise refusal from error
            finally:
                self._held_since = 0
                counts = np.bincount(groups[:written], minlength=len(bases))
                table.count_up(numbers, counts[:-1])
                self._appended.add_many(physical_offsets[:written])
                self.put_count += written
                if written:
                    self._store_timestamp = now
            if len(parts) == 1:
                queues = None
                if counted.all():
                    queues = table.keys_of(numbers), groups.astype(np.int32)
                self._appended.keep(encoded, int(physical_offsets[0]), queue_offsets, now, queues)
        return physical_offsets, queue_offsets, now

    def commit(self) -> bool:
        """Copy what the transient pool holds to the page cache; False if nothing moved.

        DiskFull without room: everything stays in the buffers, to be tried again. StoreFailed
        after any other error.
        """
        if self._pool is None:
            return False
        with self._commit_lock:
            visible = self._visible
            try:
                for file in self.queue.files:
                    if isinstance(file, BufferedFile):
                        file.commit()
                    reached = file.file_from_offset + file.committed_position
                    self._visible = max(self._visible, min(reached, self._end))
            except (OSError, LeftOver) as error:
                raise self.refusals.of_write(error, 0) from error
            if self.refusals.no_room is not None and self._visible > visible:
                self.refusals.has_room()
            return self._visible > visible

    def sync_to(self, offset: int, timeout: float | None = None) -> bool:
        """Bring everything below `offset` to stable storage; False if `timeout` seconds passed.

        Group commit: threads that come while a sync runs share the next one.
        """
        if self.refusals.failed is not None:
            raise again(self.refusals.failed)
        offset = min(offset, self._end)
        if timeout is None:
            return self._syncs.reach(offset, self._sync)
        monotonic = self._clock.monotonic
        deadline = monotonic() + timeout
        return self._syncs.reach(offset, self._sync, lambda: deadline - monotonic())

    def flush(self) -> None:
        """Bring everything that was put so far to stable storage."""
        self.sync_to(self._end)

    def close(self) -> None:
        """Give the descriptors back; syncs nothing."""
        self.queue.close()

    # -- records that come ready-made (`publish.py`)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep others from putting; all that was put is on stable storage."""
        self.flush()  # most of it, before others have to wait
        with self._put_lock:
            if (stopped := self.refusals.stopped) is not None:
                raise again(stopped)
            self.flush()
            yield

    @property
    def end(self) -> int:
        """Physical offset behind the last record that was put."""
        return self._end

    @property
    def uses_pool(self) -> bool:
        """True if the live file has a buffer in front of it."""
        return self._pool is not None

    def seal(self) -> None:
        """Close the last file with a blank, durably: nothing more is put there. While held."""
        self._close_last()
        self.commit()
        self.queue.flush()

    def adopt(
        self, start: int, end: int, count: int, offsets: Iterable[tuple[QueueKey, int]],
        timestamp: int, ready: ReadyBatches | None,
    ) -> None:  # fmt: skip
        """Take in `count` records that were put at [start, end), durably. While held.

        `ready` are they for the dispatcher; without them it reads the log.
        """
        self.queue.adopt(start, end)
        self._last = self.queue.last
        self._next_queue_offsets.raise_to(offsets)
        self.put_count += count
        self._store_timestamp = max(self._store_timestamp, timestamp)
        self._syncs.run(partial(self._note_synced, end, timestamp))
        self._appended.add_ready(ready)
        self._end = self._visible = end

    # -- records of another log, at its offsets (`raw.py`)

    def append_raw(self, offset: int, data: Buffer, starts: Int64s, timestamp: int) -> None:
        """Append whole records of another log, which begin at `starts` of the data.

        The caller has verified them and their places. `offset` is where the log goes on, and the
        data lie in one file. In the page cache on return; DiskFull and StoreFailed as of a put.
        `timestamp` is the last record's store time, ms.
        """
        self._write_raw(offset, data, len(starts))
        with self._put_lock:
            self._end = self._visible = offset + len(data)
            self._store_timestamp = timestamp
            self.put_count += len(starts)
            self._appended.add_many(starts + offset)

    def append_raw_blank(self, offset: int, data: Buffer) -> None:
        """Append bytes of a blank that reaches to the file's end; the log's end stays before it."""
        self._write_raw(offset, data, 0)

    def cut_raw(self) -> None:
        """Zero what is behind the log's end in its file: a blank that did not come whole."""
        if self._last is not None:
            self._last.cut(self._end - self._last.file_from_offset)

    def _write_raw(self, offset: int, data: Buffer, count: int) -> None:
        """Write bytes behind the last file's, or at the begin of the next file."""
        refusals = self.refusals
        if refusals.stopped is not None:
            refusals.refuse(count)
        try:
            if self._last is None or self._last.is_full:
                self._last = self.queue.last_or_create(offset)
            assert self._last.end_offset == offset
            self._last.append(data)
        except (OSError, LeftOver) as error:
            raise refusals.of_write(error, count) from error
        if refusals.no_room is not None:
            refusals.has_room()

    def _close_last(self) -> None:
        """Close the last file with a blank, unless it is full."""
        last = self._last
        if last is not None and not last.is_full:
            room = last.file_size - last.wrote_position
            last.append(encode_blank(room), claim=room)

    def _place(self, size: int) -> tuple[MappedFile | None, int]:
        """Return the file for a record of this size (None: a new one), and its offset."""
        last = self._last
        if last is None:
            return None, self._end - self._end % self.queue.file_size
        wrote = last.wrote_position
        if wrote + size + BLANK.size > last.file_size:
            return None, last.file_from_offset + last.file_size
        return last, last.file_from_offset + wrote

    def _roll(self) -> MappedFile:
        """Close the last file with a blank and create the next."""
        self._close_last()
        if self._pool is not None and not self._pool.available:
            # The new file would be written directly, before what is in the buffers: a kill
            # would leave a hole. And the full file gives its buffer back.
            self.commit()
        self._last = self.queue.last_or_create(self._end)
        return self._last

    def _places(
        self, encoded: EncodedColumns, *, together: bool
    ) -> tuple[Int64s, list[tuple[int, int, bool]]]:
        """Return each row's physical offset, and the runs of rows (first, end, into a new file)."""
        bounds, count = encoded.bounds, len(encoded)
        offsets = np.empty(count, np.int64)
        runs = []
        file, at = self._place(int(bounds[-1] if together else encoded.sizes[0]))
        first, rolls, file_size = 0, file is None, self.queue.file_size
        while first < count:
            room = file_size - at % file_size - BLANK.size
            last = int(np.searchsorted(bounds, bounds[first] + room, "right")) - 1
            offsets[first:last] = bounds[first:last] - bounds[first] + at
            runs.append((first, last, rolls))
            first, rolls = last, True
            at = at - at % file_size + file_size
        return offsets, runs

    def _refuse_if_busy(self) -> None:
        """Do not queue up behind a put that hangs in the disk: RocketMQ's OS_PAGECACHE_BUSY."""
        since = self._held_since
        if since:
            waited = self._clock.now_ms() - since
            if waited > self.config.os_page_cache_busy_time_out_mills:
                raise StoreBusy(
                    f"{self.queue.directory}: another put has been writing for {waited} ms"
                    " (os_page_cache_busy_time_out_mills); this message was not taken: put it again"
                    " later, and look whether the disk hangs"
                )

    def _sync(self) -> int:
        """Sync what readers see, for all that wait; returns how far that is."""
        if self.refusals.failed is not None:
            raise again(self.refusals.failed)
        timestamp = self._store_timestamp
        self.sync_count += 1
        self.commit()
        end = self._visible
        try:
            self.queue.flush()
        except OSError as error:
            failed = self.refusals.fail(f"sync: {error}")
            _log.error("%s", failed)
            raise failed from error
        return self._note_synced(end, timestamp)

    def _note_synced(self, end: int, timestamp: int) -> int:
        """Take down what is on stable storage now; while no sync runs. Returns `end`."""
        self.synced = (end, max(self.synced[1], timestamp))
        return end


class PartPlaced(Exception):
    """The first rows of a batch are in the log when the next could not be written."""

    def __init__(
        self, cause: TubeStoreError, physical_offsets: Int64s, queue_offsets: Int64s, timestamp: int
    ) -> None:
        super().__init__(cause, physical_offsets, queue_offsets, timestamp)
        #: Why the others are not.
        self.cause = cause
        self.physical_offsets, self.queue_offsets = physical_offsets, queue_offsets
        self.timestamp = timestamp
