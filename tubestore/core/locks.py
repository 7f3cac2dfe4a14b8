"""Locks on files of the machine, and the process that holds one (D9)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import sys
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path


def identity_of(fd: int) -> tuple[int, int]:
    """Return (device, inode) of an open file."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class OsLock:
    """A lock on a file; `lockf` on byte 0 excludes a broker, `flock` does not (D9).

    A name can be removed or replaced while its file is locked, and the next process would lock
    another file. So directories are locked too, where the system can (NFS cannot): the file's, and
    `root`, because the file's directory can be renamed. `is_current` compares names with what is
    locked.
    """

    def __init__(self, path: str, kind: str, note: str = "", root: str = "") -> None:
        """`note`: the file that takes which process holds it."""
        self._pid, self._path = os.getpid(), path
        #: A broker locks the file only.
        self._file_decides = kind == "lockf"
        self._fd = -1
        #: The locked directories with their descriptors; empty where the system cannot lock one.
        self._directories: dict[str, int] = {}
        try:
            for _ in range(_LOCK_ATTEMPTS):
                self._fd = _locked_file(path, kind)
                if self._leads_to_file():
                    break
                os.close(self._fd)  # it was replaced between the opening and the locking
                self._fd = -1
            else:
                raise BlockingIOError(
                    errno.EAGAIN, "the lock file is replaced again and again", path
                )
            for directory in dict.fromkeys((os.path.dirname(path), root or os.path.dirname(path))):
                self._lock_directory(directory or ".")
        except BaseException:
            self._close()
            raise
        _held_locks.add(self)
        if note:
            _write_note(note)

    def _lock_directory(self, path: str) -> None:
        fd = _locked_directory(path)
        if fd >= 0:
            self._directories[path] = fd

    def is_current(self) -> bool:
        """True while no other process can take this lock.

        The names still lead to the locked directories; where there are none, or a broker may
        come, the file's name leads to the locked file.
        """
        for path, fd in self._directories.items():
            if not _leads_to(path, fd, follow=True):
                return False
        needs_file = self._file_decides or not self._directories
        return self._fd >= 0 and (not needs_file or self._leads_to_file())

    def _leads_to_file(self) -> bool:
        return _leads_to(self._path, self._fd, follow=False)

    def release(self) -> None:
        """Give it back, unless this process is a fork of the one that took it."""
        if os.getpid() == self._pid:
            for fd in (*self._directories.values(), self._fd):
                if fd >= 0:
                    with contextlib.suppress(OSError):  # a child may have a copy of it
                        fcntl.flock(fd, fcntl.LOCK_UN)
            self._close()
        self._fd, self._directories = -1, {}

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.release()  # an interrupt came before its owner had it

    def _close(self) -> None:
        for fd in (*self._directories.values(), self._fd):
            if fd >= 0:
                os.close(fd)
        self._fd, self._directories = -1, {}


_held_locks: weakref.WeakSet[OsLock] = weakref.WeakSet()
_LOCK_ATTEMPTS = 10


def _close_in_child() -> None:
    """Close a parent's locks: a child's copies would hold them after the parent has ended."""
    for lock in list(_held_locks):
        lock._close()


os.register_at_fork(after_in_child=_close_in_child)


def _leads_to(path: str, fd: int, *, follow: bool) -> bool:
    """True if a name leads to an open file or directory; `follow`: through links, too."""
    try:
        status = os.stat(path, follow_symlinks=follow)
    except OSError:
        return False
    return identity_of(fd) == (status.st_dev, status.st_ino)


def _locked_file(path: str, kind: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        if kind == "lockf":
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        else:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno == errno.EACCES:  # lockf's other word for it
            raise BlockingIOError(error.errno, error.strerror, path) from None
        raise
    return fd


def _locked_directory(path: str) -> int:
    """Lock a directory; returns -1 where the file system cannot."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise
    except OSError:
        os.close(fd)
        return -1
    return fd


def _write_note(path: str) -> None:
    """Write which process holds a lock, for the error of the next one; not synced."""
    since_ms = time.time_ns() // 1_000_000
    note = {"pid": os.getpid(), "host": platform.node(), "since_ms": since_ms}
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            data = json.dumps(note).encode()
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
        finally:
            os.close(fd)


def lock_owners(path: str, table: str = "/proc/locks") -> list[int] | None:
    """Return the processes that hold a lock on a file; None where that cannot be seen.

    The system's table of locks is read, and the file is not opened: closing it again would drop a
    lock that this process has (D9). 0 is a process of another container.
    """
    try:
        lines = Path(table).read_text().splitlines()
        status = os.stat(path)
    except FileNotFoundError as error:
        return [] if error.filename == path else None
    except OSError:
        return None
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = [line.split() for line in lines if "->" not in line]  # "->": one that waits for it
    return [max(0, int(words[4])) for words in rows if len(words) > 5 and words[5] == place]


def lock_holder(path: str) -> str:
    """Return which process noted that it holds a lock; "" if that is not known, or it has ended."""
    try:
        found = json.loads(Path(path).read_bytes())
        pid, host, since_ms = int(found["pid"]), str(found["host"]), int(found["since_ms"])
        since = datetime.fromtimestamp(since_ms // 1000, UTC).isoformat().replace("+00:00", "Z")
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return ""
    if host == platform.node() and pid != os.getpid():
        try:
            os.kill(pid, 0)
        except PermissionError:
            pass  # another user's process, which is there
        except (OSError, OverflowError):
            return ""
    return f"process {pid} on {host!r} since {since}"
