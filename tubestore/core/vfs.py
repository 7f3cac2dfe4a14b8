"""The only door to the disk: all file calls go through it, so that a test can replace the disk.

Always true:
- a write is positional and whole: all bytes are there or an `OSError` was raised;
- descriptors come from one bounded pool a vfs: a file that has not been used for a
  while is closed behind its back and opened again when it is needed, so ten thousand
  shards do not need ten thousand descriptors (D8);
- a view stays valid after close and unlink: the map lives as long as its references and
  is never closed by hand (D10).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, runtime_checkable

from tubestore.core.layout import Buffer
from tubestore.core.local_files import OsVfs

#: Why a store that is open for writing stops to write.
LOST_LOCK = "the lock file or its directory was replaced: another process may write here"

__all__ = [
    "LOST_LOCK",
    "OsVfs",
    "Vfs",
    "VfsFile",
    "VfsFileSystem",
    "VfsLock",
    "VfsMap",
    "VfsWatch",
]


class VfsMap(Protocol):
    """The first bytes of a file as memory that is shared with it; reads and writes cost no call."""

    def read(self, size: int, position: int) -> bytes:
        """Read `size` bytes at `position`, both within the map."""

    def write(self, data: Buffer, position: int) -> None:
        """Write at `position`; a write that would reach over the map's end is a ValueError."""

    def pieces_from(self, position: int) -> Callable[[Buffer], object]:
        """Return a function that writes pieces one behind the other, the first at `position`.

        The last one that was asked for is the one that works. As `write`, at a third of its cost.
        """

    def sync(self, start: int, end: int) -> None:
        """Bring the bytes [start, end) to stable storage (msync); OSError."""


class VfsFile(Protocol):
    """One file, read and written at positions."""

    path: str

    def size(self) -> int:
        """Bytes in the file now."""

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes at `position`; fewer only at the end of the file."""

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Read into a buffer from `position`; fewer bytes only at the end of the file."""

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`, or raise OSError."""

    def truncate(self, size: int) -> None:
        """Make the file `size` bytes long; growth is a hole that reads as zeros."""

    def sync(self) -> None:
        """Bring data and length to stable storage (fdatasync)."""

    def let_go(self, size: int, position: int) -> None:
        """Hint that these bytes are not needed soon. Nothing is promised, nothing fails.

        What has not been written to the disk is begun to be, so that a later `sync` need not wait
        for all of it; what has been may leave the machine's memory, which is free for others then.
        """

    def view(self, size: int) -> memoryview:
        """Map the first `size` bytes, which are there; read-only, valid as long as it is held."""

    def allocate(self, size: int) -> None:
        """Take room on the disk for the first `size` bytes, the least length from then on; OSError.

        What was written stays, what was not reads as zeros. A map of less than that may be
        written to without the disk running full in the middle, which would kill the process.
        """

    def shared_map(self, size: int, *, fill: bool = False) -> VfsMap:
        """Map the first `size` bytes, which are allocated, to read and to write.

        `fill` gets all pages at once: one by one each costs a fault.
        """

    def next_data(self, position: int) -> int | None:
        """Return the first position >= `position` that may hold data, None if only holes follow."""

    def close(self) -> None:
        """Give the descriptor back; the object opens it again when it is used again.

        FileNotFoundError then, if its name has gone or belongs to another file.
        """

    def is_current(self) -> bool:
        """True if its name still leads to this file, and not to none or another one."""

    def moved_to(self, path: str) -> None:
        """Take note of a renaming: the name under which it is opened again."""


class VfsLock(Protocol):
    """An operating system's lock on a file, held until `release`."""

    def is_current(self) -> bool:
        """True while no other process can take this lock, as far as names show."""

    def release(self) -> None:
        """Give it back; harmless when repeated."""


class VfsFileSystem(Protocol):
    """The file system that holds a directory, watched for write errors until `close`."""

    def sync(self) -> None:
        """Bring everything that any process wrote to it to stable storage; OSError.

        Also for what the system failed to write since this was made, as far as it reports that.
        """

    def network_kind(self) -> str:
        """Return the type of a file system that other machines have too; "" for a local one."""

    def close(self) -> None:
        """Give the descriptor back; harmless when repeated."""


class VfsWatch(Protocol):
    """Waits for changes that any process makes in directories."""

    def add(self, directory: str) -> bool:
        """Watch a directory as well; False if that cannot be done."""

    def wait(self, timeout: float) -> set[str]:
        """Wait for changes or `interrupt`; returns the directories in which something changed."""

    def interrupt(self) -> None:
        """Let a waiting thread return."""

    def close(self) -> None:
        """End it; harmless when repeated."""


@runtime_checkable
class Vfs(Protocol):
    """What the store asks of a file system."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> VfsFile:
        """Open a file; with `create` it must not exist yet."""

    def entries(self, directory: str) -> list[tuple[str, bool, int]]:
        """List (name, is a directory, size) of a directory, sorted; empty if it is missing."""

    def settled_names(self, directory: str) -> Hashable | None:
        """Return a value that changes with the names in a directory; None if they must be listed.

        Ask before listing it: then that listing is good for as long as the value is the same.
        """

    def size_of(self, path: str) -> int | None:
        """Bytes in a file now; None if it is missing."""

    def exists(self, path: str) -> bool:
        """True if a file or directory is there."""

    def make_directories(self, path: str) -> None:
        """Create a directory and its parents; harmless if it is there."""

    def rename(self, source: str, target: str) -> None:
        """Move a file over another, atomically."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, atomically; FileExistsError if the name is taken."""

    def remove(self, path: str) -> None:
        """Unlink a file."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; OSError if something is in it."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""

    def modified_ms(self, path: str) -> int:
        """Last modification, ms since the epoch."""

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        """Give a file another time of its last modification; durable with its next change."""

    def read_file(self, path: str) -> bytes:
        """Read a whole small file; FileNotFoundError if it is missing."""

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write a small file whole or not at all (a new file and a rename)."""

    def lock(self, path: str, *, kind: str, note: str = "", root: str = "") -> VfsLock:
        """Take the lock "flock" or "lockf" (byte 0) of a file, made if missing; BlockingIOError.

        The file's directory is locked too, and `root`. `note`: the file that takes which process
        holds it.
        """

    def lock_holder(self, note: str) -> str:
        """Return which process holds a lock, by what it noted; "" if that is not known."""

    def lock_owners(self, path: str) -> list[int] | None:
        """Return the processes that hold a lock on a file; None where that cannot be seen."""

    def file_system(self, directory: str) -> VfsFileSystem:
        """Return the file system that holds a directory."""

    def watch(self) -> VfsWatch:
        """Begin to watch directories; OSError where that cannot be done."""

    def can_map(self, directory: str) -> bool:
        """True if files in a directory can be written to through maps, once allocated.

        The file system is known to keep an allocated block where it is, and to give it room then.
        """

    def boot_id(self) -> str:
        """Identify this boot of the machine: the page cache lives as long as it (D2)."""
