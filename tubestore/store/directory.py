"""The directory of a store: its lock, its identity, and the small files that are its state.

    <root>/.tubestore/store.json     uuid and format version of the store
    <root>/.tubestore/topics.json    settings of every topic
    <root>/.tubestore/topics-N.log   what was changed since, in a store of many topics
    <root>/.tubestore/lock           held by the one writer (flock)
    <root>/.tubestore/closed         there if the last writer closed the store, all of it synced

State files are replaced atomically and durably; a store with an invalid file, or one of another
version, is refused.

`topics.json` has the settings of all topics, so that to write it costs as much as there are
topics. A store of many topics therefore appends each change to a log, which `topics.json` names,
and writes `topics.json` anew when the log has grown as long. A clean close leaves no log.

| crash | what the next opening finds |
| --- | --- |
| after the new log was made | the old `topics.json` and its log; the new one is removed later |
| after `topics.json` was replaced | the new one with an empty log; the old log is removed later |
| within an append | a torn last line, which was not acknowledged |

Not thread-safe: of topics' settings the caller holds the topics' lock.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from os.path import dirname
from typing import Any, Literal, TypeVar

from tubestore.clock import Clock, SystemClock
from tubestore.core.group_commit import GroupCommit
from tubestore.core.paths import OWN_DIRECTORY, join
from tubestore.core.vfs import Vfs, VfsFile, VfsFileSystem, VfsLock, take_lock
from tubestore.errors import NotAStore, StoreFailed
from tubestore.options import TopicOptions
from tubestore.record.names import (
    CLOSED_FILE,
    COMMIT_LOG_DIRECTORY,
    LOCK_FILE,
    STORE_FILE,
    TOPICS_FILE,
)
from tubestore.record.state_files import (
    STATE_VERSION,
    TOPICS_LOG_FEATURE,
    BadState,
    SavedTopics,
    change_line,
    has_topics,
    is_topics_log,
    parse_identity,
    read_topics,
    state_bytes,
    topics_log,
)

T = TypeVar("T")
#: A store of fewer topics has no log: to write them all costs as little as an append.
LOG_FROM_TOPICS = 64


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


class TopicSettings:
    """Writes the settings of a store's topics; every change is durable when its call returns."""

    def __init__(self, directory: StoreDirectory, log: int) -> None:
        self._directory = directory
        #: The number of the log that `topics.json` names, 0 for none.
        self._log = log
        #: The log while changes can be appended; a log of an earlier process takes none.
        self._file: VfsFile | None = None
        self._end = 0
        #: Topics' settings that the log takes before `topics.json` is written anew.
        self._room = 0

    def put(
        self,
        changed: Mapping[str, TopicOptions],
        all_of: Callable[[], dict[str, TopicOptions]],
        deleted: Iterable[str],
    ) -> None:
        """Save settings of some topics, new or not; OSError if they are not saved.

        `all_of` returns those of all topics until now; `deleted` are as those of `write`.
        """
        if self._file is not None and len(changed) <= self._room:
            self._append(self._file, change_line(changed))
            self._room -= len(changed)
        else:
            self.write({**all_of(), **changed}, deleted)

    def write(self, settings: Mapping[str, TopicOptions], deleted: Iterable[str] = ()) -> None:
        """Replace the settings of all topics; OSError leaves the old ones.

        `deleted` are topics with shards that are still to be moved away. With them in the file,
        their remains after a crash are not taken for a topic of TubeMQ's.
        """
        self._write(settings, deleted, log=len(settings) >= LOG_FROM_TOPICS)

    def close(
        self, all_of: Callable[[], Mapping[str, TopicOptions]], deleted: Iterable[str]
    ) -> None:
        """Leave `topics.json` alone, without a log; where that fails the log stays, and counts."""
        if self._log:
            with contextlib.suppress(OSError):
                self._write(all_of(), deleted, log=False)
        self.release()

    def release(self) -> None:
        """Close the log as it is; harmless when repeated."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, file: VfsFile, line: bytes) -> None:
        try:
            file.pwrite(line, self._end)
            file.sync()
        except BaseException:
            # The line may be there: without the file, the next change writes all settings anew.
            with contextlib.suppress(OSError):
                file.truncate(self._end)
            self.release()
            raise
        self._end += len(line)

    def _write(
        self, settings: Mapping[str, TopicOptions], deleted: Iterable[str], *, log: bool
    ) -> None:
        directory = self._directory
        content: dict[str, Any] = {"topics": {n: t.as_json() for n, t in settings.items()}}
        if names := sorted(deleted):
            content["deleted"] = names
        number, file = 0, None
        if log:
            number = directory.next_id()
            content |= {"features": [TOPICS_LOG_FEATURE], "log": number}
            file = self._make_log(number)
        try:
            directory.write_state(TOPICS_FILE, content)
        except BaseException:
            # Which log `topics.json` names is not known: the next change writes it anew.
            self.release()
            if file is not None:
                file.close()
            raise
        self.release()
        self._log, self._file, self._end, self._room = number, file, 0, len(settings)
        self._remove_other_logs()
        directory.note_topics()

    def _make_log(self, number: int) -> VfsFile:
        """Make an empty log, durably, before `topics.json` names it."""
        directory = self._directory
        file = directory.vfs.open(directory.path_of(topics_log(number)), create=True)
        try:
            file.truncate(0)
            file.sync()
            directory.vfs.sync_directory(directory.path_of(""))
        except BaseException:
            file.close()
            raise
        return file

    def _remove_other_logs(self) -> None:
        """Remove logs that `topics.json` does not name; one that stays is removed later."""
        vfs, path_of = self._directory.vfs, self._directory.path_of
        with contextlib.suppress(OSError):
            for name, _, _ in vfs.entries(path_of("")):
                if is_topics_log(name) and name != topics_log(self._log):
                    vfs.remove(path_of(name))
