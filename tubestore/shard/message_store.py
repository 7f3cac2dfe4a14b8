"""One shard of a topic: a write buffer over durable files.

    append   the message enters the buffer, which gives it its offset
    flush    the buffer is written to the files (page cache)
    sync     the files are brought to stable storage
    view     what a reader sees: files and buffer, at one moment

This file has the order of the steps and the locks; `write_buffer.py` has no I/O, and
`durable_files.py` has no buffer.

Guards, in lock order:

- the journal's lock, of another room: it comes before the locks of all shards;
- `_flush_lock`: one thread writes the files, removes some, or has files put behind them;
- `_append_lock`: the buffer, the files as readers see them, trouble; never held over I/O;
- the lock of the group commit.

An interrupt (an exception out of a signal's handler) may end each call. Locks are taken by `with
lock`, which CPython does in one step, and are not released within; what belongs together changes
without a call in between. A flush that was ended goes on at the next one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

import numpy as np

from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.core.memory_pool import MemoryPool
from tubestore.errors import (
    DiskFull,
    MessageTooLarge,
    StoreBusy,
    StoreClosed,
    StoreFailed,
    TubeStoreError,
    again,
    note_taken,
    refused_call,
)
from tubestore.journal.pending_batches import Parts, PendingBatches
from tubestore.journal.redo import redo
from tubestore.journal.ring import Ring
from tubestore.journal.ring_frames import HEAD_SIZE
from tubestore.journal.root_journal import JournalPart
from tubestore.options import Durability, StoreOptions
from tubestore.reading.view import ShardView
from tubestore.record.names import store_key
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
from tubestore.segments.checkpoint import own_checkpoint
from tubestore.segments.file_store import FileSnapshot, MsgFileStore
from tubestore.segments.lost_files import go_on_behind_lost_files
from tubestore.segments.reconcile import RecoverReport
from tubestore.segments.recovery import recover
from tubestore.segments.segment_list import Adopted
from tubestore.shard.announcements import Announcements
from tubestore.shard.compaction import FileRun, begin_copy, drop_copy, fill_copy
from tubestore.shard.durable_files import DurableFiles
from tubestore.shard.mem_store import MsgMemStore
from tubestore.shard.statistics import ShardCounters
from tubestore.shard.write_buffer import WriteBuffer

log = logger(__name__)
Array = np.ndarray[Any, Any]
_T = TypeVar("_T")
#: A buffer that filled faster than this is written by the thread that filled it.
_HOT_SECONDS = 0.1


class Background(Protocol):
    """Does a shard's work that no caller waits for; may drop a request, never blocks."""

    def flush_soon(self, shard: MessageStore) -> None:
        """Call `shard.flush()` in another thread."""

    def sync_soon(self, shard: MessageStore) -> None:
        """Call `shard.sync_files()` in another thread."""


@contextlib.contextmanager
def letting_go(shards: Collection[MessageStore]) -> Iterator[None]:
    """Let go at the end of all shards that this thread holds by then.

    Twice: an interrupt may end the first time.
    """
    try:
        yield
    finally:
        try:
            for shard in shards:
                shard.let_go()
        finally:
            for shard in shards:
                shard.let_go()


