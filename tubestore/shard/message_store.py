"""One shard of a topic: two buffers that change places, over one file store.

Lock order: `_flush_lock`, `_append_lock`; what they guard is said in `double_buffer.py` and
`shard_sync.py`, the two halves below this one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tubestore.clock import Clock
from tubestore.core.group_commit import GroupCommit
from tubestore.core.memory_pool import MemoryPool
from tubestore.errors import (
    DiskFull,
    MessageTooLarge,
    StoreClosed,
    StoreFailed,
    TubeStoreError,
    again,
    note_taken,
    refused_call,
)
from tubestore.journal.redo import redo
from tubestore.journal.root_journal import JournalPart
from tubestore.options import Durability, StoreOptions
from tubestore.reading.view import ShardView
from tubestore.record.records import (
    ENTRY_SIZE,
    HEADER_SIZE,
    EncodedBatch,
    RecordColumns,
    Row,
    encode_columns,
    pack_header,
    place_record,
)
from tubestore.segments.file_store import MsgFileStore
from tubestore.segments.reconcile import RecoverReport
from tubestore.segments.recovery import recover
from tubestore.segments.removal import remove_below
from tubestore.shard.double_buffer import Background
from tubestore.shard.journalled_shard import JournalledShard
from tubestore.shard.mem_store import MsgMemStore

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]


class MessageStore(JournalledShard):
    """One shard, `<topic>-<store id>`; all public methods are thread-safe."""

    def __init__(
        self,
        files: MsgFileStore,
        *,
        topic: str,
        options: StoreOptions,
        clock: Clock,
        pool: MemoryPool,
        background: Background | None = None,
    ) -> None:
        super().__init__(
            files, topic=topic, options=options, clock=clock, pool=pool, background=background
        )
        self.recovered = RecoverReport()
        #: Whether what the root's journal held of it at its opening stands in the files.
        self.has_all_journalled = True
        self._opened_at = (self._main.index_end, self._main.data_end)
        #: What readers were shown last, if all of it is in the files.
        self._view: ShardView | None = None

    @classmethod
    def open(
        cls,
        files: MsgFileStore,
        *,
        topic: str,
        options: StoreOptions,
        clock: Clock,
        pool: MemoryPool,
        background: Background | None = None,
        journalled: Sequence[JournalPart] = (),
    ) -> MessageStore:
        """Load a shard's files for writing, verify and mend them.

        `journalled`: what the root's journal holds of it, to be put back first. Raises DiskFull or
        StorageError where the system refuses a call; without room in quarantine nothing was cut.
        """
        try:
            files.load(writable=True)
            redone = redo(files, journalled)
            report = recover(files, clock.now_ms())
            report.problems += redone.problems
            shard = cls(
                files, topic=topic, options=options, clock=clock, pool=pool, background=background
            )
        except BaseException as error:
            files.close()
            if isinstance(error, OSError):
                raise refused_call(files.directory, error) from error
            raise
        shard.recovered = report
        shard.has_all_journalled = redone.complete
        return shard

    # -- append ------------------------------------------------------------------------------

    def append(self, row: Row, durability: Durability) -> int:
        """Take one message; returns its offset when it has reached `durability`."""
        return self.append_record(pack_header(*row), row.payload, durability)

    def append_record(self, header: bytes, payload: bytes, durability: Durability) -> int:
        """As `append`, for a message whose header is encoded (`records.pack_header`)."""
        if durability != "memory":
            return self._append_reaching(header, payload, durability)
        with self._append_lock:
            # `main.add`, written out: it is half of what an append costs.
            main = self._main
            data_end = main.data_end + HEADER_SIZE + len(payload)
            count = main.count
            if data_end > self._room_end or count >= self._room_count:
                return self._enter(header, payload)[0]
            main.parts.append(header)
            main.parts.append(payload)
            main.data_end = data_end
            main.count = count + 1
            return main.index_start + ENTRY_SIZE * count

    def _enter(self, header: bytes, payload: bytes) -> tuple[int, int]:
        """Wait for room and take a message: (its offset, where its record ends).

        Under the append lock.
        """
        main = self._take_room(HEADER_SIZE + len(payload), 1)
        offset = main.add(header, payload)
        self._room.notify_all()
        return offset, main.data_end

    def _append_reaching(self, header: bytes, payload: bytes, durability: Durability) -> int:
        """Append at a level above `memory`.

        While a sync is under way nothing is written: whoever does the next one writes first what
        all have put into the buffer that wait for it, with one write.
        """
        if durability == "fsync" and self._commits.is_busy:
            with self._append_lock:
                offset, data_end = self._enter(header, payload)
            try:
                self._sync_data(data_end, prepare=self.flush)
            except TubeStoreError as error:
                note_taken(error, offset)
                raise
            return offset
        if self._flush_lock.acquire(blocking=False):
            try:
                written = self._write_through(header, payload)
            finally:
                self._flush_lock.release()
            if written is not None:
                self._request_sync()
                if durability == "fsync":
                    try:
                        self._sync_data(written.data_end)
                    except TubeStoreError as error:
                        note_taken(error, written.index_start)
                        raise
                return written.index_start
        with self._append_lock:
            offset, data_end = self._enter(header, payload)
        self._reach(offset, offset + ENTRY_SIZE, data_end, durability)
        return offset

    def _write_through(self, header: bytes, payload: bytes) -> MsgMemStore | None:
        """Flush a message that finds both buffers empty, else None; under the flush lock.

        The same steps as `flush` in the same order, without what only several messages need: it
        is what each append one by one above the `memory` level does.
        """
        with self._append_lock:
            if self._lent:
                self._take_back()
            if self._refusal is not None or self._flushing is not None or self._main.count:
                return None
            one = self._main
            one.add(header, payload)
            self._swap()
        record, entry = place_record(header, payload, one.index_start, one.data_start)
        try:
            self.files.append_bytes(record, entry, one.index_start, one.data_start)
        except OSError as error:
            one.first_time = self._clock.monotonic()  # it waits from now on
            raise note_taken(self._refuse(error), one.index_start) from error
        try:
            written = self._written()
        except StoreFailed as error:
            note_taken(error, one.index_start)
            raise
        with self._append_lock:
            self._visible = written
            self._flushing = None
            self._room.notify_all()
        self._unsynced_messages += 1
        try:
            self._roll()
        except TubeStoreError as error:
            note_taken(error, one.index_start)
            raise
        return one

    def append_columns(self, columns: RecordColumns, durability: Durability) -> Array:
        """Take a batch; returns the offsets (int64) when all have reached `durability`.

        A durable prefix: when it fails, the messages that are there are the first ones.
        """
        limit = self._options.payload_size_max + HEADER_SIZE
        if len(columns) and int(columns.sizes.max()) > limit:
            raise MessageTooLarge(int(columns.sizes.max()) - HEADER_SIZE, limit - HEADER_SIZE)
        return self.append_encoded(encode_columns(columns), durability)

    def append_encoded(self, batch: EncodedBatch, durability: Durability) -> Array:
        """Take a batch that is encoded already, in one piece; see `append_columns`."""
        if not len(batch):
            return np.empty(0, np.int64)
        size = len(batch.data)
        with self._append_lock:
            main = self._take_room(size, len(batch))
            offset = main.add_batch(batch)
            data_end = main.data_end
            self._room.notify_all()
        end = offset + ENTRY_SIZE * len(batch)
        if durability != "memory":
            self._reach(offset, end, data_end, durability)
        return np.arange(offset, end, ENTRY_SIZE, dtype=np.int64)

    def _reach(
        self, index_start: int, index_end: int, data_end: int, durability: Durability
    ) -> None:
        try:
            if self._visible.index_end < index_end:
                self.flush(index_end)
            if durability == "fsync":
                self._sync_data(data_end)
        except TubeStoreError as error:
            note_taken(error, index_start)
            raise

    def has_written(self, offset: int) -> bool:
        """Whether the message at an offset is in the files."""
        return offset < self._visible.index_end

    # -- sync --------------------------------------------------------------------------------

    def sync(self) -> None:
        """Bring everything taken so far to stable storage, index included; leaves a checkpoint."""
        self.flush()
        self.sync_files(checkpoint=True)

    def sync_data(self) -> None:
        """Bring the data of everything taken so far to stable storage (the `fsync` level)."""
        self.flush()
        self._sync_data(self._visible.data_end)

    def maintain(self) -> None:
        """Do what is due by time: flush an old buffer, sync old writes."""
        if self._refusal is not None and not isinstance(self._refusal, DiskFull):
            return  # said when it happened
        now = self._clock.monotonic()
        options = self._options
        if self.dirty_bytes and (now - self.dirty_since) * 1000 >= options.mem_flush_interval_ms:
            self.flush()
        behind = self._visible.data_end > self._commits.end
        if behind and (now - self._last_sync) * 1000 >= options.sync_after_ms:
            self.sync_files()

    def cut(self, index_offset: int) -> None:
        """Remove every message from `index_offset` on: the log does not have it (decisions.md D2).

        Loses data; for the layers that can bring it back. The buffers must be empty.
        """
        with self._flush_lock, self._append_lock:
            self._check_open()
            self._take_back()
            assert self._main.count == 0, "cut with messages in memory"
            data_end = self._data_end_before(index_offset)
            self.files.cut_copying(index_offset, data_end)
            self._visible = self.files.snapshot()
            self._main = MsgMemStore(index_offset, data_end)
            self._close_room()
            self._commits.lower(data_end)
            self.recovered.problems.clear()

    def files_from(self, index_offset: int) -> list[tuple[str, int]]:
        """Return the files that hold something from `index_offset` on, and where in each it starts.

        What `cut` takes away.
        """
        found = []
        data_end = self._data_end_before(index_offset)
        for segments, start in (
            (self.files.index.now, index_offset),
            (self.files.data.now, data_end),
        ):
            found += [(s.path, max(start - s.start, 0)) for s in segments if s.end > start]
        return found

    def remove_below(self, data_offset: int) -> int:
        """Move the files that hold only messages below a data offset to the trash, durably.

        Returns their number. If that is everything, and nothing is in memory, the files that are
        written to are sealed first. What readers have seen stays valid for those that read it.
        OSError leaves a part of it done; a failed sync fails the shard.
        """
        with self._flush_lock:
            with self._append_lock:
                self._check_open()
                everything = self.dirty_bytes == 0 and data_offset >= self.files.data.end
            if everything:
                self._seal()
            # The index too: entries that a power cut loses cannot be made again without their data.
            ends = self._visible
            self._commits.run(lambda: self._synced(self.files.sync, ends.data_end))
            try:
                now_ms = self._clock.now_ms()
                return remove_below(self.files, data_offset, now_ms=now_ms, sync=self._sync_names)
            finally:
                with self._append_lock:
                    self._visible = self.files.snapshot()

    def _data_end_before(self, index_offset: int) -> int:
        """Return where the data of the message before `index_offset` ends.

        Not where the entry at `index_offset` points to: what is cut may be damaged.
        """
        if index_offset <= self.files.index.start:
            return self.files.data.start
        segment = self.files.index.find(index_offset - ENTRY_SIZE)
        assert segment is not None
        entries = self.files.entries(segment, segment.end)
        last = entries[(index_offset - ENTRY_SIZE - segment.start) // ENTRY_SIZE]
        return int(last["data_offset"]) + int(last["data_size"])

    # -- read --------------------------------------------------------------------------------

    def view(self) -> ShardView:
        """Return what a reader sees now: files and both buffers, at one moment."""
        with self._append_lock:
            if isinstance(self._refusal, StoreClosed):
                raise again(self._refusal)
            self.counters.reads += 1
            if self._lent:
                self._take_back()
            flushing = self._flushing.batches() if self._flushing else ()
            memory = flushing + self._main.batches()
            kept = self._view
            if kept is not None and kept.ends is self._visible and not memory:
                return kept
            view = ShardView(self.topic, self.store_id, self.files, self._visible, memory)
            # One with memory is not kept: it would hold what was flushed long ago.
            self._view = None if memory else view
            return view

    def wait_beyond(self, offset: int, timeout: float) -> None:
        """Wait until something stands at or behind an offset, at most `timeout` seconds.

        May return early. Raises what an append would if the shard has failed or was closed.
        """
        with self._append_lock:
            self._check_open()
            self._take_back()
            if self._main.index_end <= offset:
                self._close_room()  # the next append takes the long way, which wakes us
                self._room.wait(timeout)

    def stats(self) -> dict[str, Any]:
        """Return what the shard has done since it was opened, and how it stands."""
        with self._append_lock:
            self._take_back()
            main = self._main
            first = self.dirty_since if self.dirty_bytes else None
            index_opened, data_opened = self._opened_at
            return {
                "appends": (main.index_end - index_opened) // ENTRY_SIZE,
                "append_bytes": main.data_end - data_opened,
                **asdict(self.counters),
                "dirty_bytes": self.dirty_bytes,
                "unsynced_bytes": max(0, self._visible.data_end - self._commits.end),
                "oldest_unflushed_seconds": 0.0
                if first is None
                else self._clock.monotonic() - first,
                "disk_full": int(isinstance(self._refusal, DiskFull)),
                "failed": int(self.failed),
            }

    # -- end ---------------------------------------------------------------------------------

    def abandon(self, reason: StoreClosed) -> None:
        """Refuse everything from now on and write nothing: what a forked child does.

        The locks are new ones: those that other threads held at the fork are never released.
        """
        self._flush_lock = threading.Lock()
        self._append_lock = threading.Lock()
        self._room = threading.Condition(self._append_lock)
        self._commits = GroupCommit(self._commits.end)
        self._lent = False  # nobody is shown anything any more
        with self._append_lock:
            self._set_refusal(reason)

    def discard(self, reason: StoreClosed) -> None:
        """Refuse everything from now on and write nothing more: the topic was deleted.

        Waits for a write or sync that is under way. Views that were given stay valid.
        """
        with self._flush_lock:
            with self._append_lock:
                self._take_back()
                self._set_refusal(reason)
            with contextlib.suppress(StoreFailed):
                self._commits.run(lambda: self._commits.end)
            self._end()

    def _end(self) -> None:
        self._view = None
        self._pool.give_back(self._granted)
        self._granted = 0
        self.files.close()

    def close(self) -> None:
        """Flush, sync, leave a checkpoint, give the files back; raises what those raise.

        After DiskFull the shard is open, with all that it has taken. StoreFailed if the shard has
        failed: what it took since may not be in the files.
        """
        if self.is_over():
            return
        try:
            self.hold()
        except DiskFull:
            raise
        except BaseException:
            self.give_up()
            raise
        self.close_held()

    def close_held(self) -> None:
        """Leave a checkpoint and give the files back; after `hold`, which wrote everything."""
        try:
            self.leave_checkpoint()
            self.files.keep_caches()
        finally:
            self._shut()
            self.let_go()

    def give_up(self) -> None:
        """Give the files back without what could not be written."""
        lost = self._shut()
        if lost:
            log.error("%s: closed without %d bytes of messages", self.files.directory, lost)

    def _shut(self) -> int:
        """Refuse everything from now on and give the files back; returns the bytes in memory."""
        with self._append_lock:
            self._take_back()
            self._set_refusal(StoreClosed(f"{self.name} is closed"))
            lost = self.dirty_bytes
        self._end()
        return lost
