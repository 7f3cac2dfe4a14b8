"""A file system in memory: `OsVfs`'s behaviour and errors without a disk, and a journal on demand.

    vfs = MemoryVfs(clock=ManualClock())
    journal = vfs.record()
    with tubestore.open("/store", vfs=vfs) as store: ...

Where it differs from the system's, on purpose:
- a lock excludes within the process too, as if each holder were a process of its own
  (the system's `lockf` lets one process take it again and again);
- bytes of zeros count as a hole for `next_data`, by blocks of 4,096;
- a view no longer shows later writes when the file has grown fourfold or was cut.

Guards: `_lock` orders everything that changes. Reads take no lock: a file's bytes beyond
its size are zeros, and its buffer is replaced, never shortened.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from posixpath import basename, dirname, normpath
from typing import Any

from tubestore.clock import Clock, SystemClock
from tubestore.testing.calls import Call
from tubestore.testing.disk import Disk
from tubestore.testing.journal import Journal
from tubestore.testing.memory_file import BLOCK, Inode, MemoryFile, os_error

_boots = itertools.count(1)


class MemoryLock:
    """A lock on a file's number; made by `MemoryVfs.lock`."""

    def __init__(self, vfs: MemoryVfs, path: str, keys: set[tuple[int | str, str]]) -> None:
        self._vfs, self._path, self._held, self._keys = vfs, path, vfs._held, keys
        self._held |= keys

    def is_current(self) -> bool:
        """True while no other process can take it: see `OsLock`."""
        inode, directories = self._vfs._files.get(self._path), self._vfs._directories
        locked = {key for key, kind in self._keys if kind == "flock"}
        if locked:
            return all(key in directories for key in locked if isinstance(key, str))
        return inode is not None and any(inode.number == key[0] for key in self._keys)

    def release(self) -> None:
        """Give it back; harmless when repeated."""
        self._held -= self._keys
        self._held = set()

    def __del__(self) -> None:
        self.release()  # an interrupt came before its owner had it


class MemoryFileSystem:
    """All that a `MemoryVfs` holds; made by `MemoryVfs.file_system`."""

    def __init__(self, vfs: MemoryVfs) -> None:
        self._vfs = vfs

    def sync(self) -> None:
        """Note that everything was synced."""
        self._vfs.sync_all()

    def network_kind(self) -> str:
        """Return "": it is local."""
        return ""

    def close(self) -> None:
        """Do nothing: it holds nothing."""


class MemoryWatch:
    """Waits for changes in directories of a `MemoryVfs`; made by `MemoryVfs.watch`."""

    def __init__(self, watches: list[MemoryWatch]) -> None:
        self._watches = watches
        self._condition = threading.Condition()
        self._directories: set[str] = set()
        self._changed: set[str] = set()
        self._interrupted = False
        watches.append(self)

    def add(self, directory: str) -> bool:
        """Watch a directory as well."""
        with self._condition:
            self._directories.add(_key(directory))
        return True

    def note(self, path: str) -> None:
        """Note a change of a file or directory."""
        with self._condition:
            if dirname(path) in self._directories:
                self._changed.add(dirname(path))
                self._condition.notify_all()

    def wait(self, timeout: float) -> set[str]:
        """Wait for changes or `interrupt`; returns the directories in which something changed."""
        with self._condition:
            self._condition.wait_for(lambda: self._changed or self._interrupted, timeout)
            changed, self._changed, self._interrupted = self._changed, set(), False
            return changed

    def interrupt(self) -> None:
        """Let a waiting thread return."""
        with self._condition:
            self._interrupted = True
            self._condition.notify_all()

    def close(self) -> None:
        """End it; harmless when repeated."""
        if self in self._watches:
            self._watches.remove(self)


