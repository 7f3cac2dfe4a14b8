"""A file system that fails on purpose, around any other.

    vfs = FaultyVfs(MemoryVfs())
    vfs.fail("pwrite", nth=3, error=errno.ENOSPC, written=10)   # the third from now, after 10 bytes
    vfs.fail("sync", forever=True)                              # EIO from now on
    vfs.heal()

`calls` counts what was asked, so that a test can run once without faults and then fail each
call in turn.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tubestore.core.layout import Buffer
from tubestore.core.vfs import Vfs, VfsFile, VfsFileSystem, VfsLock, VfsMap, VfsWatch

#: What can fail, by the names of the protocol's methods.
FALLIBLE = (
    "open",
    "create",
    "pread",
    "pwrite",
    "truncate",
    "allocate",
    "sync",
    "view",
    "shared_map",
    "entries",
    "make_directories",
    "rename",
    "link",
    "remove",
    "remove_directory",
    "sync_directory",
    "sync_file_system",
    "read_file",
    "replace_file",
    "lock",
)


@dataclass(slots=True)
class Fault:
    """One planned failure."""

    call: str
    nth: int  #: counted down; it strikes at 1
    error: int
    forever: bool
    path: str
    written: int | None
    struck: int = 0

    def strikes(self, call: str, path: str) -> bool:
        """True if this call fails; counts it down if it is of the kind."""
        if call != self.call or self.path not in path or (self.struck and not self.forever):
            return False
        if self.nth > 1:
            self.nth -= 1
            return False
        self.struck += 1
        return True


class FaultyVfs:
    """Passes everything on, until a fault strikes."""

    def __init__(self, inner: Vfs) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def fail(
        self,
        call: str,
        *,
        nth: int = 1,
        error: int = errno.EIO,
        forever: bool = False,
        path: str = "",
        written: int | None = None,
    ) -> Fault:
        """Plan a failure of the n-th such call from now on with `path` in its path.

        With `forever` all after it fail too. A failing pwrite leaves its first `written`
        bytes in the file (half of them when error is ENOSPC, else none).
        """
        if call not in FALLIBLE:
            raise ValueError(f"{call!r} is none of {', '.join(FALLIBLE)}")
        fault = Fault(call, nth, error, forever, path, written)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    def _pass(self, call: str, path: str) -> Fault | None:
        with self._lock:
            self.calls[call] += 1
            struck = [fault for fault in self._faults if fault.strikes(call, path)]
        return struck[0] if struck else None

    def ask(self, call: str, path: str) -> None:
        """Count a call, and raise if it is to fail."""
        if fault := self._pass(call, path):
            raise OSError(fault.error, os.strerror(fault.error), path)

    def ask_write(self, path: str, size: int) -> tuple[int, OSError | None]:
        """Count a write; returns how many of its bytes are written and the error, if any."""
        fault = self._pass("pwrite", path)
        if fault is None:
            return size, None
        half = size // 2 if fault.error == errno.ENOSPC else 0
        written = half if fault.written is None else min(fault.written, size)
        return written, OSError(fault.error, os.strerror(fault.error), path)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> FaultyFile:
        """Open a file; fails as "open" or "create"."""
        self.ask("create" if create else "open", path)
        return FaultyFile(self, self.inner.open(path, create=create, writable=writable))

    def entries(self, directory: str) -> list[tuple[str, bool, int]]:
        """List a directory."""
        self.ask("entries", directory)
        return self.inner.entries(directory)

    def settled_names(self, directory: str) -> Hashable | None:
        """Return a value that changes with the names in a directory; never fails."""
        return self.inner.settled_names(directory)

    def size_of(self, path: str) -> int | None:
        """Bytes in a file now; never fails."""
        return self.inner.size_of(path)

    def exists(self, path: str) -> bool:
        """True if a file or directory is there; never fails."""
        return self.inner.exists(path)

    def make_directories(self, path: str) -> None:
        """Create a directory and its parents."""
        self.ask("make_directories", path)
        self.inner.make_directories(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file over another."""
        self.ask("rename", source)
        self.inner.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        self.ask("link", source)
        self.inner.link(source, target)

    def remove(self, path: str) -> None:
        """Unlink a file."""
        self.ask("remove", path)
        self.inner.remove(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self.ask("remove_directory", path)
        self.inner.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        """Make a directory durable."""
        self.ask("sync_directory", path)
        self.inner.sync_directory(path)

    def modified_ms(self, path: str) -> int:
        """Last modification; never fails."""
        return self.inner.modified_ms(path)

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        """Give a file another time of its last modification; never fails."""
        self.inner.set_modified_ms(path, time_ms)

    def read_file(self, path: str) -> bytes:
        """Read a whole small file."""
        self.ask("read_file", path)
        return self.inner.read_file(path)

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write a small file whole or not at all; a failure leaves the old one."""
        self.ask("replace_file", path)
        self.inner.replace_file(path, data, sync=sync)

    def lock(self, path: str, *, kind: str, note: str = "", root: str = "") -> VfsLock:
        """Take the lock of a file."""
        self.ask("lock", path)
        return self.inner.lock(path, kind=kind, note=note, root=root)

    def lock_holder(self, note: str) -> str:
        """Return which process holds a lock."""
        return self.inner.lock_holder(note)

    def lock_owners(self, path: str) -> list[int] | None:
        """Return the processes that hold a lock on a file; never fails."""
        return self.inner.lock_owners(path)

    def file_system(self, directory: str) -> FaultyFileSystem:
        """Return the file system that holds a directory; never fails, its syncs can."""
        return FaultyFileSystem(self, directory, self.inner.file_system(directory))

    def watch(self) -> VfsWatch:
        """Begin to watch directories; never fails."""
        return self.inner.watch()

    def can_map(self, directory: str) -> bool:
        """True if files in a directory can be written to through maps; never fails."""
        return self.inner.can_map(directory)

    def boot_id(self) -> str:
        """Identify this boot."""
        return self.inner.boot_id()


class FaultyFile:
    """A file of a `FaultyVfs`."""

    def __init__(self, vfs: FaultyVfs, inner: VfsFile) -> None:
        self.path = inner.path
        self._vfs, self._inner = vfs, inner

    def size(self) -> int:
        """Bytes in the file now; never fails."""
        return self._inner.size()

    def pread(self, size: int, position: int) -> bytes:
        """Read at a position."""
        self._vfs.ask("pread", self.path)
        return self._inner.pread(size, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Read at a position; fails as "pread"."""
        self._vfs.ask("pread", self.path)
        return self._inner.pread_into(buffer, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write at a position, perhaps in part."""
        raw = memoryview(data).cast("B")
        written, error = self._vfs.ask_write(self.path, len(raw))
        if written:
            self._inner.pwrite(raw[:written], position)
        if error:
            raise error

    def truncate(self, size: int) -> None:
        """Cut or grow."""
        self._vfs.ask("truncate", self.path)
        self._inner.truncate(size)

    def sync(self) -> None:
        """Bring to stable storage; a failure syncs nothing."""
        self._vfs.ask("sync", self.path)
        self._inner.sync()

    def let_go(self, size: int, position: int) -> None:
        """Give a hint; never fails."""
        self._inner.let_go(size, position)

    def view(self, size: int) -> memoryview:
        """Map the first bytes."""
        self._vfs.ask("view", self.path)
        return self._inner.view(size)

    def allocate(self, size: int) -> None:
        """Take room; a failure takes none."""
        self._vfs.ask("allocate", self.path)
        self._inner.allocate(size)

    def shared_map(self, size: int, *, fill: bool = False) -> FaultyMap:
        """Map the first bytes to write to them."""
        self._vfs.ask("shared_map", self.path)
        return FaultyMap(self, self._inner.shared_map(size, fill=fill))

    def sync_map(self, inner: VfsMap, start: int, end: int) -> None:
        """Sync a range of a map; fails as "sync"."""
        self._vfs.ask("sync", self.path)
        inner.sync(start, end)

    def next_data(self, position: int) -> int | None:
        """Find data behind a hole; never fails."""
        return self._inner.next_data(position)

    def close(self) -> None:
        """Give the descriptor back; never fails."""
        self._inner.close()

    def is_current(self) -> bool:
        """True if its name still leads to this file; never fails."""
        return self._inner.is_current()

    def moved_to(self, path: str) -> None:
        """Take note of a renaming; never fails."""
        self.path = path
        self._inner.moved_to(path)


class FaultyMap:
    """A map of a `FaultyFile`: what is allocated can always be written to; its syncs can fail."""

    def __init__(self, file: FaultyFile, inner: VfsMap) -> None:
        self._file, self._inner = file, inner

    def read(self, size: int, position: int) -> bytes:
        """Read at a position; never fails."""
        return self._inner.read(size, position)

    def write(self, data: Buffer, position: int) -> None:
        """Write at a position; never fails."""
        self._inner.write(data, position)

    def pieces_from(self, position: int) -> Callable[[Buffer], object]:
        """Return a function that writes pieces one behind the other; it never fails."""
        return self._inner.pieces_from(position)

    def sync(self, start: int, end: int) -> None:
        """Bring a range to stable storage."""
        self._file.sync_map(self._inner, start, end)


class FaultyFileSystem:
    """A file system of a `FaultyVfs`."""

    def __init__(self, vfs: FaultyVfs, directory: str, inner: VfsFileSystem) -> None:
        self._vfs, self._directory, self._inner = vfs, directory, inner

    def sync(self) -> None:
        """Bring everything to stable storage; a failure syncs nothing."""
        self._vfs.ask("sync_file_system", self._directory)
        self._inner.sync()

    def network_kind(self) -> str:
        """Return the type of a file system that other machines have too; never fails."""
        return self._inner.network_kind()

    def close(self) -> None:
        """Give the descriptor back; never fails."""
        self._inner.close()


class LyingVfs(FaultyVfs):
    """A disk that reports a sync and makes none: every durable promise on it is a bug to be found.

    `path` limits the lie to files with it in their path; the sync of the file system lies as well
    if there is no such limit.
    """

    def __init__(self, inner: Vfs, path: str = "") -> None:
        super().__init__(inner)
        self._lying_path = path

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> FaultyFile:
        """Open a file with syncs that may be lies."""
        self.ask("create" if create else "open", path)
        inner = self.inner.open(path, create=create, writable=writable)
        return _LyingFile(self, inner) if self._lying_path in path else FaultyFile(self, inner)

    def file_system(self, directory: str) -> FaultyFileSystem:
        """Return the file system that holds a directory; its syncs may be lies."""
        inner = self.inner.file_system(directory)
        kind = FaultyFileSystem if self._lying_path else _LyingFileSystem
        return kind(self, directory, inner)


class _LyingFileSystem(FaultyFileSystem):
    def sync(self) -> None:
        self._vfs.ask("sync_file_system", self._directory)


class _LyingFile(FaultyFile):
    def sync(self) -> None:
        self._vfs.ask("sync", self.path)

    def sync_map(self, inner: VfsMap, start: int, end: int) -> None:
        self._vfs.ask("sync", self.path)
