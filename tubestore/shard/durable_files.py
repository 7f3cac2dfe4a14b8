"""The files of a shard that is written to: writes, syncs, rolls, and trouble.

Trouble (`trouble`) refuses appends:

| cause                         | lasts until                | the shard                         |
| ----------------------------- | -------------------------- | --------------------------------- |
| a full disk (DiskFull)        | a flush succeeds           | keeps its buffers, readable       |
| another failed write, a       | the shard is opened again  | has failed (`failed`): its files  |
| failed sync (StoreFailed)     |                            | may lack acknowledged messages    |
| it was closed (StoreClosed)   | for ever                   | gives its files back              |

The log has a line for each change of that state.

Guards: `visible` and `trouble` are guarded by the shard's append lock, which is handed in and
never held over I/O. Writes come under the shard's flush lock. Syncs and
rolls go one at a time through the group commit.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial

import numpy as np

from tubestore.clock import Clock
from tubestore.core.doors import logger
from tubestore.core.group_commit import GroupCommit
from tubestore.core.vfs import VfsFile
from tubestore.errors import (
    DiskFull,
    StoreClosed,
    StoreFailed,
    TubeStoreError,
    again,
    failed_write,
)
from tubestore.options import StoreOptions
from tubestore.record.layouts import INDEX_ENTRY
from tubestore.record.records import ENTRY_SIZE, EncodedBatch, Placed
from tubestore.segments.checkpoint import lower_ends, raise_begin, write_checkpoint
from tubestore.segments.file_store import FileSnapshot, MsgFileStore
from tubestore.segments.segment_list import Adopted
from tubestore.shard.announcements import Announcements
from tubestore.shard.compaction import FileRun
from tubestore.shard.statistics import ShardCounters

log = logger(__name__)

#: How old a checkpoint is at least before the background writes the next.
_CHECKPOINT_SECONDS = 0.2


class DurableFiles:
    """A shard's files, how far they are written and safe, and why they refuse."""

    def __init__(
        self,
        files: MsgFileStore,
        *,
        options: StoreOptions,
        clock: Clock,
        counters: ShardCounters,
        lock: threading.Lock,
        changed: Announcements,
        close_room: Callable[[], None],
    ) -> None:
        """`lock` is the append lock, `changed` what is announced under it.

        `close_room` is called under the append lock when appends are refused.
        """
        self.files = files
        self._options, self._clock, self._counters = options, clock, counters
        self._lock, self._changed, self._close_room = lock, changed, close_room
        #: How far the data is on stable storage.
        self.commits = GroupCommit(files.data.end)
        #: Below this data offset a sync of the file system has covered everything.
        self._noted_end = -1
        self._unsynced_messages = 0
        self._last_sync = clock.monotonic()
        self._last_checkpoint = self._last_sync - _CHECKPOINT_SECONDS
        #: A roll that has not ended. Its next file may be there already, so nothing may be written
        #: to the one before it.
        self._unended_roll: Callable[[], int] | None = None
        #: Why appends are refused.
        self.trouble: TubeStoreError | None = None
        #: Permanently failed: the files may lack acknowledged messages.
        self.failed = False
        #: The files as readers see them: everything that was written whole.
        self.visible = files.snapshot()

    # -- trouble -----------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raise the trouble, unless it is a full disk: the next flush tries again."""
        if self.trouble is not None and not isinstance(self.trouble, DiskFull):
            raise again(self.trouble)

    @property
    def is_closed(self) -> bool:
        """True once the shard was closed."""
        return isinstance(self.trouble, StoreClosed)

    @property
    def is_full(self) -> bool:
        """True while a full disk refuses appends."""
        return isinstance(self.trouble, DiskFull)

    def refuse(self, trouble: TubeStoreError) -> bool:
        """Refuse appends from now on and wake waiting ones; returns True if that is news.

        Under the append lock. A failed shard stays failed until it is closed.
        """
        before = self.trouble
        if not isinstance(before, StoreFailed | StoreClosed) or isinstance(trouble, StoreClosed):
            self.trouble = trouble
        self._close_room()
        self._changed.announce()
        return self.trouble is trouble and type(before) is not type(trouble)

    def fail(self, reason: str) -> StoreFailed:
        """Refuse all but reads until the shard is opened again; returns the error."""
        failed = StoreFailed(self.files.directory, reason)
        self._note(failed)
        return again(failed)

    def _failed_write(self, error: OSError) -> TubeStoreError:
        """Record why a write failed; returns what to raise."""
        trouble = failed_write(self.files.directory, error)
        self._note(trouble)
        return again(trouble)

    def _failed_sync(self, error: OSError) -> StoreFailed:
        """Fail the shard: nothing shows which pages the kernel dropped (D6)."""
        return self.fail(f"sync: {error}")

    def _note(self, trouble: TubeStoreError) -> None:
        if isinstance(trouble, StoreFailed):
            self.failed = True
        with self._lock:
            is_news = self.refuse(trouble)
        if is_news:  # not for each append that is refused
            log.error("%s", trouble)

    def note_room(self) -> None:
        """Let appends in again after a full disk, and wake those that wait for room."""
        with self._lock:
            was_full = self.is_full
            if was_full:
                self.trouble = None
            self._changed.announce()
        if was_full:
            log.warning("%s: there is room on the disk again", self.files.directory)

    # -- write -------------------------------------------------------------------------------

    def write(self, batches: tuple[Placed, ...]) -> FileSnapshot:
        """Write placed messages to the page cache; returns what readers may see then.

        Under the flush lock.
        """
        if self._unended_roll is not None:
            self.commits.run(self._unended_roll)
        batch = batches[0].batch
        if len(batches) > 1:
            batch = EncodedBatch(
                np.concatenate([p.batch.data for p in batches]),
                # As bytes: numpy joins structured arrays in the machine's byte order.
                np.concatenate([p.batch.entries.view(np.uint8) for p in batches]).view(
                    INDEX_ENTRY.dtype
                ),
                np.empty(0, np.int64),
            )
        try:
            self.files.append(batch, batches[0].index_start, batches[0].data_start)
        except OSError as error:
            raise self._failed_write(error) from error
        return self._snapshot()

    def write_one(
        self, record: bytes, entry: bytes, index_start: int, data_start: int
    ) -> FileSnapshot:
        """As `write`, for one record and its index entry."""
        if self._unended_roll is not None:
            self.commits.run(self._unended_roll)
        try:
            self.files.append_bytes(record, entry, index_start, data_start)
        except OSError as error:
            raise self._failed_write(error) from error
        return self._snapshot()

    def _snapshot(self) -> FileSnapshot:
        """Return the files after a write; under the flush lock.

        This reads the index after the first segments have changed. A failed read fails the
        shard: the buffer counts as not written, and must not be written twice.
        """
        try:
            return self.files.snapshot()
        except OSError as error:
            raise self.fail(f"read after a write: {error}") from error

    def roll_after(self, messages: int) -> None:
        """Count written messages, and seal full segments.

        Without room for the next file the next flush tries again.
        """
        self._unsynced_messages += messages
        if not self.files.is_full():
            return
        # That syncs its data, but not the names in its directory: the next sync does. The
        # messages stay written if there is no room for the next file.
        with contextlib.suppress(DiskFull):
            self._run_roll(full=True)

    def roll_again(self) -> None:
        """Make the file that had no room on the disk, and let appends in again."""
        self._run_roll(full=True)
        self.note_room()

    def seal(self) -> None:
        """Seal the segments that are written to, full or not; under the flush lock."""
        self._run_roll(full=False)

    def _run_roll(self, *, full: bool) -> None:
        self._unended_roll = partial(self._roll, full=full)
        self.commits.run(self._unended_roll)

    def _roll(self, *, full: bool) -> int:
        try:
            self.files.sync_sealable(full=full)
        except OSError as error:
            raise self._failed_sync(error) from error
        try:
            if full:
                self.files.roll_if_full()
            else:
                self.files.roll()
        except OSError as error:
            self._unended_roll = None
            raise self._failed_write(error) from error
        self._unended_roll = None
        return self.commits.end

    # -- sync --------------------------------------------------------------------------------

    @property
    def unsynced_bytes(self) -> int:
        """Bytes of data that no sync has covered."""
        return max(0, self.visible.data_end - self.commits.end)

    def is_sync_due(self) -> bool:
        """True once as much is unsynced as the options allow."""
        options = self._options
        unsynced = self.visible.data_end - self.commits.end
        return (
            self._unsynced_messages >= options.sync_after_messages
            or 0 < options.sync_after_bytes <= unsynced
        )

    def is_sync_overdue(self) -> bool:
        """True if data is unsynced and the last sync is as old as the options allow."""
        behind = self.visible.data_end > self.commits.end
        now = self._clock.monotonic()
        return behind and (now - self._last_sync) * 1000 >= self._options.sync_after_ms

    def sync_data(self, data_end: int, prepare: Callable[[], None] | None = None) -> None:
        """Wait until data below `data_end` is on stable storage; waiters share syncs.

        `prepare` writes the messages below it that are still in the buffers.
        """
        self.commits.reach(
            data_end, lambda: self._synced(self.files.sync_data, None), prepare=prepare
        )

    def is_durable(self, data_end: int) -> bool:
        """True if this process has synced everything below `data_end`.

        After an opening the page cache may hold unsynced data of an earlier process.
        """
        return data_end <= self._noted_end or self.files.is_durable(data_end)

    def note_synced(self, data_end: int) -> None:
        """Record that data below an offset is on stable storage, by a sync of the file system."""
        with self._lock:
            self._noted_end = max(self._noted_end, min(data_end, self.visible.data_end))

    def sync_data_once(self, data_end: int) -> None:
        """Sync the data unless this process has synced everything below `data_end`."""
        if not self.is_durable(data_end):
            self.commits.run(lambda: self._synced(self.files.sync_data, None))

    def sync_all(self) -> FileSnapshot:
        """Sync data and index; returns the ends that are on stable storage then."""
        with self._lock:
            ends = self.visible
        self.commits.run(lambda: self._synced(self.files.sync, ends.data_end))
        return ends

    def sync_with_checkpoint(self, *, always: bool) -> None:
        """Sync data and index, and leave a checkpoint of it.

        Without `always` only if the last checkpoint is a moment old: by default the background
        syncs every 1,000 messages, and a file each time would cost a tenth of all appends.

        Writers do not wait for it. Messages that are written meanwhile may or may not be covered;
        a segment that is sealed meanwhile was synced by the sealing.
        """
        ends = self.sync_all()
        now = self._clock.monotonic()
        if always or now - self._last_checkpoint >= _CHECKPOINT_SECONDS:
            self._last_checkpoint = now
            write_checkpoint(self.files, ends.index_end, ends.data_end)
        self.files.keep_digests()

    def leave_checkpoint(self) -> None:
        """Record that everything visible is on stable storage; after a sync."""
        write_checkpoint(self.files, self.visible.index_end, self.visible.data_end)

    def wait_for_sync(self) -> None:
        """Wait for the sync or roll that is under way."""
        with contextlib.suppress(StoreFailed):
            self.commits.run(lambda: self.commits.end)

    def _synced(self, sync: Callable[[], int | None], data_end: int | None) -> int:
        """FileRun a sync; returns how far data is safe. A failed sync fails the shard."""
        with self._lock:
            self.check_usable()
        begun = self._clock.monotonic()
        try:
            end = sync()
        except OSError as error:
            raise self._failed_sync(error) from error
        self._unsynced_messages = 0
        self._last_sync = self._clock.monotonic()
        self._counters.note_sync(self._last_sync - begun)
        reached = end if data_end is None else data_end
        assert reached is not None
        return reached

    def _sync_names(self, directory: str) -> None:
        """Make the names in a directory durable; a failure fails the shard."""
        try:
            self.files.vfs.sync_directory(directory)
        except OSError as error:
            raise self._failed_sync(error) from error

    # -- files that come and go --------------------------------------------------------------

    def adopt(self, index: list[Adopted], data: list[Adopted]) -> None:
        """Take over what is behind both ends, in order, all synced.

        Readers see them later. An OSError fails the shard: its files are then longer than its
        lists.
        """

        def adopt() -> int:
            try:
                self.files.adopt(index, data)
            except OSError as error:
                raise self._failed_sync(error) from error
            return self.files.data.end

        self.commits.run(adopt)  # syncs and rolls use the same lists

    def cut(self, index_offset: int) -> int:
        """Remove every message from `index_offset` on; returns where the data ends then.

        Under the flush lock and the append lock. An OSError fails the shard: a part of it may be
        done, which the next opening finds.
        """
        try:
            data_end = self._data_end_before(index_offset)
            self._noted_end = -1
            lower_ends(self.files, index_offset, data_end)
            self.files.cut_copying(index_offset, data_end)
            self.visible = self.files.snapshot()
        except OSError as error:
            self.failed = True
            self.refuse(StoreFailed(self.files.directory, f"cut: {error}"))
            raise
        self.commits.lower(data_end)
        return data_end

    def files_from(self, index_offset: int) -> list[tuple[str, int]]:
        """Return the files that `cut` would change, with the positions where it cuts."""
        found = []
        data_end = self._data_end_before(index_offset)
        for segments, start in (
            (self.files.index.now, index_offset),
            (self.files.data.now, data_end),
        ):
            found += [(s.path, max(start - s.start, 0)) for s in segments if s.end > start]
        return found

    def _data_end_before(self, index_offset: int) -> int:
        """Return where the data of the message before `index_offset` ends.

        The entry at `index_offset` is not asked: messages that are cut may be damaged.
        """
        if index_offset <= self.files.index.start:
            return self.files.data.start
        segment = self.files.index.find(index_offset - ENTRY_SIZE)
        assert segment is not None
        entries = self.files.entries(segment, segment.end)
        last = entries[(index_offset - ENTRY_SIZE - segment.start) // ENTRY_SIZE]
        return int(last["data_offset"]) + int(last["data_size"])

    def remove_below(self, data_offset: int) -> int:
        """Move the files below a data offset to the trash; returns their number.

        Only files that hold no other messages. Under the flush lock. OSError leaves a part of it
        done; a failed sync fails the shard. Where the rest cannot be examined, readers still see
        the removed files, which are in the trash, until the next write.
        """
        # The index too: entries that a power cut loses cannot be made again without their data.
        ends = self.sync_all()
        try:
            return self.files.remove_below(
                data_offset,
                now_ms=self._clock.now_ms(),
                record_begins=partial(raise_begin, self.files, (ends.index_end, ends.data_end)),
                sync=self._sync_names,
            )
        finally:
            ends = self.files.snapshot()  # it may read, so not under the lock
            with self._lock:
                self.visible = ends

    def merge(self, run: FileRun, copy: VfsFile, check: Callable[[], None]) -> None:
        """Put a file with the bytes of sealed segments in their place; under the flush lock."""
        try:
            self.files.merge(
                run.stream,
                run.segments,
                copy,
                now_ms=self._clock.now_ms(),
                sync=self._sync_names,
                check=check,
            )
        finally:
            ends = self.files.snapshot()  # it may read, so not under the lock
            with self._lock:
                self.visible = ends

    # -- end ---------------------------------------------------------------------------------

    def abandon(self, lock: threading.Lock, changed: Announcements) -> None:
        """Take new locks: in a forked child the old ones may never be released."""
        self._lock, self._changed = lock, changed
        self.commits = GroupCommit(self.commits.end)

    def check_invariants(self) -> None:
        """Raise AssertionError if the fields contradict each other; for tests."""
        visible = self.visible
        assert visible.index_start <= visible.index_end
        if not self.failed:  # a cut that failed may have taken what is shown
            assert visible.index_end <= self.files.index.end, "entries are shown that no file has"
            assert visible.data_end <= self.files.data.end, "records are shown that no file has"
            assert self.commits.end <= self.files.data.end, "more is safe than was written"
        else:
            assert isinstance(self.trouble, StoreFailed | StoreClosed), "failed, and takes appends"
        self.commits.check_invariants()
