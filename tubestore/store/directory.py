"""The directory of a store: its lock, its identity, and the small files that are its state.

    <root>/.tubestore/store.json     uuid and format version of the store
    <root>/.tubestore/topics.json    settings of every topic
    <root>/.tubestore/topics-N.log   what was changed since, in a store of many topics
    <root>/.tubestore/shards.log     where the streams of each shard begin and end
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

`shards.log` is evidence: it shows that a shard's directory is missing, or is an older copy. It has
no more than was synced. A line is added, without a sync, some time after a shard's checkpoint; the
last line of a shard counts. What lowers an end or raises a beginning is durable before the files
change. A file that is missing or damaged costs evidence, no message.

Guards: `_writing` lets one thread write `store.json`. Not thread-safe, but for that and
`ShardRegister`: of topics' settings the caller holds the topics' lock.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Iterable, KeysView, Mapping
from os.path import dirname
from typing import Any, Literal, TypeVar

from tubestore.clock import Clock, SystemClock
from tubestore.core.doors import logger
from tubestore.core.group_commit import GroupCommit
from tubestore.core.paths import OWN_DIRECTORY, STORE_FILE, join
from tubestore.core.state_file import STATE_VERSION, BadState, state_bytes
from tubestore.core.vfs import Vfs, VfsFile, VfsFileSystem
from tubestore.disks.writer_lock import WriterLock, take_writer_lock
from tubestore.errors import NotAStore, StoreFailed
from tubestore.options import TopicOptions
from tubestore.record.names import (
    CLOSED_FILE,
    COMMIT_LOG_DIRECTORY,
    LOCK_FILE,
    SHARDS_FILE,
    TOPICS_FILE,
)
from tubestore.record.state_files import (
    RING_FEATURE,
    TOPICS_LOG_FEATURE,
    Bounds,
    SavedTopics,
    TopicFiles,
    bounds_of,
    change_line,
    has_ring,
    has_topics,
    is_topics_log,
    parse_identity,
    parse_shards,
    shards_line,
    topics_log,
)
from tubestore.segments.listing import lost_state

log = logger(__name__)
T = TypeVar("T")
#: Bytes that `shards.log` may have beyond twice those that it needs.
_REGISTER_SLACK = 1 << 16
#: About the bytes of a shard in it.
_REGISTERED_BYTES = 64
#: A store of fewer topics has no log: to write them all costs as little as an append.
LOG_FROM_TOPICS = 64


class StoreDirectory:
    """A store's directory, locked while it is open for writing (made if it is missing)."""

    def __init__(
        self, vfs: Vfs, root: str, mode: Literal["w", "r"], clock: Clock | None = None
    ) -> None:
        self.vfs, self.root, self.mode = vfs, root, mode
        self.clock: Clock = clock or SystemClock()
        self._last_id = self._last_topic_id = 0
        self._own = join(root, OWN_DIRECTORY)
        self._topic_files = TopicFiles(lambda name: vfs.read_file(self.path_of(name)))
        #: The writer's; None for a reader.
        self.writer: WriterLock | None = None
        self._writing = threading.Lock()
        #: The file system, if an earlier process may have left writes in the page cache only.
        self._unsynced: VfsFileSystem | None = None
        self._sync_once = GroupCommit(0)
        if vfs.exists(join(root, COMMIT_LOG_DIRECTORY)):
            raise NotAStore(root, "this is a RocketMQ store: use rocketcompat")
        #: What to report of a root that lacks its state.
        self.lost_state = lost_state(vfs, root)
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
        if self.writer is not None:
            self.writer.release()
        if self._unsynced is not None:
            self._unsynced.close()

    @property
    def was_closed(self) -> bool:
        """True if the store is new, or was closed cleanly since the machine started."""
        return self._unsynced is None

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
        return self.writer is None or self.writer.is_current()

    def check_writer(self) -> None:
        """Raise Overtaken if another process has opened the root for writing since; a call.

        What it has done since is not to be undone. Between this and the caller's change a process
        may still be stopped for long.
        """
        if self.writer is not None:
            self.writer.check(take=False)

    def _prepare(self) -> None:
        there = self.root
        while not self.vfs.exists(there):
            there = dirname(there)
        try:
            self.vfs.make_directories(self._own)
        except (FileExistsError, NotADirectoryError) as error:
            raise NotAStore(self.root, "not a directory") from error
        path = join(self._own, LOCK_FILE)
        self.writer = take_writer_lock(
            self.vfs, path, kind="flock", root=self.root, own=self._own, note=path
        )
        try:
            if not self.vfs.exists(join(self._own, STORE_FILE)):
                self._sync_ancestors(there)
            elif self.vfs.exists(join(self._own, CLOSED_FILE)):
                self.vfs.remove(join(self._own, CLOSED_FILE))
            else:
                self._sync_state()
                self._unsynced = self.vfs.file_system(self.root)
        except BaseException:
            self.release()
            raise

    def _sync_state(self) -> None:
        """Sync the state files of a process that was killed, before anything relies on them.

        It may have renamed a file, or appended a topic, and synced neither: what this opening reads
        of it, and promises with it, a power cut must not take back.
        """
        for name, _, _ in self.vfs.entries(self._own):
            if is_topics_log(name):
                with contextlib.closing(self.vfs.open(self.path_of(name), writable=False)) as file:
                    file.sync()
        self.vfs.sync_directory(self._own)

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
        self._ring_noted = bool(self.read_state(STORE_FILE, has_ring))
        if found is None:
            found = str(uuid.uuid4())
            if mode == "w":
                self._write_identity(found, topics=False, ring=False)
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
            with self._writing, contextlib.suppress(OSError):
                self._write_identity(self.uuid, topics=True, ring=self._ring_noted)
                self._topics_noted = True

    def note_ring(self) -> None:
        """Record in `store.json`, durably, that there is a ring journal: older versions refuse."""
        with self._writing:
            if not self._ring_noted:
                self._write_identity(self.uuid, topics=self._topics_noted, ring=True)
                self._ring_noted = True

    def forget_ring(self) -> None:
        """Record in `store.json` that there is no ring journal any more."""
        with self._writing:
            if self._ring_noted:
                self._write_identity(self.uuid, topics=self._topics_noted, ring=False)
                self._ring_noted = False

    def _write_identity(self, identity: str, *, topics: bool, ring: bool) -> None:
        content: dict[str, Any] = {"uuid": identity}
        if topics:
            content["topics"] = True
        if ring:
            content["features"] = [RING_FEATURE]
        self.vfs.replace_file(join(self._own, STORE_FILE), state_bytes(content))

    def next_id(self) -> int:
        """Return a number that nothing in this store has had: ms since the epoch, or one more."""
        self._last_id = max(self._last_id + 1, self.clock.now_ms())
        return self._last_id

    def next_topic_id(self) -> int:
        """Return a number above the ids of all topics, also if the clock has gone back."""
        self._last_topic_id = max(self._last_topic_id + 1, self.next_id())
        return self._last_topic_id

    def read_state(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Return a state file's content by `parse`; None if it is missing, NotAStore if bad."""
        return self._valid(name, lambda: parse(self.vfs.read_file(self.path_of(name))))

    def read_topics(self) -> SavedTopics | None:
        """Return topics' settings as saved; None if there are none, NotAStore if they are bad.

        The same object while there is no change: the caller changes nothing in it.
        """
        saved = self._valid(TOPICS_FILE, self._topic_files.read)
        if saved is not None:
            ids = (options.id for options in saved.settings.values())
            self._last_topic_id = max(self._last_topic_id, *ids, 0)
        return saved

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
            number = self._new_log_number()
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

    def _new_log_number(self) -> int:
        """Return a number of no log that is there: the clock may have gone back."""
        directory = self._directory
        while directory.vfs.exists(directory.path_of(topics_log(number := directory.next_id()))):
            pass
        return number

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


class ShardRegister:
    """What `shards.log` records of each shard; one object for a store, from any thread."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        #: Bounds that are not in the file yet; None for a shard that was forgotten.
        self._changed: dict[str, Bounds | None] = {}
        #: Bytes in the file, and in it when it was written anew; -1: that is due.
        self._size = self._whole_size = 0
        self._known: dict[str, Any] = {}
        self.read_again()

    def read_again(self) -> None:
        """Read the file; what cannot be read does not count."""
        with self._lock:
            data = b""
            with contextlib.suppress(OSError):
                data = self._directory.vfs.read_file(self._path)
            self._known, bad = parse_shards(data)
            # A line behind a torn one would not count, and the first name has to be made durable.
            self._size = -1 if bad is not None or not data else len(data)
            self._whole_size = _REGISTER_SLACK + _REGISTERED_BYTES * len(self._known)

    @property
    def _path(self) -> str:
        return self._directory.path_of(SHARDS_FILE)

    def names(self) -> KeysView[str]:
        """Return the names of the directories of which something is recorded."""
        return self._known.keys()

    def shard(self, key: str) -> RegisteredShard:
        """Return the record of the shard with a directory's name."""
        return RegisteredShard(self, key)

    def bounds(self, key: str) -> Bounds | None:
        """Return what is recorded of a shard; None if nothing is."""
        return bounds_of(self._known.get(key))

    def note(self, key: str, bounds: Bounds, *, durable: bool) -> None:
        """Record the bounds of a shard; see `OutsideRecord`."""
        with self._lock:
            if self._known.get(key) == bounds:
                return
            self._known[key] = self._changed[key] = bounds
        if durable:
            self.write(durable=True)

    def forget(self, keys: Iterable[str]) -> None:
        """Record nothing of these shards any more, durably."""
        for key in list(keys):
            with self._lock:
                self._known.pop(key, None)
                self._changed[key] = None
        self.write(durable=True)

    def write(self, *, durable: bool = False) -> None:
        """Write what has changed. Where that fails, the next call writes the file anew.

        With `durable` an older file does not count after that: where there is no room for a new
        one, it is removed. OSError if that fails, too.
        """
        with self._lock:
            if not self._changed or self._directory.mode == "r":
                return
            try:
                self._write(durable=durable)
            except OSError as error:
                if self._size >= 0:  # not for each call that fails
                    log.warning("%s: %s", self._path, error)
                self._size = -1
                if durable:
                    self._remove()
            else:
                self._changed.clear()

    def _write(self, *, durable: bool) -> None:
        vfs, line = self._directory.vfs, shards_line(self._changed)
        if self._size < 0 or self._size + len(line) > 2 * self._whole_size:
            whole = shards_line(self._known)
            vfs.replace_file(self._path, whole)
            self._size, self._whole_size = len(whole), _REGISTER_SLACK + len(whole)
            return
        with contextlib.closing(vfs.open(self._path)) as file:
            file.pwrite(line, self._size)
            if durable:
                file.sync()
        self._size += len(line)

    def _remove(self) -> None:
        vfs = self._directory.vfs
        if vfs.exists(self._path):
            vfs.remove(self._path)
            vfs.sync_directory(self._directory.path_of(""))


class RegisteredShard:
    """The record of one shard in the register."""

    __slots__ = ("_key", "_register")

    def __init__(self, register: ShardRegister, key: str) -> None:
        self._register, self._key = register, key

    def bounds(self) -> Bounds | None:
        """Return the shard's bounds; None if nothing is recorded of it."""
        return self._register.bounds(self._key)

    def note(self, bounds: Bounds, *, durable: bool = False) -> None:
        """Record bounds that were synced; written soon, with `durable` when this returns."""
        self._register.note(self._key, bounds, durable=durable)

    def read_again(self) -> None:
        """Read what another process has recorded since; for a reader."""
        self._register.read_again()