class MessageStore:
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
        """Take over files that were recovered; see `open`."""
        self.topic, self.store_id = topic, files.store_id
        #: `<topic>-<store id>`.
        self.name = store_key(topic, files.store_id)
        self.files = files
        self.counters = ShardCounters()
        self._options, self._clock, self._pool = options, clock, pool
        self._background = background
        self._flush_lock = threading.Lock()
        #: The thread that holds the shard (`hold`); 0 for none.
        self._holder = 0
        self._append_lock = threading.Lock()
        #: Announces, under the append lock, room, a new message, or trouble.
        self._changed = Announcements()
        self._buffer = WriteBuffer(
            files.index.end,
            files.data.end,
            options=options,
            clock=clock,
            pool=pool,
            counters=self.counters,
        )
        self._durable = DurableFiles(
            files,
            options=options,
            clock=clock,
            counters=self.counters,
            lock=self._append_lock,
            changed=self._changed,
            close_room=self._buffer.close_room,
        )
        self.recovered = RecoverReport()
        #: Takes single messages above `memory`; None: they are written to the files at once.
        self._ring: Ring | None = None
        #: True once every journal frame of this shard is in its files.
        self.has_all_journalled = True
        self._is_deleted = False
        self._opened_at = (files.index.end, files.data.end)
        #: The last view, if all of it is in the files.
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

        `journalled`: the shard's parts of the root's journal, which are put back first. Raises
        DiskFull or StorageError where the system refuses a call; without room in quarantine
        nothing was cut.
        """
        try:
            files.load(writable=True)
            files.put_away_merged(clock.now_ms())
            own = None if files.is_new else own_checkpoint(files)
            lost = go_on_behind_lost_files(
                files,
                own,
                [(part.index_start, part.data_start) for part in journalled],
            )
            redone = redo(files, journalled)
            report = recover(files, own)
            report.problems[:0] = lost
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
        """Append one message; returns its offset when it has reached `durability`."""
        return self.append_record(pack_header(*row), row.payload, durability)

    def append_record(self, header: bytes, payload: bytes, durability: Durability) -> int:
        """As `append`, for a message with its header encoded (`records.pack_header`)."""
        if durability == "memory":
            with self._append_lock:
                offset = self._buffer.add(header, payload)
            return offset if offset >= 0 else self._enter(header, payload)[0]
        if self._ring is None:
            return self._append_reaching(header, payload, durability)
        with self._append_lock:
            offset = self._buffer.add_in_ring(header, payload)
        if offset >= 0 and durability == "page_cache":
            return offset
        return self._append_in_ring(self._ring, offset, header, payload, durability)

    def _enter(self, header: bytes, payload: bytes) -> tuple[int, int]:
        """Wait for room and buffer a message: (its offset, where its record ends)."""
        return self._put(
            HEADER_SIZE + len(payload), 1, lambda main: (main.add(header, payload), main.data_end)
        )

    def _append_in_ring(
        self, ring: Ring, offset: int, header: bytes, payload: bytes, durability: Durability
    ) -> int:
        """Have a message in the ring journal reach a level; append it first if `offset` is -1."""
        if offset < 0:
            offset = self._enter_ring(ring, header, payload)
            if offset < 0:
                return self._append_reaching(header, payload, durability)
        if durability == "fsync":
            try:
                self._sync_in_ring(ring)
            except TubeStoreError as error:
                note_taken(error, offset)
                raise
        return offset

    def _enter_ring(self, ring: Ring, header: bytes, payload: bytes) -> int:
        """Make room in the ring and here, and append a message; -1 if the ring takes none."""
        size = HEADER_SIZE + len(payload)

        def enter(_: MsgMemStore) -> int | None:
            if not self._buffer.enter_ring(self._durable.visible.data_end):
                return None
            return self._buffer.add_in_ring(header, payload)

        # The buffer takes a longer message alone, and without the room that frames need.
        fits = size <= self._options.mem_store_size_bytes
        while fits and ring.make_room(HEAD_SIZE + size):
            offset = self._put(size, 1, enter)
            if offset is None:
                self.flush()  # messages before it are in no frame
            elif offset >= 0:
                return offset
            # Else another thread took the room.
        return -1

    def _sync_in_ring(self, ring: Ring) -> None:
        """Bring the messages in the ring to stable storage with one sync of it.

        Below the first one in the ring the files are synced. Where the ring cannot be, they are.
        """
        ring.promise()
        try:
            self._durable.sync_data_once(self._buffer.ring_from)
            ring.sync(self._buffer.ring_end)
        except StoreFailed:
            if self.failed:
                raise
            self.sync_data()

    def _append_reaching(self, header: bytes, payload: bytes, durability: Durability) -> int:
        """Append at a level above `memory`.

        While a sync is under way nothing is written: the thread that runs the next one first
        writes the messages of all that wait for it, with one write.
        """
        durable = self._durable
        if durability == "fsync" and durable.commits.is_busy:
            offset, data_end = self._enter(header, payload)
            try:
                durable.sync_data(data_end, prepare=self.flush)
            except TubeStoreError as error:
                note_taken(error, offset)
                raise
            return offset
        if not self._flush_lock.locked():
            with self._flush_lock:
                written = self._write_through(header, payload)
            if written is not None:
                self._request_sync()
                if durability == "fsync":
                    try:
                        durable.sync_data(written.data_end)
                    except TubeStoreError as error:
                        note_taken(error, written.index_start)
                        raise
                return written.index_start
        offset, data_end = self._enter(header, payload)
        self._reach(offset, offset + ENTRY_SIZE, data_end, durability)
        return offset

    def _write_through(self, header: bytes, payload: bytes) -> MsgMemStore | None:
        """Append and flush a message that finds both buffers empty, else None.

        Under the flush lock. It takes the steps of `flush` in their order, without those that
        only several messages need: each append one by one above the `memory` level comes here.
        """
        buffer, durable, one = self._buffer, self._durable, None
        try:
            with self._append_lock:
                if durable.trouble is None:
                    one = buffer.begin_flush_of(header, payload)
                if one is None:
                    return None
            record, entry = place_record(header, payload, one.index_start, one.data_start)
            self._end_flush(durable.write_one(record, entry, one.index_start, one.data_start))
            durable.roll_after(1)
        except BaseException as error:
            with self._append_lock:
                buffer.flush_failed()
            if one is not None and isinstance(error, TubeStoreError):
                note_taken(error, one.index_start)
            raise
        return one

    def append_columns(self, columns: RecordColumns, durability: Durability) -> Array:
        """Append a batch; returns the offsets (int64) when all have reached `durability`.

        A durable prefix: when it fails, the messages that are there are the first ones.
        """
        limit = self._options.payload_size_max + HEADER_SIZE
        if len(columns) and int(columns.sizes.max()) > limit:
            size = int(columns.sizes.max()) - HEADER_SIZE
            what = "payload (body and attributes)"
            raise MessageTooLarge(size, limit - HEADER_SIZE, what, "payload_size_max")
        return self.append_encoded(encode_columns(columns), durability)

    def append_encoded(self, batch: EncodedBatch, durability: Durability) -> Array:
        """Append a batch that is encoded already, in one piece; see `append_columns`."""
        if not len(batch):
            return np.empty(0, np.int64)
        offset, data_end = self._put(
            len(batch.data), len(batch), lambda main: (main.add_batch(batch), main.data_end)
        )
        end = offset + ENTRY_SIZE * len(batch)
        if durability != "memory":
            self._reach(offset, end, data_end, durability)
        return np.arange(offset, end, ENTRY_SIZE, dtype=np.int64)

    def _reach(
        self, index_start: int, index_end: int, data_end: int, durability: Durability
    ) -> None:
        """Write, and at the `fsync` level sync, messages that are in the buffer."""
        try:
            if self._durable.visible.index_end < index_end:
                self.flush(index_end)
            if durability == "fsync":
                self._durable.sync_data(data_end)
        except TubeStoreError as error:
            note_taken(error, index_start)
            raise

    def has_written(self, offset: int) -> bool:
        """Return True if the message at an offset is in the files."""
        return offset < self._durable.visible.index_end

    # -- wait for room ------------------------------------------------------------------

    def _put(self, size: int, count: int, put: Callable[[MsgMemStore], _T]) -> _T:
        """Wait until main has room, and call `put` with it, under the append lock."""
        with self._append_lock:
            result = self._put_in(put) if self._has_room(size, count) else ()
        if result:
            return result[0]
        begun = self._clock.monotonic()
        try:
            return self._put_later(size, count, put)
        except StoreBusy:
            self.counters.busy += 1
            raise
        except TubeStoreError:
            self.counters.refused += 1
            raise
        finally:
            self.counters.note_stall(self._clock.monotonic() - begun)

    def _has_room(self, size: int, count: int) -> bool:
        """True if main takes this now; under the append lock."""
        return self._durable.trouble is None and self._buffer.fits(size, count)

    def _put_in(self, put: Callable[[MsgMemStore], _T]) -> tuple[_T]:
        # Announced first: once the room is open, no append announces itself. The threads that
        # are woken wait for this lock.
        self._changed.announce()
        return (put(self._buffer.open_room()),)

    def _put_later(self, size: int, count: int, put: Callable[[MsgMemStore], _T]) -> _T:
        """Swap, or wait for the flush of the other buffer, until main has room."""
        buffer, durable, clock = self._buffer, self._durable, self._clock
        timeout = self._options.append_timeout_ms / 1000
        deadline, has_flushed = clock.monotonic() + timeout, False
        while True:
            with self._append_lock:
                durable.check_usable()
                result = self._put_in(put) if self._has_room(size, count) else ()
                may_swap = not result and durable.trouble is None and buffer.can_swap
                full = buffer.swap() if may_swap else None
                # If no other thread flushes, or the disk was full, this thread tries it.
                tries = durable.trouble is not None or not buffer.main.count
                held, waiting = buffer.held, self._changed.waiting()
            if result:
                return result[0]
            if full is not None and self._background is not None:
                if clock.monotonic() - full.first_time < _HOT_SECONDS:
                    # The thread that filled a buffer in no time keeps the interpreter busy: a
                    # worker would get it once in 5 ms, for one system call, and the other
                    # buffer would be full long before.
                    self.flush(full.index_end)
                else:
                    self._background.flush_soon(self)
                continue
            if not has_flushed and (tries or self._background is None):
                self.flush()
                self._pool.relieve()
                if isinstance(durable.trouble, DiskFull):
                    raise again(durable.trouble)
                if held:  # the time while files were put behind the shard's own does not count
                    deadline = clock.monotonic() + timeout
                has_flushed = True
                continue
            left = deadline - clock.monotonic()
            if left <= 0 and has_flushed:
                raise self._busy(
                    f"the buffers of all shards had no room for {size} bytes", "memory_bound_bytes"
                )
            if left <= 0:
                raise self._busy("both buffers stayed full", "append_timeout_ms")
            if self._background is not None:
                self._background.flush_soon(self)
            waiting.wait(min(0.05, left))
            has_flushed = False

    def _busy(self, what: str, setting: str) -> StoreBusy:
        """Return the error of an append that has waited for room in vain."""
        waited = f"for {self._options.append_timeout_ms} ms (append_timeout_ms)"
        todo = f"append it again later; if it comes again, the disk is too slow, or raise {setting}"
        return StoreBusy(f"shard {self.name}: {what} {waited}, the message was not taken: {todo}")

    # -- flush -------------------------------------------------------------------------------

    @property
    def dirty_bytes(self) -> int:
        """Bytes that are in no file: in the buffers, and in batches that are pending."""
        return self._buffer.dirty_bytes

    @property
    def dirty_since(self) -> float:
        """When the first unwritten message came (monotonic seconds), else now."""
        return self._buffer.dirty_since

    def flush(self, index_end: int | None = None) -> None:
        """Write the buffers to the files (page cache), as far as they reach at the call.

        Raises DiskFull (the next call tries again) or StoreFailed; messages that were not written
        stay in memory and readable.
        """
        with self._flush_lock:
            self._flush_to(index_end)
        self._request_sync()

    def _flush_to(self, index_end: int | None) -> None:
        """Write the buffers; under the flush lock."""
        buffer, durable = self._buffer, self._durable
        with self._append_lock:
            durable.check_usable()
            target = buffer.main.index_end if index_end is None else index_end
            may_roll = durable.is_full and not buffer.is_flushing
        if may_roll:
            try:
                durable.roll_again()
            except DiskFull:
                if durable.visible.index_end < target:
                    raise
        while durable.visible.index_end < target:
            with self._append_lock:
                flushing = buffer.begin_flush()
                batches = flushing.batches()
            self._end_flush(durable.write(batches))
            durable.note_room()
            durable.roll_after(flushing.count)

    def _end_flush(self, written: FileSnapshot) -> None:
        """Show written messages in the files, and no more in memory."""
        with self._append_lock:
            self._changed.announce()
            # Both without a call in between: readers would see them twice.
            self._durable.visible, self._buffer.flushing = written, None
            self._buffer.end_flush()

    def _request_sync(self) -> None:
        if self._background is not None and self._durable.is_sync_due():
            self._background.sync_soon(self)

    def maintain(self) -> None:
        """Do what is due by time: flush an old buffer, sync old writes.

        What only the ring has was written to it unsynced: it is due as old writes are.
        """
        if self._durable.trouble is not None and not self._durable.is_full:
            return  # logged when it happened
        age_ms = (self._clock.monotonic() - self.dirty_since) * 1000
        is_unsafe = self._buffer.has_frames and age_ms >= self._options.sync_after_ms
        if self.dirty_bytes and (is_unsafe or age_ms >= self._options.mem_flush_interval_ms):
            self.flush()
        if is_unsafe or self._durable.is_sync_overdue():
            self.sync_files()

    # -- sync --------------------------------------------------------------------------------

    def sync(self) -> None:
        """Bring all messages so far to stable storage, with index and checkpoint."""
        self.flush()
        self.sync_files(checkpoint=True)

    def sync_data(self) -> None:
        """Bring the data of all messages so far to stable storage (the `fsync` level)."""
        self.flush()
        self._durable.sync_data(self._durable.visible.data_end)

    def sync_files(self, *, checkpoint: bool = False) -> None:
        """Bring the files to stable storage; leaves a checkpoint, at least now and then."""
        with self._append_lock:
            self._durable.check_usable()
        self._durable.sync_with_checkpoint(always=checkpoint)

    # -- the ring ----------------------------------------------------------------------------

    def use_ring(self, ring: Ring, topic_id: int) -> None:
        """Let single messages above `memory` enter the ring journal; before the first append."""
        self._ring = ring
        self._buffer.use_ring(ring, self, topic_id, self.store_id)

    def write_below(self, position: int, patience: float = -1) -> int:
        """Write everything if a message with a frame below a ring position is in no file.

        Returns the ring position below which all its messages are in files; -1 if another thread
        holds the shard for more than `patience` seconds (-1: it waits).
        """
        with self._append_lock:
            if self._durable.failed:
                self._durable.check_usable()
            if not self._buffer.has_frames_below(position):
                return position
            reached = self._buffer.ring_place
        taken: list[bool] = []
        try:
            # In one step: an interrupt finds the lock taken and this list filled, or neither.
            taken += map(self._flush_lock.acquire, (True,), (patience,))
            if not taken[0]:
                return -1
            self._flush_to(None)
        finally:
            if taken and taken[0]:
                self._flush_lock.release()
        self._request_sync()
        return reached

    def leave_ring(self) -> None:
        """Record that the ring does not cover the messages in the files any more."""
        with self._append_lock:
            self._buffer.ring_from = max(self._buffer.ring_from, self._durable.visible.data_end)

    # -- the journal -------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The shard's number among the pending batches; -1 before the first one."""
        return self._buffer.number

    def lend(self, pending: PendingBatches, generation: int) -> bool:
        """Let the journal place batches behind the shard's end; False if it may not."""
        with self._append_lock:
            return self._durable.trouble is None and self._buffer.lend(
                pending, generation, self._durable.visible.data_end
            )

    def deliver(self, parts: Parts) -> None:
        """Take messages that were placed behind the lent end, and write everything."""
        with self._append_lock:
            self._buffer.bring_back(parts)
        self.flush()

    def leave_journal(self) -> None:
        """Record that the last messages are in no frame: writing it failed."""
        with self._append_lock:
            self._buffer.leave_journal()

    def bar_generation(self, generation: int) -> None:
        """Take no part in a generation: its frames of this shard have a gap."""
        self._buffer.bar_generation(generation)

    def wake(self) -> None:
        """Wake readers that wait for messages."""
        with self._append_lock:
            self._changed.announce()

    @property
    def journal_from(self) -> int:
        """Data offset of the first journalled message; -1 if there was none."""
        return self._buffer.journal_from

    def is_synced_before_journal(self) -> bool:
        """True if the data below the journalled messages is on stable storage."""
        return self._durable.is_durable(self._buffer.journal_from)

    def sync_before_journal(self) -> None:
        """Sync the data below the journalled messages, unless that was done."""
        self._durable.sync_data_once(self._buffer.journal_from)

    def sync_written(self) -> None:
        """Write the buffers, and sync the data, including that of an earlier process."""
        self.flush()
        self._durable.sync_data_once(self._durable.visible.data_end)

    def written_end(self) -> int:
        """Return the data offset behind what is in the files."""
        with self._append_lock:
            return self._durable.visible.data_end

    def note_synced(self, data_end: int) -> None:
        """Record that data below an offset is on stable storage, by a sync of the file system."""
        self._durable.note_synced(data_end)

    def has_unwritten(self) -> bool:
        """Return True if the files lack messages that the shard has taken."""
        return self._buffer.has_unwritten()

    # -- files that come and go --------------------------------------------------------------

    def hold(self) -> tuple[int, int]:
        """Write and sync everything, and let no message in until `let_go`.

        The same thread calls both, within `letting_go`. Returns the ends of index and data. For
        what is put behind them: `adopt` takes it over, `show_adopted` shows it to readers,
        `let_go` lets appends go on behind them. Appends wait meanwhile; that time does not count
        for their deadline.
        """
        taken: list[bool] = []
        try:
            # In one step: an interrupt finds the lock taken and this list filled, or neither.
            taken += map(self._flush_lock.acquire, (True,))
            self._holder = threading.get_ident()
            with self._append_lock:
                self._buffer.close_room()
                self._buffer.held = True
            self._flush_to(None)
            self._durable.sync_all()
        except BaseException:
            if taken:
                self._end_hold()
            raise
        return self.files.index.end, self.files.data.end

    def let_go(self) -> None:
        """Let appends in again; nothing unless this thread holds the shard."""
        if self._holder == threading.get_ident():
            self._end_hold()

    def _end_hold(self) -> None:
        with self._append_lock:
            self._buffer.held = False
            self._changed.announce()
        self._holder = 0
        self._flush_lock.release()

    def adopt(self, index: list[Adopted], data: list[Adopted]) -> None:
        """Take over what is behind both ends, in order, all synced; while held.

        An OSError fails the shard: its files are then longer than its lists.
        """
        self._durable.adopt(index, data)

    def show_adopted(self) -> None:
        """Let readers see what was adopted."""
        with self._append_lock:
            self._durable.visible = ends = self.files.snapshot()
            self._buffer.restart(ends.index_end, ends.data_end)

    def leave_checkpoint(self) -> None:
        """Record, while held, that everything there is on stable storage."""
        self._durable.leave_checkpoint()

    def cut(self, index_offset: int) -> None:
        """Remove every message from `index_offset` on: the log does not have them (D2).

        Loses data; for layers that can bring it back. The buffers must be empty.
        """
        with self._flush_lock, self._append_lock:
            self._durable.check_usable()
            self._buffer.close_room()
            assert self.dirty_bytes == 0, "cut with messages in memory"
            self._buffer.restart(index_offset, self._durable.cut(index_offset))
            self.recovered.problems.clear()

    def files_from(self, index_offset: int) -> list[tuple[str, int]]:
        """Return the files that `cut` would change, with the positions where it cuts."""
        return self._durable.files_from(index_offset)

    def remove_below(self, data_offset: int) -> int:
        """Move the files below a data offset to the trash; returns their number.

        Only files that hold no other messages. If all files are below it and nothing is in
        memory, the files that are written to are sealed first. Views that were taken before stay
        valid. OSError leaves a part of it done; a failed sync fails the shard.
        """
        with self._flush_lock:
            with self._append_lock:
                self._durable.check_usable()
                everything = self.dirty_bytes == 0 and data_offset >= self.files.data.end
            if everything:
                self._durable.seal()
            return self._durable.remove_below(data_offset)

    def merge(self, run: FileRun, *, check: Callable[[], None]) -> None:
        """Put one file in the place of small sealed ones; see `compaction.py`.

        Appends wait for the renamings only. OSError before the first renaming, and what `check`
        raises just before it: the files are as they were. A failed sync fails the shard.
        """
        with self._flush_lock:
            with self._append_lock:
                self._durable.check_usable()
            copy = begin_copy(self.files, run, self._clock.now_ms())
        try:
            fill_copy(self.files, run, copy)
            with self._flush_lock:
                with self._append_lock:
                    self._durable.check_usable()
                if all(segment.sealed and run.stream.now.find(segment.start) is segment
                       for segment in run.segments):  # fmt: skip
                    self._durable.merge(run, copy, check)
        finally:
            drop_copy(self.files, copy)

    # -- read --------------------------------------------------------------------------------

    def view(self) -> ShardView:
        """Return what a reader sees now: files and both buffers, at one moment."""
        with self._append_lock:
            durable = self._durable
            if isinstance(durable.trouble, StoreClosed):
                raise again(durable.trouble)
            self.counters.reads += 1
            memory = self._buffer.placed()
            kept = self._view
            if kept is not None and kept.ends is durable.visible and not memory:
                return kept
            view = ShardView(self.topic, self.store_id, self.files, durable.visible, memory)
            # A view with memory is not kept: it would hold messages that were flushed long ago.
            self._view = None if memory else view
            return view

    def call_beyond(self, offset: int, call: Callable[[], None]) -> bool:
        """Have `call` made once when there is a message at or behind an offset.

        False, and no call, if there is one already. The call may come early; it is made under a
        lock, must be quick and must not use the shard. The caller keeps it: it is not made after
        it is dropped. Raises what an append would if the shard has failed or was closed.
        """
        with self._append_lock:
            self._durable.check_usable()
            if self._buffer.main.index_end > offset:
                return False
            self._buffer.close_room()  # the next append takes the long way, which notifies
            self._changed.call_once(call)
            return True

    def stats(self) -> dict[str, Any]:
        """Return what the shard has done since it was opened, and its present state."""
        with self._append_lock:
            buffer, durable, main = self._buffer, self._durable, self._buffer.main
            waited = self._clock.monotonic() - buffer.dirty_since if buffer.dirty_bytes else 0.0
            index_opened, data_opened = self._opened_at
            return {
                "appends": (main.index_end - index_opened) // ENTRY_SIZE,
                "append_bytes": main.data_end - data_opened,
                **asdict(self.counters),
                "dirty_bytes": buffer.dirty_bytes,
                "unsynced_bytes": durable.unsynced_bytes,
                "oldest_unflushed_seconds": waited,
                "disk_full": int(durable.is_full),
                "failed": int(durable.failed),
            }

    # -- trouble and end ---------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        """Permanently failed: the files may lack acknowledged messages."""
        return self._durable.failed

    def fail(self, reason: str) -> StoreFailed:
        """Refuse all but reads until the shard is opened again; returns the error."""
        return self._durable.fail(reason)

    def is_over(self) -> bool:
        """Return True if the shard was closed: it writes nothing any more."""
        return self._durable.is_closed

    def is_deleted(self) -> bool:
        """Return True if the shard's topic was deleted: its messages are not needed."""
        return self._is_deleted

    def refuse(self, reason: StoreClosed) -> None:
        """Refuse everything from now on; no write or sync is under way when this returns."""
        with self._append_lock:
            self._durable.refuse(reason)
        with self._flush_lock:
            self._durable.wait_for_sync()

    def abandon(self, reason: StoreClosed) -> None:
        """Refuse everything from now on and write nothing: in a forked child.

        The locks are new ones: those that other threads held at the fork are never released. In
        a process with other threads that is `refuse`: they release the locks that they hold.
        """
        self._flush_lock = threading.Lock()
        self._append_lock = threading.Lock()
        self._changed = Announcements()
        self._durable.abandon(self._append_lock, self._changed)
        self._buffer.abandon()
        self.refuse(reason)

    def discard(self, reason: StoreClosed) -> None:
        """Refuse everything from now on and write nothing more: the topic was deleted.

        Waits for a write or sync that is under way. Views that were taken before stay valid.
        """
        with self._flush_lock:
            with self._append_lock:
                self._is_deleted = True
                self._durable.refuse(reason)
            self._durable.wait_for_sync()
            self.files.discard()
            self._end()

    def close(self) -> None:
        """Flush, sync, leave a checkpoint, give the files back; raises what those raise.

        After DiskFull the shard is open, with all that it has taken. StoreFailed if the shard has
        failed: messages that it took since may not be in the files.
        """
        if self.is_over():
            return
        with letting_go([self]):
            try:
                self.hold()
            except DiskFull:
                raise
            except TubeStoreError:
                self.give_up()
                raise
            self.close_held()

    def close_held(self) -> None:
        """Leave a checkpoint and give the files back; after `hold`."""
        try:
            self.leave_checkpoint()
            self.files.keep_digests()
        finally:
            self._shut()
            self.let_go()

    def give_up(self) -> None:
        """Give the files back without the messages that could not be written."""
        lost = self._shut()
        if lost:
            log.error("%s: closed without %d bytes of messages", self.files.directory, lost)

    def _shut(self) -> int:
        """Refuse everything and give the files back; returns the bytes in memory."""
        with self._append_lock:
            self._durable.refuse(StoreClosed(f"{self.name}: the store was closed; open it again"))
            lost = self.dirty_bytes
        self._end()
        return lost

    def _end(self) -> None:
        self._view = None
        self._buffer.release()
        self.files.close()

    def check_invariants(self) -> None:
        """Raise AssertionError if buffer and files contradict each other; for tests."""
        with self._append_lock:
            self._buffer.check_invariants()
            self._durable.check_invariants()
            visible = self._durable.visible
            ends = visible.index_end, visible.data_end
            assert self._buffer.start == ends, "a gap between files and buffer"
