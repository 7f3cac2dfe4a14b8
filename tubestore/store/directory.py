"""The directory of a store: its lock, its identity, and the small files that are its state.

    <root>/.tubestore/store.json     uuid and format version of the store
    <root>/.tubestore/topics.json    settings of every topic (`topic_settings.py`)
    <root>/.tubestore/topics-N.log   what was changed since, in a store of many topics
    <root>/.tubestore/lock           held by the one writer (flock)
    <root>/.tubestore/closed         there if the last writer closed the store, all of it synced

State files are replaced atomically and durably; a store with an invalid file, or one of another
version, is refused.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable
from os.path import dirname
from typing import Any, Literal, TypeVar

from tubestore.clock import Clock, SystemClock
from tubestore.core.group_commit import GroupCommit
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs, VfsFileSystem, VfsLock, take_lock
from tubestore.errors import NotAStore, StoreFailed
from tubestore.record.names import (
    CLOSED_FILE,
    COMMIT_LOG_DIRECTORY,
    LOCK_FILE,
    STORE_FILE,
    TOPICS_FILE,
)
from tubestore.record.state_files import (
    STATE_VERSION,
    BadState,
    SavedTopics,
    has_topics,
    parse_identity,
    read_topics,
    state_bytes,
)

T = TypeVar("T")


class StoreDirectory:
    """A store's directory, locked while it is open for writing (made if it is missing)."""

    def __init__(
        self, vfs: Vfs, root: str, mode: Literal["w", "r"], clock: Clock | None = None
    ) -> None:
        self.vfs, self.root, self.mode = vfs, root, mode
        self.clock: Clock = clock or SystemClock()
        self._last_id = 0
        self._own = join(root, OWN_DIRECTORY)
        self._lock: VfsLock | None = None
        #: The file system, if an earlier process may have left writes in the page cache only.
        self._unsynced: VfsFileSystem | None = None
        self._sync_once = GroupCommit(0)
        if vfs.exists(join(root, COMMIT_LOG_DIRECTORY)):
            raise NotAStore(root, "this is a RocketMQ store: use rocketcompat")
        if mode == "w":
            self._prepare()
        elif not vfs.exists(root):
            raise NotAStore(root, "no such directory")
        try:
            self.uuid = self._read_identity(mode)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let another writer in; harmless when repeated."""
        if self._lock is not None:
            self._lock.release()
        if self._unsynced is not None:
            self._unsynced.close()

    def sync_earlier(self) -> None:
        """Bring what earlier processes left unsynced to stable storage, with one call, once.

        There is nothing after a clean close. StoreFailed if it fails, then and from then on: what
        the system could not write is reported once only.
        """
        if self._unsynced is not None:
            self._sync_once.reach(1, self._sync_file_system)

    def _sync_file_system(self) -> int:
        assert self._unsynced is not None
        try:
            self._unsynced.sync()
        except OSError as error:
            raise StoreFailed(self.root, f"sync of the file system: {error}") from error
        return 1

    def note_closed(self) -> None:
        """Record that everything in the store is synced, for the next opening.

        Not durable itself: after a reboot nothing is left in the page cache. A failure costs the
        next writer one sync of the file system.
        """
        with contextlib.suppress(OSError):
            self.vfs.open(join(self._own, CLOSED_FILE), create=True).close()

    def is_locked(self) -> bool:
        """True while the lock that was taken keeps other writers out."""
        return self._lock is None or self._lock.is_current()

    def _prepare(self) -> None:
        there = self.root
        while not self.vfs.exists(there):
            there = dirname(there)
        try:
            self.vfs.make_directories(self._own)
        except (FileExistsError, NotADirectoryError) as error:
            raise NotAStore(self.root, "not a directory") from error
        path = join(self._own, LOCK_FILE)
        self._lock = take_lock(self.vfs, path, kind="flock", root=self.root, note=path)
        try:
            if not self.vfs.exists(join(self._own, STORE_FILE)):
                self._sync_ancestors(there)
            elif self.vfs.exists(join(self._own, CLOSED_FILE)):
                self.vfs.remove(join(self._own, CLOSED_FILE))
            else:
                self._unsynced = self.vfs.file_system(self.root)
        except BaseException:
            self.release()
            raise

    def _sync_ancestors(self, there: str) -> None:
        """Sync the directories above a new store, before the file that makes it a store.

        The directory above is synced also if the root was there: a process that was killed
        may have made it.
        """
        self.vfs.sync_directory(self.root)
        path = self.root
        while True:
            path = dirname(path)
            with contextlib.suppress(PermissionError):  # made by another user
                self.vfs.sync_directory(path)
            if len(path) <= len(there):
                return

    def _read_identity(self, mode: str) -> str:
        found = self.read_state(STORE_FILE, parse_identity)
        self._topics_noted = bool(self.read_state(STORE_FILE, has_topics))
        if found is None:
            found = str(uuid.uuid4())
            if mode == "w":
                self._write_identity({"uuid": found})
        return found

    @property
    def has_topics(self) -> bool:
        """True if `store.json` records that settings of topics were saved."""
        return self._topics_noted

    def note_topics(self) -> None:
        """Record in `store.json`, once, that settings of topics were saved.

        A failure costs that a missing `topics.json` is not noticed.
        """
        if not self._topics_noted and self.mode == "w":
            with contextlib.suppress(OSError):
                self._write_identity({"uuid": self.uuid, "topics": True})
                self._topics_noted = True

    def _write_identity(self, content: dict[str, Any]) -> None:
        self.vfs.replace_file(join(self._own, STORE_FILE), state_bytes(content))

    def next_id(self) -> int:
        """Return a number that nothing in this store has had: ms since the epoch, or one more."""
        self._last_id = max(self._last_id + 1, self.clock.now_ms())
        return self._last_id

    def read_state(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Return a state file's content by `parse`; None if it is missing, NotAStore if bad."""
        return self._valid(name, lambda: parse(self.vfs.read_file(self.path_of(name))))

    def read_topics(self) -> SavedTopics | None:
        """Return topics' settings as saved; None if there are none, NotAStore if they are bad."""
        read = self.vfs.read_file
        return self._valid(TOPICS_FILE, lambda: read_topics(lambda name: read(self.path_of(name))))

    def _valid(self, name: str, parsed: Callable[[], T]) -> T | None:
        try:
            return parsed()
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise NotAStore(self.root, "not a directory") from error
        except BadState as error:
            raise NotAStore(self.root, f"{error.name or name}: {error}") from error

    def path_of(self, name: str) -> str:
        """Return the path of a state file."""
        return join(self._own, name)

    def write_state(self, name: str, content: dict[str, Any]) -> None:
        """Replace a state file, durable when this returns; OSError leaves the old one."""
        # No indent: with one, json encodes in Python, twenty times as slowly.
        data = json.dumps({"version": STATE_VERSION, **content}, sort_keys=True).encode()
        self.vfs.replace_file(join(self._own, name), data)
