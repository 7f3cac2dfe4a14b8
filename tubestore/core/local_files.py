"""The file system of the machine, with one bounded pool of descriptors (D8).

Guards: `OsVfs._lock` guards the pool. A positional read or write takes no lock: the
descriptor object is held by a local reference while it is used and closes itself
when the last reference goes.

`DirectoryWatch` notices that another process has written, without asking again and again: on Linux
the kernel reports it (inotify). Elsewhere, or where the user's watches are used up, there is no
watch, and the caller looks again after a while.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import mmap
import os
import platform
import re
import resource
import select
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from tubestore.core.layout import Buffer
from tubestore.core.locks import OsLock, identity_of, lock_holder, lock_owners

#: Where nothing else is asked for: a process with ten thousand shards, each used once, stays below
#: 1,024 with all else that it has open.
DESCRIPTORS_MAX = 512
#: What that grows to where files are used in turn, and no more than half of the process's limit.
_DESCRIPTORS_MOST = 16_384
LOOKS_MAX = 8
#: Larger writes are made in pieces of this size, aligned to it. Linux takes memory for its cache in
#: blocks as large as what is written, and the largest that are free are those that a virtual
#: machine has given back to its host, to be fetched again page by page: where files come and go, a
#: GiB took 0.25 to 0.5 s in such pieces and 0.25 to 2.3 s in writes of 1 to 4 MiB.
_WRITE_BYTES = 256 << 10
#: A small file is read in pieces of this size.
_READ_BYTES = 64 << 10
#: File systems where a map of an allocated file never meets a full disk or moves its blocks.
_MAPPED_TYPES = ("ext4", "xfs", "tmpfs")
#: File systems where each change of names dates the directory, by this machine's clock and at once.
_DATED_TYPES = (*_MAPPED_TYPES, "btrfs", "ext3", "f2fs", "overlay")
#: Longer than a tick of any of their clocks.
_SETTLED_NS = 1_000_000_000
_DARWIN = platform.system() == "Darwin"
_DESCRIPTOR_PATH = "/dev/fd/{}" if _DARWIN else "/proc/self/fd/{}"


class _Descriptor:
    """An open descriptor that closes itself with its last reference."""

    __slots__ = ("__weakref__", "dirty", "fd", "used")

    def __init__(self, fd: int) -> None:
        self.fd, self.used, self.dirty = fd, True, False

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)


class OsMap:
    """A shared map of a file. Its descriptor is a duplicate, held for as long as the map lives."""

    __slots__ = ("_map",)

    def __init__(self, fd: int, size: int, *, fill: bool) -> None:
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if fill else 0)
        self._map = mmap.mmap(fd, size, flags, mmap.PROT_READ | mmap.PROT_WRITE)

    def read(self, size: int, position: int) -> bytes:
        """Read `size` bytes at `position`."""
        return self._map[position : position + size]

    def write(self, data: Buffer, position: int) -> None:
        """Write at `position`."""
        end = position + len(data)
        if end > len(self._map):  # Python would raise IndexError for a slice that is too short
            raise ValueError(f"{end - len(self._map)} bytes behind the end of the map")
        self._map[position:end] = data

    def pieces_from(self, position: int) -> Callable[[Buffer], object]:
        """Return a function that writes pieces one behind the other, the first at `position`."""
        self._map.seek(position)
        return self._map.write

    def sync(self, start: int, end: int) -> None:
        """Bring a range to stable storage; Python keeps its lock until that is done (D10)."""
        first = start - start % mmap.PAGESIZE
        self._map.flush(first, end - first)


class OsFile:
    """A file of the operating system; made by `OsVfs.open`."""

    __slots__ = (
        "__weakref__",
        "_descriptor",
        "_identity",
        "_vfs",
        "_writable",
        "closed_at",
        "path",
    )

    def __init__(self, vfs: OsVfs, path: str, fd: int, writable: bool) -> None:
        self.path, self._vfs, self._writable = path, vfs, writable
        self._descriptor: _Descriptor | None = _Descriptor(fd)
        #: Device and number, noted when the descriptor is given back.
        self._identity: tuple[int, int] | None = None
        #: How many files the pool had admitted when it closed this one; None: it did not.
        self.closed_at: int | None = None
        vfs._admit(self)

    def _hold(self) -> _Descriptor:
        held = self._descriptor
        if held is None:
            flags = os.O_RDWR if self._writable else os.O_RDONLY
            held = _Descriptor(os.open(self.path, flags | os.O_CLOEXEC))
            if self._identity not in (None, identity_of(held.fd)):
                # A process that mapped the old length would die of a shorter file (SIGBUS).
                raise FileNotFoundError(errno.ENOENT, "replaced by another file", self.path)
            self._descriptor = held
            self._vfs._admit(self)
        held.used = True
        return held

    def size(self) -> int:
        """Bytes in the file now."""
        return os.fstat(self._hold().fd).st_size

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes at `position`."""
        held = self._hold()
        data = os.pread(held.fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(held.fd, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Read into a buffer from `position`; return how many bytes."""
        held, got = self._hold(), 0
        while got < len(buffer) and (more := os.preadv(held.fd, [buffer[got:]], position + got)):
            got += more
        return got

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`, or raise OSError."""
        held = self._descriptor or self._hold()
        held.used = held.dirty = True
        size = len(data)
        written = os.pwrite(held.fd, data, position) if size <= _WRITE_BYTES else 0
        while written < size:
            at = position + written
            end = min(size, written + _WRITE_BYTES - at % _WRITE_BYTES)
            more = os.pwrite(held.fd, memoryview(data)[written:end], at)
            if more == 0:
                raise OSError(errno.EIO, "a write made no progress", self.path)
            written += more

    def truncate(self, size: int) -> None:
        """Make the file `size` bytes long."""
        held = self._hold()
        held.dirty = True
        os.ftruncate(held.fd, size)

    def sync(self) -> None:
        """Bring data and length to stable storage."""
        held = self._hold()
        held.dirty = False
        if _DARWIN:  # fdatasync leaves it in the drive's cache there
            fcntl.fcntl(held.fd, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined]
        else:
            os.fdatasync(held.fd)

    def let_go(self, size: int, position: int) -> None:
        """Begin to write out what is not on the disk yet, and forget what is."""
        if hasattr(os, "posix_fadvise"):  # not on macOS
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._hold().fd, position, size, os.POSIX_FADV_DONTNEED)

    def view(self, size: int) -> memoryview:
        """Map the first `size` bytes."""
        if size == 0:
            return memoryview(b"")
        import pyarrow as pa  # here, since it is slow to import and not every process maps

        # Not `mmap`, which keeps a duplicate of the descriptor as long as the map lives. Arrow's
        # buffers hold the map alone. Through the descriptor: the file may have lost its name.
        held = self._hold()
        with pa.memory_map(_DESCRIPTOR_PATH.format(held.fd)) as mapped:
            view = memoryview(mapped.read_buffer(size))
        if len(view) < size:
            raise ValueError(f"a view of {size} bytes is longer than {self.path}")
        return view

    def allocate(self, size: int) -> None:
        """Take room on the disk for the first `size` bytes."""
        held = self._hold()
        held.dirty = True
        allocate = _fallocate()
        if allocate is None:  # macOS
            raise OSError(errno.ENOTSUP, "the system cannot allocate files", self.path)
        while (number := allocate(held.fd, size)) == errno.EINTR:
            pass
        if number:
            raise OSError(number, os.strerror(number), self.path)

    def shared_map(self, size: int, *, fill: bool = False) -> OsMap:
        """Map the first `size` bytes, to read and to write; `fill` gets all pages at once."""
        return OsMap(self._hold().fd, size, fill=fill)

    def next_data(self, position: int) -> int | None:
        """Return the first position >= `position` that may hold data."""
        fd = self._hold().fd
        try:
            return os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            return position  # a file system without holes

    def close(self) -> None:
        """Give the descriptor back."""
        held, self._descriptor = self._descriptor, None
        if held is not None and self._identity is None:
            self._identity = identity_of(held.fd)

    def is_current(self) -> bool:
        """True if its name still leads to this file."""
        held = self._descriptor
        if self._identity is None and held is not None:
            self._identity = identity_of(held.fd)
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        return self._identity == (status.st_dev, status.st_ino)

    def moved_to(self, path: str) -> None:
        """Take note of a renaming."""
        self.path = path

    @property
    def descriptor(self) -> _Descriptor | None:
        """The descriptor while it is open; for the pool only."""
        return self._descriptor


@functools.cache
def _fallocate() -> Callable[[int, int], int] | None:
    """Return a function of descriptor and size that returns an error number; None if there is none.

    Not `posix_fallocate`: where the file system refuses, the C library writes a byte into each
    block instead, and the refusal never shows.
    """
    import ctypes  # here, since few stores need it

    if platform.system() != "Linux":
        return None
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if call is None:
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

    def allocate(fd: int, size: int) -> int:
        return 0 if call(fd, 0, 0, size) == 0 else ctypes.get_errno()

    return allocate


@functools.cache
def _syncfs() -> Callable[[int], int] | None:
    """Return the system's `syncfs`; None if there is none that reports what was not written."""
    if platform.system() != "Linux" or not _reports_errors(platform.release()):
        return None
    import ctypes  # here, since few stores need it

    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


def _reports_errors(release: str) -> bool:
    """True if `syncfs` of this Linux fails when a file could not be written (since 5.8)."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (5, 8)


#: Types of file systems that other machines have too.
_NETWORK_KINDS = {
    *("afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs"),
    *("nfs", "nfs4", "ocfs2", "smb2", "smb3", "smbfs"),
}
_NETWORK_FUSE = ("sshfs", "gluster", "ceph", "s3", "gcs", "juicefs", "rclone", "davfs")


def network_kind(mounts: str, device: str) -> str:
    """Return the type of the mount of a device, "major:minor", if it is a network's; else "".

    `mounts` is the text of `/proc/self/mountinfo`.
    """
    for line in mounts.splitlines():
        words = line.split()
        if len(words) > 2 and words[2] == device and "-" in words:
            kind = words[words.index("-") + 1]
            fuse = kind.startswith("fuse.") and any(name in kind for name in _NETWORK_FUSE)
            return kind if kind in _NETWORK_KINDS or fuse else ""
    return ""


class OsFileSystem:
    """The file system that holds a directory; made by `OsVfs.file_system`.

    The descriptor is held because `syncfs` reports what the system failed to write since it was
    opened; earlier failures only if no other process had them reported. Where there is no such call
    each file below the directory is synced instead.
    """

    def __init__(self, vfs: OsVfs, directory: str) -> None:
        self._vfs, self._directory = vfs, directory
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync(self) -> None:
        """Bring everything that any process wrote to it to stable storage."""
        syncfs = _syncfs()
        if syncfs is None:
            self._sync_below(self._directory)
        elif syncfs(self._fd) != 0:
            import ctypes

            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), self._directory)

    def network_kind(self) -> str:
        """Return the type of a file system that other machines have too; "" if none is known."""
        device = os.fstat(self._fd).st_dev
        try:
            mounts = Path("/proc/self/mountinfo").read_text()
        except OSError:  # not Linux
            return ""
        return network_kind(mounts, f"{os.major(device)}:{os.minor(device)}")

    def _sync_below(self, directory: str) -> None:
        for name, is_directory, _ in self._vfs.entries(directory):
            path = f"{directory}/{name}"
            if is_directory:
                self._sync_below(path)
                continue
            try:
                file = self._vfs.open(path, writable=False)
            except FileNotFoundError:
                continue  # removed since it was listed
            file.sync()
            file.close()
        with contextlib.suppress(FileNotFoundError):
            self._vfs.sync_directory(directory)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


_MODIFY, _MOVED_TO, _CREATE, _DELETE_SELF = 0x2, 0x80, 0x100, 0x400
_WANTED = _MODIFY | _MOVED_TO | _CREATE | _DELETE_SELF
_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")


@functools.cache
def _libc() -> Any:
    """Return the C library if it has inotify, else None."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "inotify_init1") else None


class DirectoryWatch:
    """Watches directories for files that are written, made or moved there; one thread waits."""

    def __init__(self) -> None:
        """Begin with no directory; OSError where the system has no watches (left)."""
        libc = _libc()
        if libc is None:
            raise OSError("this system has no inotify")
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError("no more instances of inotify")
        self._paths: dict[int, str] = {}
        self._stop_read, self._stop_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def add(self, directory: str) -> bool:
        """Watch a directory as well; False if it is not there, or no watch is left."""
        # Also if it was added before: another directory may have its name by now.
        number = _libc().inotify_add_watch(self._fd, os.fsencode(directory), _WANTED)
        if number < 0:
            return False
        self._paths[number] = directory
        return True

    def wait(self, timeout: float) -> set[str]:
        """Wait for changes or `interrupt`; returns the directories in which something changed."""
        poll = select.poll()  # `select.select` has no descriptors above 1,023
        poll.register(self._fd, select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(timeout * 1000)]
        if self._stop_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._stop_read, 4096)
        changed: set[str] = set()
        if self._fd in ready:
            with contextlib.suppress(BlockingIOError):
                data = os.read(self._fd, 1 << 16)
                at = 0
                while at < len(data):
                    number, mask, _, size = _EVENT.unpack_from(data, at)
                    at += _EVENT.size + size
                    if mask & _OVERFLOW:  # some events were dropped
                        return set(self._paths.values())
                    path = self._paths.get(number)
                    if path is not None:
                        changed.add(path)
                        if mask & _DELETE_SELF:
                            del self._paths[number]
        return changed

    def interrupt(self) -> None:
        """Let a waiting thread return."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._stop_write, b"x")

    def close(self) -> None:
        """Give the descriptors back; harmless when repeated."""
        for name in ("_fd", "_stop_read", "_stop_write"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


class OsVfs:
    """The file system of the machine (Linux; macOS as far as it goes).

    At most `descriptors_max` descriptors are kept open (and at most three quarters of the process's
    limit). By default 512, and one more whenever a file is used again that a pool of half of that
    limit would have kept open: appends in turn to a thousand shards opened two files each.
    """

    def __init__(self, descriptors_max: int | None = None) -> None:
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._descriptors_max = min(descriptors_max or DESCRIPTORS_MAX, max(16, allowed * 3 // 4))
        most = min(_DESCRIPTORS_MOST, allowed // 2) if descriptors_max is None else 0
        self._descriptors_most = max(self._descriptors_max, most)
        #: Files that the pool has taken in, again or for the first time.
        self._admitted = 0
        #: By device: whether its directories are dated.
        self._is_dated: dict[int, bool] = {}
        self._lock = threading.Lock()
        #: Weak: a file that is no longer used, a removed one above all, gives its descriptor back.
        self._pool: deque[weakref.ref[OsFile]] = deque()

    def _admit(self, file: OsFile) -> None:
        """Count a newly opened file; close one that has been idle if there are too many.

        The pool grows by one if the file would still be open in the largest pool there may be.
        Passes over more files than that leave it as it is.
        Files that were used since the last call, or have unsynced writes, get a second chance. Only
        a few files are examined, so the cost does not grow with their number.
        """
        with self._lock:
            pool = self._pool
            pool.append(weakref.ref(file))
            self._admitted += 1
            closed_at, file.closed_at = file.closed_at, None
            if closed_at is not None:
                needed = self._descriptors_max + self._admitted - closed_at
                self._descriptors_max += needed <= self._descriptors_most
            looks = LOOKS_MAX
            while len(pool) > self._descriptors_max:
                oldest = (reference := pool.popleft())()
                held = None if oldest is None else oldest.descriptor
                if oldest is None or held is None:
                    continue
                looks -= 1
                if looks > 0 and (held.used or held.dirty):
                    held.used = False
                    pool.append(reference)
                else:
                    # A write error that no descriptor has reported is reported to the next one
                    # that is opened (Linux, since 4.13), so even a dirty file may be closed.
                    oldest.close()
                    oldest.closed_at = self._admitted

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> OsFile:
        """Open a file; with `create` it must not exist yet."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return OsFile(self, path, os.open(path, flags, 0o644), writable)

    def entries(self, directory: str) -> list[tuple[str, bool, int]]:
        """List (name, is a directory, size), sorted by name; empty if it is missing."""
        try:
            with os.scandir(directory) as scan:
                return sorted(self._rows(scan))
        except FileNotFoundError:
            return []

    @staticmethod
    def _rows(scan: Iterator[os.DirEntry[str]]) -> Iterator[tuple[str, bool, int]]:
        for entry in scan:
            if entry.is_dir():
                yield entry.name, True, 0
            elif entry.is_file():
                try:
                    size = entry.stat().st_size
                except FileNotFoundError:
                    continue  # removed since it was listed
                yield entry.name, False, size

    def settled_names(self, directory: str) -> tuple[int, int] | None:
        """Return the directory's number and the time of its last change, if that was a while ago.

        Two changes in one tick of the file system's clock have the same time.
        """
        try:
            status = os.stat(directory)
        except OSError:
            return None
        if time.time_ns() - status.st_ctime_ns < _SETTLED_NS:
            return None
        known = self._is_dated.get(status.st_dev)
        if known is None:
            known = _file_system_type(directory) in _DATED_TYPES
            self._is_dated[status.st_dev] = known
        return (status.st_ino, status.st_ctime_ns) if known else None

    def size_of(self, path: str) -> int | None:
        """Bytes in a file now; None if it is missing."""
        try:
            return os.stat(path).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, path: str) -> bool:
        """True if a file or directory is there."""
        return os.path.exists(path)

    def make_directories(self, path: str) -> None:
        """Create a directory and its parents."""
        # Not os.makedirs, which checks every parent before it makes anything.
        try:
            os.mkdir(path)
        except FileNotFoundError:
            os.makedirs(path, exist_ok=True)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, source: str, target: str) -> None:
        """Move a file over another, atomically."""
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, atomically."""
        os.link(source, target)

    def remove(self, path: str) -> None:
        """Unlink a file."""
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def modified_ms(self, path: str) -> int:
        """Last modification, ms since the epoch."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        """Give a file another time of its last modification."""
        os.utime(path, ns=(time_ns := time_ms * 1_000_000, time_ns))

    def read_file(self, path: str) -> bytes:
        """Read a whole small file."""
        # By calls of its own: readers do this many times a second, and a file object costs more.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(fd, _READ_BYTES):
                parts.append(part)
        finally:
            os.close(fd)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write a small file whole or not at all."""
        temporary = f"{path}.tmp"
        # A new file, never what a link of that name leads to.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o644), "wb", buffering=0) as file:
            if file.write(data) < len(data):
                raise OSError(errno.ENOSPC, "not all of it was written", temporary)
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            self.sync_directory(os.path.dirname(path))

    def lock(self, path: str, *, kind: str, note: str = "", root: str = "") -> OsLock:
        """Lock a file; BlockingIOError if another process has it."""
        return OsLock(path, kind, note, root)

    def lock_holder(self, note: str) -> str:
        """Return which process holds a lock, by what it noted; "" if that is not known."""
        return lock_holder(note)

    def lock_owners(self, path: str) -> list[int] | None:
        """Return the processes that hold a lock on a file; None where that cannot be seen."""
        return lock_owners(path)

    def file_system(self, directory: str) -> OsFileSystem:
        """Return the file system that holds a directory."""
        return OsFileSystem(self, directory)

    def watch(self) -> DirectoryWatch:
        """Begin to watch directories; OSError where the system has no watches."""
        return DirectoryWatch()

    def can_map(self, directory: str) -> bool:
        """True if files in a directory can be written to through maps, once allocated."""
        return _file_system_type(directory) in _MAPPED_TYPES

    def boot_id(self) -> str:
        """Identify this boot of the machine."""
        return _boot_id(os.getpid())


def _file_system_type(directory: str) -> str:
    """Return the type of the file system that holds a directory, by the mount table; "" if unknown.

    Of mounts at one place the last one counts. A name in the table has spaces as `\\040`.
    """
    try:
        device = os.stat(directory).st_dev
        table = Path("/proc/self/mountinfo").read_text()
    except OSError:  # not Linux
        return ""
    wanted, found = f"{os.major(device)}:{os.minor(device)}", ""
    for line in table.splitlines():
        before, _, behind = line.partition(" - ")
        fields = before.split()
        if len(fields) > 2 and fields[2] == wanted and behind:
            found = behind.split()[0]
    return found


@lru_cache(maxsize=1)
def _boot_id(pid: int) -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux: every process is a boot, so only what is synced is trusted
        return f"pid-{pid}"