class MemoryVfs:
    """Files in memory, with the errors of the system's file system."""

    def __init__(self, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.journal: Journal | None = None
        self._lock = threading.RLock()
        self._files: dict[str, Inode] = {}
        self._directories: dict[str, set[str]] = {"/": set()}
        self._held: set[tuple[int | str, str]] = set()
        self._boot_id = f"boot-{next(_boots)}"
        self._watches: list[MemoryWatch] = []
        self._disk = disk
        self._last_number = 0
        #: True if the store may write through maps.
        self.maps = True
        #: How many blocks the disk has; None: as many as are asked for.
        self._blocks_max: int | None = None
        if disk is not None:
            self._load(disk)

    def _load(self, disk: Disk) -> None:
        self._boot_id = disk.boot_id
        for path, number in sorted(disk.names.items()):
            self._directories[dirname(path)].add(basename(path))
            if number == 0:
                self._directories[path] = set()
            else:
                file = disk.files[number]
                cached = file.cached
                self._files[path] = Inode(number, cached.data, cached.size, file.modified_ms)
        self._last_number = disk.last_number

    # -- what a test asks ---------------------------------------------------------------------

    def record(self) -> Journal:
        """Begin a journal of everything that changes from now on, and return it.

        What is there counts as durable, unless it came from a crash state or from an earlier
        journal of this file system, which know better.
        """
        from tubestore.testing.disk import Disk

        with self._lock:
            if self.journal is not None:
                start = self.journal.end()
            elif self._disk is not None:
                start = self._disk
            else:
                files = {
                    p: (i.number, i.read(i.size, 0), i.modified_ms) for p, i in self._files.items()
                }
                start = Disk.durable(files, self._directories, self._boot_id, self._last_number)
            self.journal = Journal(start)
            return self.journal

    def mark(self, payload: Any) -> None:
        """Note in the journal what is known now."""
        if self.journal is not None:
            with self._lock:
                self.journal.mark(payload)

    def limit(self, size: int | None) -> None:
        """Have a disk of `size` bytes from now on: ENOSPC when it is full; None: without a limit.

        A write that does not fit leaves as much as fits, by blocks of 4,096 bytes. What was made
        longer without a write (a hole) takes no room. A removed file frees its own.
        """
        with self._lock:
            self._blocks_max = None if size is None else size // BLOCK
            for inode in self._inodes():
                if size is None:
                    inode.blocks = None
                elif inode.blocks is None:
                    inode.blocks = set(range(-(-inode.size // BLOCK)))

    def fill(self) -> None:
        """Have a disk without a free block: what is there takes all of it."""
        self.limit(0)
        self.limit(self.used_bytes())

    def used_bytes(self) -> int:
        """Return the room that files take on a disk of limited size."""
        with self._lock:
            return BLOCK * sum(len(inode.blocks or ()) for inode in self._inodes())

    def _inodes(self) -> set[Inode]:
        return set(self._files.values())

    def release_locks(self) -> None:
        """Drop every lock, as the death of its holder does."""
        self._held = set()  # the holder has the old one, and may still give it back

    def reboot(self) -> str:
        """Become another boot of the machine: nothing is lost here but the locks and the id."""
        self.release_locks()
        self._boot_id = f"boot-{next(_boots)}"
        return self._boot_id

    def tree(self) -> dict[str, bytes]:
        """Return every file with its bytes, by path."""
        with self._lock:
            return {path: i.read(i.size, 0) for path, i in sorted(self._files.items())}

    # -- what the store asks ------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> MemoryFile:
        """Open a file; with `create` it must not exist yet."""
        inode = self._files.get(path)
        if inode is not None and not create:
            return MemoryFile(self, path, inode, writable)
        if not create:
            return MemoryFile(self, path, self.inode_at(path), writable)
        with self._lock:
            key = _key(path)
            if key in self._files or key in self._directories:
                raise os_error(errno.EEXIST, path)
            return MemoryFile(self, path, self._create(key), writable)

    def entries(self, directory: str) -> list[tuple[str, bool, int]]:
        """List (name, is a directory, size), sorted by name; empty if it is missing."""
        key = _key(directory)
        with self._lock:
            names = self._directories.get(key)
            if names is None:
                if key in self._files:
                    raise os_error(errno.ENOTDIR, directory)
                return []
            return [self._row(f"{key.rstrip('/')}/{name}", name) for name in sorted(names)]

    def _row(self, path: str, name: str) -> tuple[str, bool, int]:
        inode = self._files.get(path)
        return (name, True, 0) if inode is None else (name, False, inode.size)

    def settled_names(self, directory: str) -> tuple[tuple[str, int], ...] | None:
        """Return the names, and the number of what has each."""
        key = _key(directory)
        with self._lock:
            names = self._directories.get(key)
            if names is None:
                return None
            inodes = (
                (name, self._files.get(f"{key.rstrip('/')}/{name}")) for name in sorted(names)
            )
            return tuple((name, 0 if inode is None else inode.number) for name, inode in inodes)

    def size_of(self, path: str) -> int | None:
        """Bytes in a file now; None if it is missing."""
        inode = self._files.get(path) or self._files.get(_key(path))
        return None if inode is None else inode.size

    def exists(self, path: str) -> bool:
        """True if a file or directory is there."""
        if path in self._files:
            return True
        key = _key(path)
        return key in self._files or key in self._directories

    def make_directories(self, path: str) -> None:
        """Create a directory and its parents."""
        key = _key(path)
        missing: list[str] = []
        with self._lock:
            while key not in self._directories:
                if key in self._files:
                    raise os_error(errno.ENOTDIR if missing else errno.EEXIST, path)
                missing.append(key)
                key = dirname(key)
            for directory in reversed(missing):
                self._directories[directory] = set()
                self._directories[dirname(directory)].add(basename(directory))
                self._note(Call("make", directory))

    def rename(self, source: str, target: str) -> None:
        """Move a file over another, or a directory to a new name, atomically."""
        here, there = _key(source), _key(target)
        with self._lock:
            if here in self._directories:
                self._rename_directory(here, there)
            else:
                inode = self.inode_at(source)
                self._need_directory(there)
                if there in self._directories:
                    raise os_error(errno.EISDIR, target)
                self._drop(here)
                self._files[there] = inode
            self._directories[dirname(there)].add(basename(there))
            self._note(Call("rename", here, target=there))

    def _rename_directory(self, here: str, there: str) -> None:
        self._need_directory(there)
        if there in self._files:
            raise os_error(errno.ENOTDIR, there)
        if self._directories.get(there):
            raise os_error(errno.ENOTEMPTY, there)
        self._directories[dirname(here)].discard(basename(here))
        self._files = {_moved(p, here, there): i for p, i in self._files.items()}
        self._directories = {_moved(p, here, there): n for p, n in self._directories.items()}

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, atomically."""
        here, there = _key(source), _key(target)
        with self._lock:
            inode = self.inode_at(source)
            self._need_directory(there)
            if there in self._files or there in self._directories:
                raise os_error(errno.EEXIST, target)
            self._files[there] = inode
            self._directories[dirname(there)].add(basename(there))
            self._note(Call("link", here, inode.number, target=there))

    def remove(self, path: str) -> None:
        """Unlink a file; open handles keep it."""
        key = _key(path)
        with self._lock:
            self.inode_at(path)
            self._drop(key)
            self._note(Call("remove", key))

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        key = _key(path)
        with self._lock:
            if key not in self._directories:
                raise os_error(errno.ENOTDIR if key in self._files else errno.ENOENT, path)
            if self._directories[key]:
                raise os_error(errno.ENOTEMPTY, path)
            del self._directories[key]
            self._directories[dirname(key)].discard(basename(key))
            self._note(Call("remove", key))

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""
        key = _key(path)
        if key not in self._directories:
            raise os_error(errno.ENOTDIR if key in self._files else errno.ENOENT, path)
        with self._lock:
            self._note(Call("sync_directory", key))

    def modified_ms(self, path: str) -> int:
        """Last modification, ms since the epoch; 0 for a directory."""
        if _key(path) in self._directories:
            return 0
        return self.inode_at(path).modified_ms

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        """Give a file another time; a crash state of a recording has that of its last write."""
        self.inode_at(path).modified_ms = time_ms

    def read_file(self, path: str) -> bytes:
        """Read a whole small file."""
        inode = self.inode_at(path)
        return inode.read(inode.size, 0)

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write a small file whole or not at all: each step can be the last one of a crash."""
        temporary = f"{path}.tmp"
        if self.exists(temporary):  # as `OsVfs`: a power cut brings no old content back
            self.remove(temporary)
        file = self.open(temporary, create=True)
        file.pwrite(data, 0)
        if sync:
            file.sync()
        self.rename(temporary, path)
        if sync:
            self.sync_directory(dirname(path))

    def lock(self, path: str, *, kind: str, note: str = "", root: str = "") -> MemoryLock:
        """Lock a file, created if missing; BlockingIOError if it is locked.

        The directory is locked with it, and `root`. Nothing is noted: every holder is this process.
        """
        with self._lock:
            key = _key(path)
            inode = self._files.get(key) or self._create(key)
            directories = {dirname(key), _key(root)} if root else {dirname(key)}
            keys: set[tuple[int | str, str]] = {(inode.number, kind)}
            keys |= {(directory, kind) for directory in directories}
            if self._held & keys:
                raise os_error(errno.EAGAIN, path)
            return MemoryLock(self, key, keys)

    def lock_holder(self, note: str) -> str:
        """Return "this process" while a lock is held on the note's directory or the one above."""
        directory = dirname(_key(note))
        held = {key for key, _ in self._held}
        return "this process" if held & {directory, dirname(directory)} else ""

    def lock_owners(self, path: str) -> list[int]:
        """Return this process if a lock is held on a file."""
        inode = self._files.get(_key(path))
        held = {key for key, _ in self._held}
        return [os.getpid()] if inode is not None and inode.number in held else []

    def file_system(self, directory: str) -> MemoryFileSystem:
        """Return the file system that holds a directory."""
        if _key(directory) not in self._directories:
            raise os_error(errno.ENOENT, directory)
        return MemoryFileSystem(self)

    def sync_all(self) -> None:
        """Note that every file and every name was synced."""
        with self._lock:
            self._note(Call("sync_file_system", "/"))

    def watch(self) -> MemoryWatch:
        """Begin to watch directories."""
        return MemoryWatch(self._watches)

    def can_map(self, directory: str) -> bool:
        """True if files in a directory can be written to through maps; `maps` sets it."""
        return self.maps

    def boot_id(self) -> str:
        """Identify this boot of the machine."""
        return self._boot_id

    # -- changes ------------------------------------------------------------------------------

    def _note(self, call: Call) -> None:
        if self.journal is not None:
            self.journal.calls.append(call._replace(ms=self.clock.now_ms()))
        self._disk = None  # it no longer describes this tree
        for watch in list(self._watches):
            watch.note(call.target or call.path)

    def inode_at(self, path: str) -> Inode:
        """Return the file at a path, or raise what the system would."""
        key = _key(path)
        inode = self._files.get(key)
        if inode is None:
            if key in self._directories:
                raise os_error(errno.EISDIR, path)
            self._need_directory(key)
            raise os_error(errno.ENOENT, path)
        return inode

    def _need_directory(self, key: str) -> None:
        parent = dirname(key)
        if parent not in self._directories:
            while parent not in self._files and parent != "/":
                parent = dirname(parent)
            raise os_error(errno.ENOENT if parent == "/" else errno.ENOTDIR, key)

    def _create(self, key: str) -> Inode:
        self._need_directory(key)
        self._last_number += 1
        inode = Inode(self._last_number, b"", 0, self.clock.now_ms())
        if self._blocks_max is not None:
            inode.blocks = set()
        self._files[key] = inode
        self._directories[dirname(key)].add(basename(key))
        self._note(Call("create", key, inode.number))
        return inode

    def _drop(self, key: str) -> None:
        del self._files[key]
        self._directories[dirname(key)].discard(basename(key))

    # -- for MemoryFile -----------------------------------------------------------------------

    def write(self, inode: Inode, path: str, data: memoryview, position: int) -> None:
        """Write to a file; on a full disk the first part that fits, and ENOSPC."""
        with self._lock:
            size = self._take_room(inode, position, len(data))
            if size:
                inode.write(data[:size], position)
                inode.modified_ms = self.clock.now_ms()
                kept = bytes(data[:size]) if self.journal is not None else b""
                self._note(Call("pwrite", path, inode.number, position, kept))
        if size < len(data):
            raise os_error(errno.ENOSPC, path)

    def _take_room(self, inode: Inode, position: int, size: int) -> int:
        """Take blocks for a write; returns how many of its bytes have room."""
        if self._blocks_max is None or inode.blocks is None:
            return size
        new = inode.new_blocks(position, size)
        room = max(0, self._blocks_max - self.used_bytes() // BLOCK)
        inode.blocks.update(new[:room])
        return size if len(new) <= room else max(0, new[room] * BLOCK - position)

    def allocate(self, inode: Inode, path: str, size: int) -> None:
        """Take room for the first `size` bytes, or none of it."""
        with self._lock:
            if self._blocks_max is None or inode.blocks is None:
                return
            new = inode.new_blocks(0, size)
            if len(new) > self._blocks_max - self.used_bytes() // BLOCK:
                raise os_error(errno.ENOSPC, path)
            inode.blocks.update(new)

    def cut(self, inode: Inode, path: str, size: int) -> None:
        """Cut or grow a file."""
        with self._lock:
            inode.cut(size)
            inode.modified_ms = self.clock.now_ms()
            self._note(Call("truncate", path, inode.number, size))

    def sync(self, inode: Inode, path: str) -> None:
        """Note that a file was synced."""
        with self._lock:
            self._note(Call("sync", path, inode.number))

    def reserve(self, inode: Inode, size: int) -> None:
        """Have bytes in memory up to `size`, also where the file is a hole."""
        with self._lock:
            inode.reserve(size)


def _moved(path: str, here: str, there: str) -> str:
    return there + path[len(here) :] if path == here or path.startswith(here + "/") else path


def _key(path: str) -> str:
    return "/" + normpath(path).lstrip("/") if path not in ("", ".") else "/"
