"""The lock of a root's one writer, and its generation: a writer that lost the lock cannot publish.

    <own directory of the root>/writers/<20 digits>/   of the newest writer: its generation
        holder                                         empty; makes the number this writer's
        ...                                            drafts of what it publishes

A system's lock may not keep writers apart: its file was removed, or the file system keeps locks for
each machine alone (NFS with `local_lock` or `nolock`). So each writer that has the lock takes the
next generation, and removes the directories of all others, before it reads anything of the store:

1. the number's directory is made, and `holder` in it, exclusively; a second process takes the
   next number;
2. unless a higher one is there by then, all lower directories are emptied and removed.

What makes a job part of the store, or finished, is drafted in the writer's own directory and linked
or renamed from there. Without the directory that call fails, in the file system itself: between the
comparison and the change nothing can come. A link that was made before step 2 is seen by the newer
writer, which finishes that job; none is made after it.

Other steps compare the generation just before they change files (`check`). A writer that is stopped
between that comparison and its write, for as long as another one opens the store, still writes.

No sync: what loses the name of a directory ends all writers of a local file system, and the server
of a network file system stores names before it answers. A RocketMQ or TubeMQ broker takes no
generation; it is kept apart by the lock alone.
"""

from __future__ import annotations

import contextlib
import errno

from tubestore.core.paths import join
from tubestore.core.vfs import Vfs, VfsLock
from tubestore.errors import StoreFailed, StoreLocked, failed_write, is_disk_full

_DIRECTORY = "writers"
_HOLDER = "holder"
#: How often the directory of an earlier writer is emptied before it is given up.
_ATTEMPTS = 100
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
_GONE = (errno.ENOENT, errno.ESTALE)


class Overtaken(StoreFailed):
    """Another process has opened the root for writing since; what was drafted is not published."""


class WriterLock:
    """The lock and the generation of a root's writer, until `release`.

    Any thread may call it. StoreLocked if another writer has the lock, or writes drafts in spite
    of this one; OSError where the system refuses the lock or the generation.
    """

    def __init__(self, vfs: Vfs, root: str, lock: VfsLock, own: str) -> None:
        """Take the next generation; `own` is the root's directory of state."""
        self._vfs, self._root, self._lock = vfs, root, lock
        self._writers = join(own, _DIRECTORY)
        self._generation = 0
        try:
            self._take()
        except OSError as error:
            # To open a root on a full disk makes room; to publish takes a generation first.
            if not is_disk_full(error):
                raise

    @property
    def drafts(self) -> str:
        """The directory of drafts, which the next writer removes."""
        return self._place(self._generation)

    def is_current(self) -> bool:
        """True while no other process can take the lock or has taken a generation, it seems.

        Over NFS another machine's generation may show a minute later; `check` asks the server.
        """
        mine = not self._generation or self._vfs.exists(join(self.drafts, _HOLDER))
        return mine and self._lock.is_current()

    def check(self, *, take: bool = True) -> None:
        """Raise Overtaken if another process has opened the root for writing since.

        A writer that found the disk full has no generation; it gets one here, or passes. DiskFull
        or StoreFailed if the system refuses that.
        """
        try:
            if not self._generation:
                if not take:
                    return
                self._take()
            self._vfs.open(join(self.drafts, _HOLDER), writable=False).close()
        except OSError as error:
            if self._generation and error.errno in _GONE:
                raise Overtaken(self._root, self._reason()) from error
            raise failed_write(self._root, error) from error

    def release(self) -> None:
        """Let the next writer in; harmless when repeated. The generation stays until it comes."""
        self._lock.release()

    def _reason(self) -> str:
        newest = max(self._numbers(), default=0)
        by = f"generation {newest}" if newest > self._generation else "a newer one"
        return (
            f"another process has opened it for writing: this writer's generation "
            f"{self._generation} has ended with {by}; the file system's lock does not keep them "
            "apart, or its file was removed"
        )

    def _place(self, number: int) -> str:
        return join(self._writers, f"{number:020d}")

    def _numbers(self) -> list[int]:
        names = [name for name, _, _ in self._vfs.entries(self._writers)]
        return [int(name) for name in names if name.isdigit()]

    def _take(self) -> None:
        numbers = self._numbers()
        number = max(numbers, default=0)
        while True:
            number += 1
            self._vfs.make_directories(self._place(number))
            try:
                self._vfs.open(join(self._place(number), _HOLDER), create=True).close()
            except (FileExistsError, FileNotFoundError):  # another one has it, or a higher one
                continue
            numbers = self._numbers()
            if number == max(numbers, default=0):
                break
            number = max(number, *numbers)
        for other in sorted(numbers)[:-1]:
            self._end(self._place(other))
        self._generation = number

    def _end(self, place: str) -> None:
        """Remove the directory of a writer that this one follows."""
        for _ in range(_ATTEMPTS):
            for name, _, _ in self._vfs.entries(place):
                with contextlib.suppress(FileNotFoundError):
                    self._vfs.remove(join(place, name))
            try:
                self._vfs.remove_directory(place)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in _NOT_EMPTY:  # it has drafted something meanwhile
                    continue
                raise
            return
        raise StoreLocked(self._root, f"a process that goes on writing in {place}")


def take_writer_lock(
    vfs: Vfs, path: str, *, kind: str, root: str, own: str, note: str
) -> WriterLock:
    """Take the lock and the next generation of a root; StoreLocked, which names the holder."""
    try:
        lock = vfs.lock(path, kind=kind, note=note, root=root)
    except BlockingIOError as error:
        owners = [f"process {owner}" for owner in vfs.lock_owners(path) or ()]  # a broker's, too
        raise StoreLocked(root, vfs.lock_holder(note) or " and ".join(owners)) from error
    try:
        return WriterLock(vfs, root, lock, own)
    except BaseException:
        lock.release()
        raise
