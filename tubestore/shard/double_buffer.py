"""The two buffers of a shard that change places: one takes appends while the other is written.

States of the pair (main takes appends, flushing is being written):

| main       | flushing | an append                          | a flush                     |
| ---------- | -------- | ---------------------------------- | --------------------------- |
| has room   | empty    | enters main                        | swaps, writes               |
| has room   | full     | enters main                        | writes                      |
| full       | empty    | swaps, enters the new main         | swaps, writes               |
| full       | full     | waits; StoreBusy at its deadline   | writes, wakes the waiting   |

Guards, in lock order: `_flush_lock` serialises writers of the files; `_append_lock` guards
the buffers.
"""

from __future__ import annotations

import threading
from typing import Protocol

import numpy as np

from tubestore.clock import Clock
from tubestore.core.memory_pool import MemoryPool
from tubestore.errors import DiskFull, StoreBusy, TubeStoreError, again
from tubestore.options import StoreOptions
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.records import EncodedBatch, Placed
from tubestore.segments.file_store import FileSnapshot, MsgFileStore
from tubestore.shard.mem_store import MsgMemStore
from tubestore.shard.shard_sync import SyncedShard

#: A shard takes its memory from the pool in steps, not a lock a message.
_GRANT_BYTES = 64 << 10
_GRANT_BYTES_MIN = 4 << 10
#: A buffer that filled faster than this is written by whoever filled it.
_HOT_SECONDS = 0.1


class Background(Protocol):
    """Who does a shard's work that nobody waits for; may drop a request, never block."""

    def flush_soon(self, shard: DoubleBuffer) -> None:
        """Call `shard.flush()` in another thread."""

    def sync_soon(self, shard: DoubleBuffer) -> None:
        """Call `shard.sync_files()` in another thread."""


class DoubleBuffer(SyncedShard):
    """A shard's buffers over its files."""

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
        super().__init__(files, topic=topic, options=options, clock=clock)
        self._pool, self._background = pool, background
        self._flush_lock = threading.Lock()
        self._main = MsgMemStore(files.index.end, files.data.end)
        self._flushing: MsgMemStore | None = None
        self._granted = 0
        #: While files are being put behind ours nothing enters the buffers (`adoption.py`).
        self._held = False
        #: Whether somebody else keeps the shard's end, and messages before it (`_take_back`).
        self._lent = False
        #: How far main is filled without another look at its bounds, the pool and trouble: up to
        #: this data offset, and with so many messages.
        self._room_end = self._room_count = -1

    @property
    def dirty_bytes(self) -> int:
        """Bytes that are in the buffers and not in the files."""
        flushing = self._flushing
        return self._main.size_bytes + (flushing.size_bytes if flushing else 0)

    @property
    def dirty_since(self) -> float:
        """When the first of them came (monotonic seconds); means nothing while there are none."""
        # A message that is being written directly has none: it came just now.
        return (self._flushing or self._main).first_time or self._clock.monotonic()

    def _swap(self) -> None:
        """Let the buffers change places; under the append lock, with nothing being flushed."""
        assert self._flushing is None
        if self._lent:
            self._take_back()
        self.counters.swaps += 1
        self._flushing = self._main
        self._main = MsgMemStore(self._flushing.index_end, self._flushing.data_end)
        self._close_room()

    def _close_room(self) -> None:
        """Have the next append look whether it may enter; under the append lock."""
        self._room_end = self._room_count = -1

    def _take_room(self, size: int, count: int) -> MsgMemStore:
        """Wait until main takes this, and return it; under the append lock."""
        if self._lent:
            self._take_back()
        if self._refusal is not None or not self._fits(size, count):
            self._stall(size, count)
            self._take_back()  # it may have been lent while we waited
        return self._open_room()

    def _open_room(self) -> MsgMemStore:
        """Note how far main, which has room, can be filled; returns it; under the append lock."""
        options, main = self._options, self._main
        if main.count == 0:
            main.first_time = self._clock.monotonic()
        room = min(options.mem_store_size_bytes - main.size_bytes, self._granted - self.dirty_bytes)
        self._room_end = main.data_end + room
        self._room_count = options.mem_store_messages
        return main

    def _fits(self, size: int, count: int) -> bool:
        """Whether main takes this now; under the append lock."""
        if self._held:
            return False
        options, main = self._options, self._main
        if not main.has_room(size, count, options.mem_store_size_bytes, options.mem_store_messages):
            return False
        held = main.size_bytes + (self._flushing.size_bytes if self._flushing else 0)
        if held + size <= self._granted:
            return True
        # Small steps first: ten thousand shards of one message each share the pool as well.
        step = max(min(_GRANT_BYTES, self._granted), _GRANT_BYTES_MIN, held + size - self._granted)
        if not self._pool.take(step):
            return False
        self._granted += step
        return True

    def _stall(self, size: int, count: int) -> None:
        """Wait for room, and count that; under the append lock."""
        begun = self._clock.monotonic()
        try:
            self._wait_for_room(size, count)
        except StoreBusy:
            self.counters.busy += 1
            raise
        except TubeStoreError:
            self.counters.refused += 1
            raise
        finally:
            self.counters.note_stall(self._clock.monotonic() - begun)

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
                held = self._held
                self._append_lock.release()
                try:
                    self.flush()
                    self._pool.relieve()
                finally:
                    self._append_lock.acquire()
                if isinstance(self._refusal, DiskFull):
                    raise again(self._refusal)
                if held:  # it is not counted how long files were being put behind ours
                    deadline = self._clock.monotonic() + self._options.append_timeout_ms / 1000
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

    def flush(self, index_end: int | None = None) -> None:
        """Write the buffers to the files (page cache), as far as they reach at the call.

        Raises DiskFull (retried by the next call) or StoreFailed; what was not written stays
        in memory and readable.
        """
        with self._flush_lock:
            self._flush_to(index_end)
        self._request_sync()

    def _flush_to(self, index_end: int | None) -> None:
        """Write the buffers; under the flush lock."""
        with self._append_lock:
            if self._lent:
                self._take_back()
            self._check_open()
            target = self._main.index_end if index_end is None else index_end
        if isinstance(self._refusal, DiskFull) and self._flushing is None:
            try:
                self._roll_again()
            except DiskFull:
                if self._visible.index_end < target:
                    raise
        while self._visible.index_end < target:
            with self._append_lock:
                if self._flushing is None:
                    self._swap()
                flushing = self._flushing
                assert flushing is not None
                batches = flushing.batches()
            self._write(batches)
            written = self._written()
            with self._append_lock:
                self._visible = written
                self._flushing = None
                self._give_memory_back()
            self._note_room()
            self._unsynced_messages += flushing.count
            self._roll()

    def _give_memory_back(self) -> None:
        keep = -(-self._main.size_bytes // _GRANT_BYTES_MIN) * _GRANT_BYTES_MIN
        if self._granted > keep:
            self._pool.give_back(self._granted - keep)
            self._granted = keep
            self._close_room()

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

    def _written(self) -> FileSnapshot:
        """Return what the files have after a write; under the flush lock.

        It reads the index after the first segments have changed. A failed read fails the shard:
        the buffer counts as not written, and is not to be written twice.
        """
        try:
            return self.files.snapshot()
        except OSError as error:
            raise self.fail(f"read after a write: {error}") from error

    def _request_sync(self) -> None:
        options = self._options
        unsynced = self._visible.data_end - self._commits.end
        if self._background is not None and (
            self._unsynced_messages >= options.sync_after_messages
            or 0 < options.sync_after_bytes <= unsynced
        ):
            self._background.sync_soon(self)
