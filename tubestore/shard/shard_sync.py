"""A shard's files being rolled and brought to stable storage, and what happens when that fails.

Trouble (`_refusal`): a full disk refuses appends until a flush succeeds again; any other
failed write and any failed sync fails the shard until it is reopened. In both the buffers
stay, and stay readable. The log has a line for each change of that state.

Guards: `_append_lock` guards `_visible` and `_refusal`; it is never held over I/O. Syncs and
rolls go one at a time through `_commits`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from tubestore.clock import Clock
from tubestore.core.group_commit import GroupCommit
from tubestore.core.statistics import ShardCounters
from tubestore.errors import (
    DiskFull,
    StoreClosed,
    StoreFailed,
    TubeStoreError,
    again,
    failed_write,
)
from tubestore.options import StoreOptions
from tubestore.record.names import store_key
from tubestore.segments.checkpoint import write_checkpoint
from tubestore.segments.file_store import MsgFileStore

log = logging.getLogger(__name__)

#: How old a checkpoint is at least before the background writes the next.
_CHECKPOINT_SECONDS = 0.2


class SyncedShard:
    """The files of a shard that is written to, and how far they are safe."""

    def __init__(
        self, files: MsgFileStore, *, topic: str, options: StoreOptions, clock: Clock
    ) -> None:
        self.topic, self.store_id = topic, files.store_id
        #: `<topic>-<store id>`.
        self.name = store_key(topic, files.store_id)
        self.files = files
        self._options, self._clock = options, clock
        self._append_lock = threading.Lock()
        self._room = threading.Condition(self._append_lock)
        self._commits = GroupCommit(files.data.end)
        self._unsynced_messages = 0
        self._last_sync = clock.monotonic()
        self._last_checkpoint = self._last_sync - _CHECKPOINT_SECONDS
        self._refusal: TubeStoreError | None = None
        self.counters = ShardCounters()
        #: Whether a write or sync failed for good: what the files should have they may not have.
        self.failed = False
        self._visible = files.snapshot()

    def _take_back(self) -> None:
        """Have the shard's end in its buffers, if somebody else keeps it; under the append lock."""

    def _close_room(self) -> None:
        """Have the next append look whether it may enter; the buffers know how."""

    def _check_open(self) -> None:
        if self._refusal is not None and not isinstance(self._refusal, DiskFull):
            raise again(self._refusal)

    def _roll(self) -> None:
        """Seal full segments; without room for the next file the next flush tries again."""
        if not self.files.is_full():
            return
        # That syncs its data, but not the names in its directory: the next sync does. What was
        # written stays written if there is no room for the next file.
        with contextlib.suppress(DiskFull):
            self._commits.run(self._roll_files)

    def _roll_again(self) -> None:
        """Make the file for which there was no room: all that was taken is written, so it waits."""
        self._commits.run(self._roll_files)
        self._note_room()

    def _seal(self) -> None:
        """Seal what is written to, full or not; under the flush lock."""
        self._commits.run(lambda: self._roll_files(full=False))

    def _roll_files(self, *, full: bool = True) -> int:
        try:
            self.files.sync_sealable(full=full)
        except OSError as error:
            raise self._fail(error) from error
        try:
            if full:
                self.files.roll_if_full()
            else:
                self.files.roll()
        except OSError as error:
            raise self._refuse(error) from error
        return self._commits.end

    def _refuse(self, error: OSError) -> DiskFull | StoreFailed:
        """Keep why appends are refused from now on; returns what to raise."""
        refusal = failed_write(self.files.directory, error)
        if isinstance(refusal, StoreFailed):
            self.failed = True
        with self._append_lock:
            self._take_back()
            before = self._refusal
            self._set_refusal(refusal)
            changed = self._refusal is refusal and type(before) is not type(refusal)
        if changed:  # not for each append that is refused
            log.error("%s", refusal)
        return again(refusal)

    def _set_refusal(self, refusal: TubeStoreError) -> None:
        """Refuse appends from now on, and wake those that wait; under the append lock.

        A shard that has failed stays so until it is closed, and one that was closed for ever.
        """
        if not isinstance(self._refusal, StoreFailed | StoreClosed) or isinstance(
            refusal, StoreClosed
        ):
            self._refusal = refusal
        self._close_room()
        self._room.notify_all()

    def _note_room(self) -> None:
        """Let appends in again after a full disk."""
        with self._append_lock:
            was_full = isinstance(self._refusal, DiskFull)
            if was_full:
                self._refusal = None
            self._room.notify_all()
        if was_full:
            log.warning("%s: there is room on the disk again", self.files.directory)

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
        self.files.keep_caches()

    def _sync_data(self, data_end: int, prepare: Callable[[], None] | None = None) -> None:
        """Wait until data below `data_end` is on stable storage; waiters share syncs.

        `prepare`: writes what is still in the buffers of it.
        """
        self._commits.reach(
            data_end, lambda: self._synced(self.files.sync_data, None), prepare=prepare
        )

    def _synced(self, sync: Callable[[], int | None], data_end: int | None) -> int:
        """Run a sync of the files; a failed one fails the shard. Returns how far data is safe."""
        with self._append_lock:
            self._check_open()
        begun = self._clock.monotonic()
        try:
            end = sync()
        except OSError as error:
            raise self._fail(error) from error
        self._unsynced_messages = 0
        self._last_sync = self._clock.monotonic()
        self.counters.note_sync(self._last_sync - begun)
        reached = end if data_end is None else data_end
        assert reached is not None
        return reached

    def _sync_names(self, directory: str) -> None:
        """Make the names in a directory durable; a failure fails the shard."""
        try:
            self.files.vfs.sync_directory(directory)
        except OSError as error:
            raise self._fail(error) from error

    def _fail(self, error: OSError) -> StoreFailed:
        """A failed sync: what the kernel dropped cannot be told, so the shard ends here (D6)."""
        return self.fail(f"sync: {error}")

    def fail(self, reason: str) -> StoreFailed:
        """Refuse everything but reads until the shard is reopened; returns what is raised then."""
        failed = StoreFailed(self.files.directory, reason)
        self.failed = True
        with self._append_lock:
            self._take_back()
            self._set_refusal(failed)
            changed = self._refusal is failed
        if changed:
            log.error("%s", failed)
        return again(failed)
