"""The directory of a store: its lock, its identity, and the small files that are its state.

    <root>/.tubestore/store.json     uuid and format version of the store
    <root>/.tubestore/topics.json    settings of every topic (`topic_settings.py`)
    <root>/.tubestore/lock           held by the one writer (flock)

State files are replaced atomically and durably; one that makes no sense, or is of another
version, refuses the store.

Next to read: `topic_settings.py`, then `manager.py`.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from os.path import dirname
from typing import Any, Literal

from tubestore.clock import Clock, SystemClock
from tubestore.errors import NotAStore, StoreLocked
from tubestore.filenames import COMMIT_LOG_DIRECTORY, LOCK_FILE, OWN_DIRECTORY, STORE_FILE, join
from tubestore.vfs import Vfs, VfsLock

FORMAT_VERSION = 1


class StoreDirectory:
    """A store's directory, locked while it is open for writing (made if it is missing)."""

    def __init__(
        self, vfs: Vfs, root: str, mode: Literal["w", "r"], clock: Clock | None = None
    ) -> None:
        self.vfs, self.root = vfs, root
        self.clock: Clock = clock or SystemClock()
        self._last_id = 0
        self._own = join(root, OWN_DIRECTORY)
        self._lock: VfsLock | None = None
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

    def _prepare(self) -> None:
        there = self.root
        while not self.vfs.exists(there):
            there = dirname(there)
        try:
            self.vfs.make_directories(self._own)
        except (FileExistsError, NotADirectoryError) as error:
            raise NotAStore(self.root, "not a directory") from error
        try:
            self._lock = self.vfs.lock(join(self._own, LOCK_FILE), kind="flock")
        except BlockingIOError as error:
            raise StoreLocked(self.root) from error
        if not self.vfs.exists(join(self._own, STORE_FILE)):
            try:
                self._sync_ancestors(there)
            except BaseException:
                self.release()
                raise

    def _sync_ancestors(self, there: str) -> None:
        """Make the way to a new store durable, before the file that says that it is one.

        The directory above is synced also if the root was there: a process that was killed
        may have made it.
        """
        self.vfs.sync_directory(self.root)
        path = self.root
        while True:
            path = dirname(path)
            with contextlib.suppress(PermissionError):  # not ours: somebody else made it
                self.vfs.sync_directory(path)
            if len(path) <= len(there):
                return

    def _read_identity(self, mode: str) -> str:
        found = self.read_state(STORE_FILE)
        if found is None:
            found = {"version": FORMAT_VERSION, "features": [], "uuid": str(uuid.uuid4())}
            if mode == "w":
                self.vfs.replace_file(join(self._own, STORE_FILE), json.dumps(found).encode())
        if found.get("features") or not isinstance(found.get("uuid"), str):
            raise NotAStore(self.root, f"written by another version: {found}")
        return str(found["uuid"])

    def next_id(self) -> int:
        """Return a number that nothing in this store has had: ms since the epoch, or one more."""
        self._last_id = max(self._last_id + 1, self.clock.now_ms())
        return self._last_id

    def read_state(self, name: str) -> dict[str, Any] | None:
        """Return what a file of ours says; None if it is missing, NotAStore for nonsense."""
        try:
            found = json.loads(self.vfs.read_file(join(self._own, name)))
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise NotAStore(self.root, "not a directory") from error
        except ValueError as error:
            raise NotAStore(self.root, f"{name} cannot be read: {error}") from error
        if not isinstance(found, dict) or found.get("version") != FORMAT_VERSION:
            raise NotAStore(self.root, f"{name} was written by another version: {found}")
        return found

    def write_state(self, name: str, content: dict[str, Any]) -> None:
        """Replace a file of ours, durable when this returns; OSError leaves the old one."""
        # No indent: with one, json encodes in Python, twenty times as slowly.
        data = json.dumps({"version": FORMAT_VERSION, **content}, sort_keys=True).encode()
        self.vfs.replace_file(join(self._own, name), data)
