"""Batches over many shards: one write to the root's journal, and one block in memory.

A batch of a thousand rows over a thousand topics would be two thousand writes. Here it is one, and
a shard writes when it has a few dozen messages. Until then, or until a shard is read, appended to
or flushed, the batch stays in one piece (`pending_batches.py`).

A shard cannot take part while its buffers are full, while it has messages that are in no file and
no journal, and after a failure. Only that shard then writes at once.

Guards: the journal's lock, from the reading of the shards' ends to the frame that records them. It
comes before any lock of a shard. Only its holder lends a shard's end; any thread takes it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from tubestore.clock import Clock
from tubestore.core import kernels
from tubestore.core.doors import logger
from tubestore.core.group_commit import GroupCommit
from tubestore.core.memory_pool import MemoryPool
from tubestore.core.vfs import Vfs
from tubestore.disks.file_syncs import FileSyncs
from tubestore.errors import DiskFull, StoreFailed, TubeStoreError
from tubestore.journal.chosen_shards import ChosenShards, JournalledShard
from tubestore.journal.left_messages import LeftMessages
from tubestore.journal.pending_batches import PendingBatches
from tubestore.journal.root_journal import LeftJournal, RootJournal
from tubestore.options import DURABILITIES, Durability, StoreOptions
from tubestore.record.layouts import JOURNAL_PART
from tubestore.record.records import ENTRY_SIZE, EncodedBatch

log = logger(__name__)
Array = np.ndarray[Any, Any]
#: Above this many bytes a shard, two writes each cost less than copying everything once more.
_SLICE_BYTES_MAX = 16 << 10
#: A journal that will be full within this time is not emptied by age.
_HOT_MS = 4000
#: What a shard's rows of a batch have reached: nothing, or a place in `DURABILITIES`, plus one.
NOT_TAKEN, IN_MEMORY, IN_PAGE_CACHE, SYNCED = range(4)


class JournalledAppends:
    """The journal of a store, and the shards that have messages in it."""

    def __init__(
        self,
        vfs: Vfs,
        root: str,
        options: StoreOptions,
        clock: Clock,
        next_id: Callable[[], int],
        pool: MemoryPool,
    ) -> None:
        self._options, self._clock, self._next_id = options, clock, next_id
        self._pending = PendingBatches(pool, options.journal_size_bytes)
        self._journal = RootJournal(vfs, root, next_id())
        self._file_syncs = FileSyncs(vfs, root)
        #: Comes before any of a shard's.
        self.lock = threading.RLock()
        #: Shards that may have messages in no file but the journal.
        self._dirty: dict[JournalledShard, None] = {}
        #: Bytes of all generations before this one: positions in the journal go on rising.
        self._base = 0
        self._commits = GroupCommit(0)
        #: How often the journal was synced.
        self.syncs = 0
        #: True while a caller was promised that the journal's messages survive a power cut.
        self._promised = False
        #: True if shards write in descending order of their numbers the next time.
        self._turned = False
        #: When this generation began (monotonic seconds).
        self._begun = 0.0
        self._left = LeftMessages()
        #: True once trouble with the journal was logged, until it is over.
        self._in_trouble = False

    def open(self) -> None:
        """Begin to note failures of the file system; before the first batch. OSError."""
        self._file_syncs.open()

    def go_on(self, frames: LeftJournal, left: LeftMessages) -> None:
        """Write behind the frames of a process that was killed; its shards open when used.

        Until all of them were, the generation goes on: what it holds may be in no file yet.
        """
        self._journal.go_on(frames)
        self._left, self._begun = left, self._clock.monotonic()
        self._promised = True  # what the other process promised is not known

    def inherit(self, shard: JournalledShard) -> None:
        """Take note of a shard that was given what an earlier process had in the journal.

        Before it is taken from what is left: `settle` looks there first.
        """
        if not shard.has_all_journalled:
            shard.bar_generation(self._journal.generation)
        self._dirty[shard] = None

    @property
    def size(self) -> int:
        """Bytes in the journal that some shard may lack."""
        return self._journal.size

    def takes(self, shards: int, size: int) -> bool:
        """True if a batch of `size` bytes over so many shards goes through the journal."""
        few = shards < self._options.journal_shards_min
        failed = self._journal.failed or self._file_syncs.failed
        return not few and not failed and size <= shards * _SLICE_BYTES_MAX

    def append(
        self,
        batch: EncodedBatch,
        shards: ChosenShards,
        firsts: Array,
        offsets: Array,
        reached: Array,
        level: Durability,
    ) -> None:
        """Append an encoded batch, `firsts[i]` being the first row of `shards[i]`.

        Fills `offsets`, and `reached` with a level for each shard, also when it raises. At `memory`
        a frame is written too: it costs less than to hand each shard its rows. What finds no room
        on the disk stays in memory then.
        """
        with self.lock:
            if self._has_room(batch, len(shards)):
                taken = self._place(batch, shards, firsts, offsets)
            else:
                taken = np.zeros(len(shards), bool)
            reached[taken] = IN_MEMORY
            position = self._write(batch, shards, firsts, taken)
            self._promised |= level == "fsync"
        if position is not None:
            reached[taken] = IN_PAGE_CACHE
        below: Durability = "memory" if level == "memory" else "page_cache"
        self._append_directly(batch, shards, firsts, offsets, reached, taken, below)
        if position is None:
            self._flush_each(shards, taken, reached, below)
        if level == "fsync":
            self._sync(shards, taken, position, reached)

    # -- into memory -------------------------------------------------------------------------

    def _has_room(self, batch: EncodedBatch, shards: int) -> bool:
        """Make room for a batch in the journal and in memory; if there is any, it is taken."""
        options, pending, size = self._options, self._pending, len(batch.data)
        if self._journal.size >= options.journal_size_bytes and not self._try_to_settle():
            return False
        buffers = options.mem_store_size_bytes, options.mem_store_messages
        if pending.is_enough(shards, size, len(batch), *buffers):
            self._try(self._deliver)
        return pending.makes_room(size) or (self._try(self._deliver) and pending.makes_room(size))

    def _place(
        self,
        batch: EncodedBatch,
        shards: ChosenShards,
        firsts: Array,
        offsets: Array,
    ) -> Array:
        """Place the batch behind the ends that the shards lend; returns which shards lent them."""
        numbers = shards.numbers()
        asked = []
        for n in np.flatnonzero(~self._pending.lent(numbers)).tolist():
            shard = shards[n]
            if shard.lend(self._pending, self._journal.generation):
                self._dirty[shard] = None
                shards.note_number(n)
                numbers[n] = shard.number
                asked.append(shard)
        taken = self._pending.add(batch, numbers, firsts, offsets)
        for shard in asked:  # a waiting reader has taken the end back before
            shard.wake()
        return taken

    def _write(
        self, batch: EncodedBatch, shards: ChosenShards, firsts: Array, taken: Array
    ) -> int | None:
        """Write the frame of what was taken; returns the journal's end, None if it failed."""
        bounds = np.append(firsts, len(batch))
        places = np.append(batch.starts, len(batch.data))[bounds]
        parts = np.empty(len(shards), JOURNAL_PART.dtype)
        parts["entries"], parts["data_size"] = np.diff(bounds), np.diff(places)
        parts["index_start"] = kernels.gather(
            batch.data, batch.starts[firsts] + batch.INDEX_OFFSET_AT, np.dtype(">i8")
        )
        parts["data_start"] = batch.entries["data_offset"][firsts]
        names = shards.names()
        entries, data = batch.entries.view(np.uint8).data, batch.data.data
        if not taken.all():
            kept = np.flatnonzero(taken)
            parts, names = parts[kept], shards.names(kept)
            entries, data = _only(batch, np.repeat(taken, np.diff(bounds)))
        if not len(parts):
            return None
        if self._journal.size == 0:
            self._begun = self._clock.monotonic()
        try:
            self._journal.write(names, parts, entries, data)
        except OSError as error:
            self._say(f"{error}; the shards write at once")
            for shard in shards:
                shard.leave_journal()
            return None
        self._in_trouble = False
        return self._base + self._journal.size

    def _append_directly(
        self,
        batch: EncodedBatch,
        shards: ChosenShards,
        firsts: Array,
        offsets: Array,
        reached: Array,
        taken: Array,
        level: Durability,
    ) -> None:
        """Have the shards take their rows that did not take part."""
        if taken.all():
            return
        bounds = [*firsts.tolist(), len(batch)]
        offsets[np.repeat(~taken, np.diff(bounds))] = -1  # not placed yet
        for n in np.flatnonzero(~taken).tolist():
            rows = slice(bounds[n], bounds[n + 1])
            part = batch.part(rows.start, rows.stop)
            append_part(shards, n, part, offsets[rows], reached, level)

    @staticmethod
    def _flush_each(shards: ChosenShards, taken: Array, reached: Array, level: Durability) -> None:
        """Have the shards write that took rows which are in no frame.

        Every shard is tried; then the first failure is raised. At `memory` a full disk is none.
        """
        failure: TubeStoreError | None = None
        for n in np.flatnonzero(taken).tolist():
            try:
                shards[n].flush()
                reached[n] = IN_PAGE_CACHE
            except TubeStoreError as error:
                if level != "memory" or not isinstance(error, DiskFull):
                    failure = failure or error
        if failure is not None:
            raise failure

    # -- to stable storage -------------------------------------------------------------------

    def _sync(
        self, shards: ChosenShards, taken: Array, position: int | None, reached: Array
    ) -> None:
        """Bring what the shards were given to stable storage, with one sync if possible."""
        durable = False
        if position is not None:
            try:
                self._commits.reach(position, self._sync_journal)
                durable = True
            except StoreFailed as error:
                log.warning("%s; the shards write and sync their own files", error)
                with self.lock:
                    self._try_to_settle()
        in_journal = taken if durable else np.zeros(len(shards), bool)
        for n in np.flatnonzero(~in_journal).tolist():
            shards[n].sync_data()
            reached[n] = SYNCED
        mine = np.flatnonzero(in_journal)
        self._sync_below(shards, mine[self._pending.unsynced(shards.numbers()[mine])])
        reached[in_journal] = SYNCED

    def _sync_below(self, shards: ChosenShards, rows: Array) -> None:
        """Sync what some of the shards have in their files below their first frames."""
        if not len(rows):
            return
        unknown = [shards[n] for n in rows.tolist()]
        # Before the sync: a shard may begin anew meanwhile, behind what is not synced.
        starts = [shard.journal_from for shard in unknown]
        unsynced = [shard for shard in unknown if not shard.is_synced_before_journal()]
        self._file_syncs.sync(unsynced, lambda shard: shard.sync_before_journal())
        self._pending.note_synced(shards.numbers()[rows], starts)

    def _sync_journal(self) -> int:
        end = self._base + self._journal.size
        self.syncs += 1
        try:
            self._journal.sync()
        except OSError as error:
            raise StoreFailed(self._journal.path, f"sync: {error}") from error
        return end

    def maintain(self) -> None:
        """Empty the journal when its first message is old, for readers of the files.

        A journal that fills fast will be emptied soon in any case. It is left alone: a second
        thread
        beside the one that appends costs more than it gives.
        """
        if self._left:
            return  # its shards are being opened
        age_ms = (self._clock.monotonic() - self._begun) * 1000
        options = self._options
        if not self._journal.size:  # nothing since it was emptied
            with self.lock:
                self._pending.release()
            return
        if age_ms < options.journal_flush_ms:
            return
        if self._journal.size * _HOT_MS >= options.journal_size_bytes * age_ms:
            return
        with self.lock:
            self._try_to_settle()

    def relieve(self) -> None:
        """Have the shards write what is pending: others wait for its memory."""
        with self.lock:
            if self._pending.size_bytes:
                self._try(self._deliver)
            self._pending.release()

    def _try_to_settle(self) -> bool:
        return self._try(self.settle)

    def _say(self, trouble: str) -> None:
        """Log what is wrong with the journal, once until it was written or emptied again."""
        if not self._in_trouble:
            self._in_trouble = True
            log.warning("the journal: %s", trouble)

    def _try(self, empty: Callable[[], None]) -> bool:
        try:
            empty()
        except TubeStoreError as error:
            self._say(f"it cannot be emptied: {error}")
            return False
        return True

    def _deliver(self) -> None:
        """Have all shards take and write their messages of the journal. Under `lock`.

        Every shard is tried; then the first failure is raised.
        """
        failure: TubeStoreError | None = None
        shards = []
        for shard in self._dirty:
            if not shard.is_over():
                shards.append(shard)
            elif shard.has_unwritten():
                failure = StoreFailed(shard.files.directory, "closed with messages in memory")
        # There and back: the files of the last ones are still open at the next time.
        shards.sort(key=attrgetter("number"), reverse=self._turned)
        self._turned = not self._turned
        for n, parts in self._pending.gather([shard.number for shard in shards]):
            try:
                shards[n].deliver(parts)
            except TubeStoreError as error:
                failure = failure or error
        for shard in shards:
            try:
                shard.flush()
            except TubeStoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def settle(self) -> None:
        """Have all shards write their messages of the journal, and begin it anew. Under `lock`.

        If a shard raises, the journal stays as it is and its generation goes on.
        """
        self._left.open_all()
        self._deliver()
        shards = list(self._dirty)  # another thread may open one that was left, and add it
        if self._promised:
            there = [shard for shard in shards if not shard.is_over()]
            self._file_syncs.sync(there, lambda shard: shard.sync_written())
        for shard in shards:
            del self._dirty[shard]
        self._base += self._journal.size
        self._commits.reach_without(self._base)
        self._journal.begin_anew(self._next_id())
        self._in_trouble = False
        self._promised = False

    def abandon(self) -> None:
        """Have a lock that is free: another thread held the old one at a fork."""
        self.lock = threading.RLock()
        self._pending.abandon()

    def forget(self) -> None:
        """Have nothing in the journal, on the disk as well; hold `lock` as long as that matters.

        Raises what the shards raise, or StoreFailed; the journal then stays as it is.
        """
        self.settle()
        try:
            self._journal.forget()
        except OSError as error:
            raise StoreFailed(self._journal.path, str(error)) from error

    def remove_left_over(self) -> None:
        """Remove what an earlier process left; its messages are on stable storage elsewhere."""
        self._journal.remove()

    def close(self, *, keep: bool) -> None:
        """Remove the journal after all shards were closed; `keep` it if one of them could not be.

        It is also kept if a shard lacks something: the next opening gives it to the shard.
        """
        self._file_syncs.close()
        # Else what the file system could not write may be in no file.
        keep = keep or (self._file_syncs.failed and self._journal.size > 0)
        lacking = any(shard.failed or shard.has_unwritten() for shard in self._dirty)
        if keep or self._left or lacking:
            self._journal.close()
        else:
            self._journal.remove()


def append_part(
    shards: Sequence[JournalledShard],
    n: int,
    part: EncodedBatch,
    offsets: Array,
    reached: Array,
    level: Durability = "page_cache",
) -> None:
    """Append the rows that a batch has for one shard; fills their `offsets` and `reached[n]`.

    Also when it raises: a shard may have taken the rows and not written them.
    """
    try:
        offsets[:] = shards[n].append_encoded(part, level)
        reached[n] = DURABILITIES.index(level) + 1
    except TubeStoreError as error:
        if error.taken == "yes" and error.offset is not None:
            offsets[:] = error.offset + ENTRY_SIZE * np.arange(len(part))
            reached[n] = IN_MEMORY
        raise


def _only(batch: EncodedBatch, rows: Array) -> tuple[memoryview, memoryview]:
    """Return entries and records of some rows."""
    kept = np.flatnonzero(rows)
    ends = np.append(batch.starts, len(batch.data))
    records = b"".join(batch.data[ends[n] : ends[n + 1]].tobytes() for n in kept.tolist())
    entries = kernels.rows_at(batch.entries, kept)
    return memoryview(entries.tobytes()), memoryview(records)
