"""A directory as it would be after planned changes, so that a plan can read its own result.

Reads only. A `FileChange` describes a file's new content. The overlay shows it in place of the file
on disk, so everything that reads a directory can read a planned one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NoReturn

from tubestore.core.layout import Buffer
from tubestore.core.vfs import Vfs, VfsFile, VfsLock


@dataclass(frozen=True, slots=True)
class FileChange:
    """The new content of a file: `size` bytes of the old content, `patches` over them.

    With `fresh` nothing of the old content stays. Everything from `zero_from` on is zeros.
    """

    path: str
    size: int
    patches: tuple[tuple[int, bytes], ...] = ()
    zero_from: int | None = None
    fresh: bool = False

    def read(self, base: VfsFile | None, size: int, position: int) -> bytes:
        """Return bytes of the changed file; fewer at its end."""
        size = max(0, min(size, self.size - position))
        raw = bytearray(size)
        kept = self.size if self.zero_from is None else self.zero_from
        if base is not None and not self.fresh and position < kept:
            there = base.pread(min(size, kept - position), position)
            raw[: len(there)] = there
        for start, data in self.patches:
            low, high = max(start, position), min(start + len(data), position + size)
            if low < high:
                raw[low - position : high - position] = data[low - start : high - start]
        return bytes(raw)


class OverlayFile:
    """A changed file, read-only."""

    def __init__(self, change: FileChange, base: VfsFile | None) -> None:
        self.path, self._change, self._base = change.path, change, base

    def size(self) -> int:
        """Bytes in the file."""
        return self._change.size

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes at `position`."""
        return self._change.read(self._base, size, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill a buffer with the bytes at `position`."""
        found = self.pread(len(buffer), position)
        buffer[: len(found)] = found
        return len(found)

    def view(self, size: int) -> memoryview:
        """Return the first `size` bytes; a copy."""
        return memoryview(self.pread(size, 0))

    def next_data(self, position: int) -> int | None:
        """Return the first position that may hold data."""
        change = self._change
        kept = change.size if change.zero_from is None else change.zero_from
        patched = [max(s, position) for s, data in change.patches if s + len(data) > position]
        there = None
        if self._base is not None and not change.fresh and position < kept:
            there = self._base.next_data(position)
        found = [p for p in (*patched, there) if p is not None and p < change.size]
        return min(found, default=None)

    def sync(self) -> None:
        """Do nothing: a plan has nothing to sync."""

    def let_go(self, size: int, position: int) -> None:
        """Do nothing: the plan is in memory, and the file below may stay in the page cache."""

    def close(self) -> None:
        """Give the descriptor below back."""
        if self._base is not None:
            self._base.close()

    def is_current(self) -> bool:
        """A planned file is there as long as its plan."""
        return True

    def moved_to(self, path: str) -> NoReturn:
        """Refused: nothing is moved in a plan."""
        raise OSError(f"{self.path}: a planned file is read-only")

    def pwrite(self, data: Buffer, position: int) -> NoReturn:
        """Refused: a plan is not written to."""
        raise OSError(f"{self.path}: a planned file is read-only")

    def truncate(self, size: int) -> NoReturn:
        """Refused, too."""
        raise OSError(f"{self.path}: a planned file is read-only")

    allocate = truncate

    def shared_map(self, size: int, *, fill: bool = False) -> NoReturn:
        """Refused, too."""
        raise OSError(f"{self.path}: a planned file is read-only")


class OverlayVfs:
    """The file system `inner` with `changes` made and `removed` gone; for reading only.

    Before that each path of `moves` gets the file of the other path, which loses its name.
    """

    def __init__(
        self, inner: Vfs, changes: dict[str, FileChange], removed: set[str],
        moves: dict[str, str],
    ) -> None:  # fmt: skip
        self._inner, self._changes, self._moves = inner, changes, moves
        self._removed = removed | (set(moves.values()) - set(moves))

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> VfsFile:
        """Open a file to read it."""
        if create or writable:
            raise OSError(f"{path}: a planned directory is read-only")
        change, source = self._changes.get(path), self._moves.get(path, path)
        if change is None and source == path:
            return self._inner.open(path, writable=False)
        there = self._inner.exists(source)
        base = self._inner.open(source, writable=False) if there else None
        if change is None:
            change = FileChange(path, base.size() if base is not None else 0)
        return OverlayFile(change, base)

    def entries(self, directory: str) -> list[tuple[str, bool, int]]:
        """List (name, is a directory, size), sorted."""
        found = {
            name: (name, is_directory, size)
            for name, is_directory, size in self._inner.entries(directory)
            if os.path.join(directory, name) not in self._removed
        }
        for path in self._moves:
            if os.path.dirname(path) == directory:
                file = self.open(path, writable=False)
                found[os.path.basename(path)] = (os.path.basename(path), False, file.size())
                file.close()
        for path, change in self._changes.items():
            if os.path.dirname(path) == directory:
                name = os.path.basename(path)
                found[name] = (name, False, change.size)
        return [found[name] for name in sorted(found)]

    def exists(self, path: str) -> bool:
        """True if a file or directory would be there."""
        planned = path in self._changes or path in self._moves
        return planned or (path not in self._removed and self._inner.exists(path))

    def read_file(self, path: str) -> bytes:
        """Read a whole file."""
        change = self._changes.get(path)
        if path in self._removed and change is None:
            raise FileNotFoundError(path)
        if change is None:
            return self._inner.read_file(path)
        return self.open(path, writable=False).pread(change.size, 0)

    def modified_ms(self, path: str) -> int:
        """Last modification of what is there."""
        return self._inner.modified_ms(path)

    def can_map(self, directory: str) -> bool:
        """A planned file is not written to."""
        return False

    def boot_id(self) -> str:
        """Identify this boot of the machine."""
        return self._inner.boot_id()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError("a planned directory is read-only")

    make_directories = rename = link = remove = remove_directory = _refuse
    sync_directory = replace_file = file_system = set_modified_ms = _refuse

    def lock(self, path: str, *, kind: str, note: str = "", root: str = "") -> VfsLock:
        """Refused."""
        self._refuse()

    def lock_holder(self, note: str) -> str:
        """Return which process holds a lock."""
        return self._inner.lock_holder(note)

    def lock_owners(self, path: str) -> list[int] | None:
        """Return the processes that hold a lock on a file."""
        return self._inner.lock_owners(path)
