"""The one writer of a RocketMQ root: `fcntl.lockf` on byte 0 of `lock`, as RocketMQ does.

Such a lock belongs to the process and is released with the first descriptor of the file that the
process closes. So a registry refuses a second opening in the same process before it touches the
file, and the file is not opened again while it is locked.

A broker writes and syncs the file at every start: the file's time shows `progress.py` that a broker
has run. A store of this package writes it once, when it makes it, and syncs it before any mark
contains its time. A file that lost its content in a power cut is left alone: as long as it is
empty, no broker has started since.
"""

from __future__ import annotations

import os
import threading

from rocketcompat.formats import HOLDER_FILE, LOCK_CONTENT, LOCK_FILE, OWN_DIRECTORY
from tubestore.core.vfs import OsVfs, Vfs
from tubestore.disks.writer_lock import WriterLock, take_writer_lock
from tubestore.errors import StoreLocked

_registry_lock = threading.Lock()
_registry: set[tuple[int, str]] = set()


def is_unwritten(vfs: Vfs, root: str) -> bool:
    """True if the lock's file is there and has no content: no broker has written it."""
    try:
        return not vfs.read_file(os.path.join(root, LOCK_FILE)).strip(b"\0")
    except OSError:
        return False


class StoreLock:
    """The lock on a root, held until `release`; StoreLocked if another opening holds it."""

    def __init__(self, vfs: Vfs, root: str) -> None:
        # With the process's number, since a fork holds none of its parent's locks.
        self._entry = (os.getpid(), os.path.realpath(root))
        self._registered = isinstance(vfs, OsVfs)  # a disk in memory excludes by itself
        if self._registered:
            with _registry_lock:
                if self._entry in _registry:
                    raise StoreLocked(root, "this process")
                _registry.add(self._entry)
        try:
            #: With its generation, by which jobs are published.
            self.writer = _locked(vfs, root)
        except BaseException:
            self._forget()
            raise

    def is_current(self) -> bool:
        """True while the lock keeps other writers out: its file was not removed or replaced."""
        return self.writer.is_current()

    def release(self) -> None:
        """Release it; harmless when repeated, and in a fork of the process that took it."""
        self.writer.release()
        self._forget()

    def _forget(self) -> None:
        if self._registered and self._entry[0] == os.getpid():
            self._registered = False
            with _registry_lock:
                _registry.discard(self._entry)


def _locked(vfs: Vfs, root: str) -> WriterLock:
    path = os.path.join(root, LOCK_FILE)
    is_new = not vfs.exists(path)
    # Before locking: closing the file afterwards would drop the lock.
    file = vfs.open(path, create=is_new)
    try:
        if is_new:
            file.pwrite(LOCK_CONTENT, 0)
        file.sync()  # a process that was killed may have written it without the sync
    finally:
        file.close()
    # Beside the lock, since the lock's content is the broker's.
    own = os.path.join(root, OWN_DIRECTORY)
    note = os.path.join(own, HOLDER_FILE)
    return take_writer_lock(vfs, path, kind="lockf", root=root, own=own, note=note)
