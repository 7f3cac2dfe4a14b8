"""One shard of a topic: two buffers that change places, over one file store.

States of the pair (main takes appends, flushing is being written):

| main       | flushing | an append                          | a flush                     |
| ---------- | -------- | ---------------------------------- | --------------------------- |
| has room   | empty    | enters main                        | swaps, writes               |
| has room   | full     | enters main                        | writes                      |
| full       | empty    | swaps, enters the new main         | swaps, writes               |
| full       | full     | waits; StoreBusy at its deadline   | writes, wakes the waiting   |

Trouble (`_refusal`): a full disk refuses appends until a flush succeeds again; any other
failed write and any failed sync fails the shard until it is reopened. In both the buffers
stay, and stay readable.

Guards, in lock order: `_flush_lock` serialises writers of the files; `_append_lock` guards
the buffers, `_visible` and `_refusal` and is never held over I/O; syncs and rolls go one at
a time through `_commits`.

Next to read: `topic_reads.py`.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tubestore.checkpoint import write_checkpoint
from tubestore.clock import Clock
from tubestore.errors import (
    DiskFull,
    MessageTooLarge,
    StoreBusy,
    StoreClosed,
    StoreFailed,
    TubeStoreError,
)
from tubestore.file_store import MsgFileStore
from tubestore.formats import INDEX_ENTRY
from tubestore.group_commit import GroupCommit
from tubestore.mem_store import MsgMemStore, Placed
from tubestore.memory_pool import MemoryPool
from tubestore.options import Durability, StoreOptions
from tubestore.read_path import ShardView
from tubestore.records import (
    ENTRY_SIZE,
    HEADER_SIZE,
    EncodedBatch,
    RecordColumns,
    Row,
    encode_columns,
    encode_row,
)
from tubestore.recovery import RecoverReport, recover

log = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]

#: A shard takes its memory from the pool in steps, not a lock a message.
_GRANT_BYTES = 64 << 10
#: A buffer that filled faster than this is written by whoever filled it.
_HOT_SECONDS = 0.1
#: How old a checkpoint is at least before the background writes the next.
_CHECKPOINT_SECONDS = 0.2


class Background(Protocol):
    """Who does a shard's work that nobody waits for; may drop a request, never block."""

    def flush_soon(self, shard: MessageStore) -> None:
        """Call `shard.flush()` in another thread."""

    def sync_soon(self, shard: MessageStore) -> None:
        """Call `shard.sync_files()` in another thread."""


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
        self.topic, self.store_id = topic, files.store_id
        self.files = files
        self._options, self._clock, self._pool = options, clock, pool
        self._background = background
        self._flush_lock = threading.Lock()
        self._append_lock = threading.Lock()
        self._room = threading.Condition(self._append_lock)
        self._commits = GroupCommit(files.data.end)
        self._unsynced_messages = 0
        self._last_sync = clock.monotonic()
        self._last_checkpoint = self._last_sync - _CHECKPOINT_SECONDS
        self._refusal: TubeStoreError | None = None
        self._main = MsgMemStore(files.index.end, files.data.end)
        self._flushing: MsgMemStore | None = None
        self._visible = files.snapshot()
        self._granted = 0
        #: What main takes without another look at its bounds and the pool; 0 bytes: look.
        self._room_bytes = self._room_messages = 0
        self.recovered = RecoverReport()

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
    ) -> MessageStore:
        """Load a shard's files for writing, verify and mend them."""
        files.load(writable=True)
        report = recover(files)
        shard = cls(
            files, topic=topic, options=options, clock=clock, pool=pool, background=background
        )
        shard.recovered = report
        return shard

    # -- append ------------------------------------------------------------------------------

    def append(self, row: Row, durability: Durability) -> int:
        """Take one message; returns its offset when it has reached `durability`."""
        size = HEADER_SIZE + len(row[-1])
        if durability != "memory" and self._flush_lock.acquire(blocking=False):
            try:
                written = self._write_through(row)
            finally:
                self._flush_lock.release()
            if written is not None:
                self._request_sync()
                if durability == "fsync":
                    self._sync_data(written.data_end)
                return written.index_start
        with self._append_lock:
            if self._refusal is not None or size > self._room_bytes or self._room_messages < 1:
                self._take_room(size, 1)
            self._room_bytes -= size
            self._room_messages -= 1
            main = self._main
            offset = main.add_row(row)
            if main.count == 1:
                main.first_time = self._clock.monotonic()
            data_end = main.data_end
        if durability != "memory":
            self._reach(offset + ENTRY_SIZE, data_end, durability)
        return offset

    def _write_through(self, row: Row) -> MsgMemStore | None:
        """Flush a message that finds both buffers empty, else None; under the flush lock.

        The same steps as `flush` in the same order, without what only several messages need: it
        is what each append one by one above the `memory` level does.
        """
        with self._append_lock:
            if self._refusal is not None or self._flushing is not None or self._main.count:
                return None
            one = self._main
            one.add_row(row)
            self._swap()
        record, entry = encode_row(row, one.index_start, one.data_start)
        try:
            self.files.append_bytes(b"".join(record), entry, one.index_start, one.data_start)
        except OSError as error:
            raise self._refuse(error) from error
        with self._append_lock:
            self._visible = self.files.snapshot()
            self._flushing = None
            self._room.notify_all()
        self._unsynced_messages += 1
        self._roll()
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
            self._take_room(size, len(batch))
            self._room_bytes = 0
            main = self._main
            if main.count == 0:
                main.first_time = self._clock.monotonic()
            offset = main.add_batch(batch)
            data_end = main.data_end
        end = offset + ENTRY_SIZE * len(batch)
        if durability != "memory":
            self._reach(end, data_end, durability)
        return np.arange(offset, end, ENTRY_SIZE, dtype=np.int64)

    def _take_room(self, size: int, count: int) -> None:
        """Wait until main takes this, and note how much more it takes; under the append lock."""
        if self._refusal is not None or not self._fits(size, count):
            self._wait_for_room(size, count)
        options, main = self._options, self._main
        room = min(options.mem_store_size_bytes - main.size_bytes, self._granted - self.dirty_bytes)
        self._room_bytes = max(room, size)  # an empty buffer takes what is larger than itself
        self._room_messages = max(options.mem_store_messages - main.count, count)

    def _fits(self, size: int, count: int) -> bool:
        """Whether main takes this now; under the append lock."""
        options, main = self._options, self._main
        if not main.has_room(size, count, options.mem_store_size_bytes, options.mem_store_messages):
            return False
        held = main.size_bytes + (self._flushing.size_bytes if self._flushing else 0)
        if held + size <= self._granted:
            return True
        step = max(_GRANT_BYTES, held + size - self._granted)
        if not self._pool.take(step):
            return False
        self._granted += step
        return True

    def _wait_for_room(self, size: int, count: int) -> None:
        """Swap, or wait for the flush of the other buffer; under the append lock."""
        deadline = self._clock.monotonic() + self._options.append_timeout_ms / 1000
        while True:
            self._check_open()
            if self._refusal is None and self._fits(size, count):
                return
            if self._flushing is None and self._main.count and self._refusal is None:
                filled_in = self._clock.monotonic() - self._main.first_time
                self._swap()
                if self._background is not None:
                    if filled_in < _HOT_SECONDS:
                        self._flush_here()
                    else:
                        self._background.flush_soon(self)
                    continue
            if self._background is None or self._refusal is not None or not self._main.count:
                # Nobody flushes for us, or the disk was full: try it ourselves.
                self._append_lock.release()
                try:
                    self.flush()
                    self._pool.relieve()
                finally:
                    self._append_lock.acquire()
                if self._refusal is None and self._fits(size, count):
                    return
                if self._clock.monotonic() >= deadline:
                    raise StoreBusy(f"{self.name}: no memory for {size} bytes before the deadline")
            self._background_flush()
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise StoreBusy(f"{self.name}: both buffers stayed full until the deadline")
            self._room.wait(min(0.05, left))

    def _flush_here(self) -> None:
        """Write the full buffer in this thread; under the append lock, which is let go meanwhile.

        Somebody who fills a buffer in no time keeps the interpreter busy: a worker would get it
        once in 5 ms, for one system call, and the other buffer would be full long before.
        """
        assert self._flushing is not None
        index_end = self._flushing.index_end
        self._append_lock.release()
        try:
            self.flush(index_end)
        finally:
            self._append_lock.acquire()

    def _background_flush(self) -> None:
        if self._background is not None:
            self._background.flush_soon(self)

    def _reach(self, index_end: int, data_end: int, durability: Durability) -> None:
        if self._visible.index_end < index_end:
            self.flush(index_end)
        if durability == "fsync":
            self._sync_data(data_end)

    # -- flush and sync ----------------------------------------------------------------------

    @property
    def name(self) -> str:
        """`<topic>-<store id>`."""
        return f"{self.topic}-{self.store_id}"

    @property
    def dirty_bytes(self) -> int:
        """Bytes that are in the buffers and not in the files."""
        flushing = self._flushing
        return self._main.size_bytes + (flushing.size_bytes if flushing else 0)

    def _swap(self) -> None:
        """Let the buffers change places; under the append lock, with nothing being flushed."""
        assert self._flushing is None
        self._flushing = self._main
        self._main = MsgMemStore(self._flushing.index_end, self._flushing.data_end)
        self._room_bytes = 0

    def flush(self, index_end: int | None = None) -> None:
        """Write the buffers to the files (page cache), as far as they reach at the call.

        Raises DiskFull (retried by the next call) or StoreFailed; what was not written stays
        in memory and readable.
        """
        with self._flush_lock:
            with self._append_lock:
                self._check_open()
                target = self._main.index_end if index_end is None else index_end
            if isinstance(self._refusal, DiskFull) and self._flushing is None:
                self._roll_again()
            while self._visible.index_end < target:
                with self._append_lock:
                    if self._flushing is None:
                        self._swap()
                    flushing = self._flushing
                    assert flushing is not None
                    batches = flushing.batches()
                self._write(batches)
                with self._append_lock:
                    self._visible = self.files.snapshot()
                    self._flushing = None
                    self._give_memory_back()
                    if isinstance(self._refusal, DiskFull):
                        self._refusal = None
                    self._room.notify_all()
                self._unsynced_messages += flushing.count
                self._roll()
        self._request_sync()

    def _give_memory_back(self) -> None:
        keep = -(-self._main.size_bytes // _GRANT_BYTES) * _GRANT_BYTES
        if self._granted > keep:
            self._pool.give_back(self._granted - keep)
            self._granted = keep
            self._room_bytes = 0

    def _write(self, batches: tuple[Placed, ...]) -> None:
        if len(batches) > 1:
            batch = EncodedBatch(
                np.concatenate([p.batch.data for p in batches]),
                # As bytes: numpy joins structured arrays in the machine's byte order.
                np.concatenate([p.batch.entries.view(np.uint8) for p in batches]).view(
                    INDEX_ENTRY.dtype
                ),
                np.empty(0, np.int64),
            )
        else:
            batch = batches[0].batch
        try:
            self.files.append(batch, batches[0].index_start, batches[0].data_start)
        except OSError as error:
            raise self._refuse(error) from error

    def _roll(self) -> None:
        """Seal full segments; without room for the next file the next flush tries again."""
        if not self.files.is_full():
            return
        try:
            # That syncs its data, but not the names in its directory: the next sync does.
            self._commits.run(self._roll_files)
        except DiskFull as error:
            log.warning("%s: what was written stays written", error)

    def _roll_again(self) -> None:
        """Make the file for which there was no room: all that was taken is written, so it waits."""
        self._commits.run(self._roll_files)
        with self._append_lock:
            if isinstance(self._refusal, DiskFull):
                self._refusal = None
            self._room.notify_all()

    def _roll_files(self) -> int:
        try:
            self.files.roll_if_full()
        except OSError as error:
            raise self._refuse(error) from error
        return self._commits.end

    def _refuse(self, error: OSError) -> TubeStoreError:
        """Remember why appends are refused from now on."""
        refusal: TubeStoreError
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            refusal = DiskFull(self.files.directory, str(error))
        else:
            refusal = StoreFailed(self.files.directory, str(error))
        with self._append_lock:
            if not isinstance(self._refusal, StoreFailed | StoreClosed):
                self._refusal = refusal
            self._room.notify_all()
        log.error("%s", refusal)
        return refusal

    def _request_sync(self) -> None:
        options = self._options
        unsynced = self._visible.data_end - self._commits.end
        if self._background is not None and (
            self._unsynced_messages >= options.sync_after_messages
            or 0 < options.sync_after_bytes <= unsynced
        ):
            self._background.sync_soon(self)

    def sync(self) -> None:
        """Bring everything taken so far to stable storage, index included; leaves a checkpoint."""
        self.flush()
        self.sync_files(checkpoint=True)

    def sync_files(self, *, checkpoint: bool = False) -> None:
        """Bring what is in the files to stable storage, and leave a checkpoint of that.

        Without `checkpoint` only if the last one is a moment old: by default the background
        syncs every 1,000 messages, and a file each time would cost a tenth of all appends.

        Nobody who writes waits for it: what is written meanwhile may or may not be covered, and
        a segment that is sealed meanwhile is synced by that.
        """
        with self._append_lock:
            self._check_open()
            ends = self._visible
        self._commits.run(lambda: self._synced(self.files.sync, ends.data_end))
        now = self._clock.monotonic()
        if checkpoint or now - self._last_checkpoint >= _CHECKPOINT_SECONDS:
            self._last_checkpoint = now
            write_checkpoint(self.files, ends.index_end, ends.data_end)
        self.files.keep_postings()

    def sync_data(self) -> None:
        """Bring the data of everything taken so far to stable storage (the `fsync` level)."""
        self.flush()
        self._sync_data(self._visible.data_end)

    def _sync_data(self, data_end: int) -> None:
        """Wait until data below `data_end` is on stable storage; waiters share syncs."""
        self._commits.reach(data_end, lambda: self._synced(self.files.sync_data, None))

    def _synced(self, sync: Callable[[], int | None], data_end: int | None) -> int:
        """Run a sync of the files; a failed one fails the shard. Returns how far data is safe."""
        with self._append_lock:
            self._check_open()
        try:
            end = sync()
        except OSError as error:
            raise self._fail(error) from error
        self._unsynced_messages = 0
        self._last_sync = self._clock.monotonic()
        reached = end if data_end is None else data_end
        assert reached is not None
        return reached

    def _fail(self, error: OSError) -> StoreFailed:
        """A failed sync: what the kernel dropped cannot be told, so the shard ends here (D6)."""
        failed = StoreFailed(self.files.directory, f"sync: {error}")
        with self._append_lock:
            self._refusal = failed
            self._room.notify_all()
        log.error("%s", failed)
        return failed

    def maintain(self) -> None:
        """Do what is due by time: flush an old buffer, sync old writes."""
        now = self._clock.monotonic()
        options = self._options
        first = (self._flushing or self._main).first_time
        if self.dirty_bytes and (now - first) * 1000 >= options.mem_flush_interval_ms:
            self.flush()
        behind = self._visible.data_end > self._commits.end
        if behind and (now - self._last_sync) * 1000 >= options.sync_after_ms:
            self.sync_files()

    def cut(self, index_offset: int) -> None:
        """Forget every message from `index_offset` on (DESIGN.md D2: what the log does not have).

        Loses data; for the layers that can bring it back. The buffers must be empty.
        """
        with self._flush_lock, self._append_lock:
            self._check_open()
            assert self._main.count == 0, "cut with messages in memory"
            data_end = self._data_end_before(index_offset)
            self.files.cut_copying(index_offset, data_end)
            self._visible = self.files.snapshot()
            self._main = MsgMemStore(index_offset, data_end)
            self._room_bytes = 0
            self._commits.lower(data_end)
            self.recovered.problems.clear()

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
                raise self._refusal
            flushing = self._flushing.batches() if self._flushing else ()
            memory = flushing + self._main.batches()
            return ShardView(self.topic, self.store_id, self.files, self._visible, memory)

    # -- end ---------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._refusal is not None and not isinstance(self._refusal, DiskFull):
            raise self._refusal

    def abandon(self, reason: StoreClosed) -> None:
        """Refuse everything from now on and write nothing: what a forked child does.

        The locks are new ones: those that other threads held at the fork are never released.
        """
        self._flush_lock = threading.Lock()
        self._append_lock = threading.Lock()
        self._room = threading.Condition(self._append_lock)
        self._commits = GroupCommit(self._commits.end)
        self._refusal = reason

    def close(self) -> None:
        """Flush, sync, leave a checkpoint, give the files back; raises what those raise."""
        if isinstance(self._refusal, StoreClosed):
            return
        try:
            if self._refusal is None or isinstance(self._refusal, DiskFull):
                self.sync()
        finally:
            with self._append_lock:
                self._refusal = StoreClosed(f"{self.name} is closed")
                self._room.notify_all()
            self._pool.give_back(self._granted)
            self._granted = 0
            self.files.close()
