"""Brings the files of shards to stable storage before their journal is used again.

A thousand files one by one take seconds, one call for the file system a fraction of that. The call
names no file: a shard learns from it how far its data is safe (`note_synced`), and does not sync
the same data again.

The file system is held open from the beginning, so that a failure to write any of the data is
reported to the next call. After a failed call nothing shows what was lost, so no later one counts:
the journal keeps what it has until the store is opened again.

Guards: the group commit lets one thread sync the file system at a time; the system reports a
failure to one call only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tubestore.core.group_commit import GroupCommit
from tubestore.core.vfs import Vfs, VfsFileSystem
from tubestore.errors import StoreFailed

#: So many shards are synced file by file, more with one call for the file system.
_SYNCED_EACH_MAX = 8


class SyncedShard(Protocol):
    """What this file needs of a shard; `MessageStore` has it."""

    def written_end(self) -> int:
        """Return the data offset behind what is in the files."""

    def note_synced(self, data_end: int) -> None:
        """Record that data below an offset is on stable storage, by a sync of the file system."""


_S = TypeVar("_S", bound=SyncedShard)


class FileSyncs:
    """Syncs the files of shards of one root."""

    def __init__(self, vfs: Vfs, root: str) -> None:
        """Begin without a descriptor; see `open`."""
        self._vfs, self._root = vfs, root
        self._file_system: VfsFileSystem | None = None
        self._commits = GroupCommit(0)
        #: True once a sync of the file system has failed.
        self.failed = False

    def open(self) -> None:
        """Have failures reported from now on; before the data is written. OSError."""
        if self._file_system is None:
            self._file_system = self._vfs.file_system(self._root)

    def sync(self, shards: Sequence[_S], each: Callable[[_S], None]) -> None:
        """Bring what is in the files of some shards to stable storage.

        `each` syncs one shard; it is called if there are few. Raises what it raises, or
        StoreFailed, then and from then on, if the sync of the file system fails.
        """
        if len(shards) <= _SYNCED_EACH_MAX and not self.failed:
            for shard in shards:
                each(shard)
            return
        ends = [shard.written_end() for shard in shards]  # before the call: it covers these
        self._commits.run(self._sync_file_system)
        for shard, end in zip(shards, ends, strict=True):
            shard.note_synced(end)

    def _sync_file_system(self) -> int:
        assert self._file_system is not None
        try:
            self._file_system.sync()
        except OSError as error:
            self.failed = True
            raise StoreFailed(self._root, f"sync of the file system: {error}") from error
        return 0

    def close(self) -> None:
        """Give the descriptor back."""
        if self._file_system is not None:
            self._file_system.close()
            self._file_system = None
