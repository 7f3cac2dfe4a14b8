"""The files of one CommitLog or one ConsumeQueue: a byte stream cut into files of one size.

Always true:
- the files' names are their start offsets, each a multiple of the file size apart;
- `_files` is in the order of the offsets, and never changed but replaced, so a reader that took it
  sees one state (D10);
- a file appears in `_files` only when it has its full length.

One thread writes at a time (the owner's lock), another may delete the oldest files; any thread
may read and flush.

Guards: `_files_lock` guards the replacement of `_files`; `_flush_lock` the syncs.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rocketcompat.files.mapped_file import MappedFile
from rocketcompat.formats import offset_name, parse_offset_name
from tubestore.core.layout import Buffer
from tubestore.core.quarantine import Quarantine
from tubestore.core.trees import list_by_start, make_directory
from tubestore.core.vfs import Vfs, VfsFile
from tubestore.errors import NotAStore

#: Dirty memory is counted in pages of so many bytes.
PAGE = 4096
#: A queue's directory, its topic's, and that of all queues.
_LEVELS = 3


def listed(rows: Callable[[], Iterable[tuple[int, str, int]]], file_size: int) -> list[Any]:
    """Return what `rows` gives of a log's files, sorted by their starts, as of one moment.

    Directories are listed one after the other, and a writer may begin a file in each meanwhile. So
    while a file between two others seems to be missing, all are listed again until nothing changes.
    """
    found = sorted(rows())
    while any(b[0] - a[0] != file_size for a, b in itertools.pairwise(found)):
        again = sorted(rows())
        if again == found:
            break
        found = again
    return found


class MappedFileQueue:
    """RocketMQ's `MappedFileQueue`: files by start offset."""

    def __init__(
        self, vfs: Vfs, directory: str, file_size: int, *, writable: bool = True,
        more: Sequence[str] = (), read_only: Sequence[str] = (),
    ) -> None:  # fmt: skip
        #: The first directory, and those that get files: file n in directory n modulo their number.
        #: `directories` has all.
        self.directory, self.writable_directories = directory, (directory, *more)
        self.directories = (directory, *more, *read_only)
        #: Directories that are so full that new files go elsewhere, while there is one.
        self.full_directories: frozenset[str] = frozenset()
        self.file_size = file_size
        self._vfs, self._writable = vfs, writable
        self._files: dict[int, MappedFile] = {}
        self._flush_lock = threading.Lock()
        #: How a file is made: (vfs, path, start offset, file size).
        self.new_file: Callable[[Vfs, str, int, int], MappedFile] = MappedFile.create
        #: The type of the files that are there already.
        self.loaded_file: type[MappedFile] = MappedFile
        self._files_lock = threading.Lock()
        #: Directories with changed entries since they were synced, deepest first.
        self._unsynced_directories: list[str] = []

    def load(self) -> None:
        """Take in the files of the directory; every one counts as full until `set_end`.

        - A wrong length is refused with NotAStore, as RocketMQ refuses it.
        - A file of length 0 comes from a crash while it was created. It is removed when it is the
          last (as since 5.1.3), else made full-size, a hole; a reader ignores it.
        - Sub-directories are passed by (since 5.1.0).
        """
        if not any(map(self._vfs.exists, self.directories)):  # as of each new queue
            self._files = {}
            return
        found: dict[int, int] = {}
        paths: dict[int, str] = {}
        for start, path, size in listed(self._rows, self.file_size):
            if start in paths:
                directory, name = os.path.split(path)
                raise NotAStore(directory, f"{name} is in another directory too")
            found[start], paths[start] = size, path
        while found and found[max(found)] == 0:
            start = max(found)
            del found[start]
            if self._writable:
                self._vfs.remove(paths[start])
                # It must not come back: after a clean close nothing searches for it.
                self._vfs.sync_directory(os.path.dirname(paths[start]))
        files = {}
        for start, size in found.items():
            file = self._opened(paths[start], is_last=start == max(found))
            if size == 0 and self._writable:
                file.truncate(self.file_size)
            files[start] = self.loaded_file(file, start, self.file_size, self.file_size)
        self._files = files

    def lacking(self, *, from_zero: bool) -> str | None:
        """Return the path of a file that is missing before the last, or is empty; None if none is.

        With `from_zero` the first has to start at 0. Opens none.
        """
        sizes = {start: size for start, _, size in self._rows()}
        if not sizes:
            return None
        first = 0 if from_zero else min(sizes)
        starts = range(first, max(sizes) + 1, self.file_size)
        return next((self.path_of(start) for start in starts if not sizes.get(start)), None)

    def _opened(self, path: str, *, is_last: bool) -> VfsFile:
        """Open a file; one of a read-only directory may be on a disk that cannot be written to.

        The last file is opened for writing wherever it is.
        """
        try:
            return self._vfs.open(path, writable=self._writable)
        except OSError as error:
            kept = os.path.dirname(path) not in self.writable_directories
            if is_last or not kept or error.errno not in (errno.EROFS, errno.EACCES):
                raise
            return self._vfs.open(path, writable=False)

    def _rows(self) -> Iterator[tuple[int, str, int]]:
        """Yield start offset, path and length of the files of all directories."""
        for directory in self.directories:
            yield from self._rows_of(directory)

    def _rows_of(self, directory: str) -> Iterator[tuple[int, str, int]]:
        """Yield start offset, path and length of the files of a directory."""
        found = list_by_start(self._vfs, directory, parse_offset_name)
        for path, is_directory, _ in found.others:
            if not is_directory:
                name = os.path.basename(path)
                raise NotAStore(directory, f"holds {name!r}, which is not a file of a store")
        for start, path, size in found.files:
            if size not in (0, self.file_size):
                raise NotAStore(
                    directory,
                    f"{os.path.basename(path)} has {size} bytes and not {self.file_size}, as the"
                    " options or the other files have it; `rocketcompat repair` shows what to do",
                )
            yield start, path, size

    @property
    def dirty_pages(self) -> int:
        """Borders of pages between what is on stable storage and the end."""
        return self.max_offset // PAGE - self.flushed_where // PAGE

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """All files in order, as of now."""
        return tuple(self._files.values())

    @property
    def first(self) -> MappedFile | None:
        """The file with the lowest offset."""
        return next(iter(self._files.values()), None)

    @property
    def last(self) -> MappedFile | None:
        """The file that is written to."""
        return next(reversed(self._files.values()), None)

    @property
    def min_offset(self) -> int:
        """Offset of the first byte; 0 without files."""
        first = self.first
        return first.file_from_offset if first else 0

    @property
    def max_offset(self) -> int:
        """Offset behind the last byte that was written; 0 without files."""
        last = self.last
        return last.end_offset if last else 0

    @property
    def flushed_where(self) -> int:
        """Offset below which every byte is on stable storage."""
        where = self.min_offset
        for file in self._files.values():
            where = file.file_from_offset + file.flushed_position
            if file.flushed_position < file.file_size:
                break
        return where

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds the byte at `offset`; None if there is none."""
        files = self._files
        file = files.get(offset - offset % self.file_size)
        if file is not None:  # as nearly always: files begin at multiples of their size
            return file
        before = (file for start, file in reversed(files.items()) if start <= offset)
        file = next(before, None)
        return file if file is not None and offset < file.end_of_file else None

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` written bytes; fewer at the end of a file, none outside."""
        file = self.find(offset)
        if file is None:
            return b""
        try:
            return file.read(offset - file.file_from_offset, size)
        except FileNotFoundError:
            if self.find(offset) is None:  # deleted by age since
                return b""
            raise

    def path_of(self, offset: int) -> str:
        """Return the path of the file for an offset, whether it is there or not."""
        place = offset // self.file_size
        there = self._files.get(place * self.file_size)
        if there is not None:
            return str(there.path)
        full = self.full_directories
        usable = [d for d in self.writable_directories if d not in full]
        usable = usable or list(self.writable_directories)
        directory = usable[place % len(usable)]
        return os.path.join(directory, offset_name(place * self.file_size))

    def hide_from(self, offset: int) -> None:
        """Hide everything from `offset` on until the next `load`: a job there is not finished."""
        with self._files_lock:
            self._files = {s: f for s, f in self._files.items() if s < offset}
        last = self.last
        if last is not None:
            last.wrote_position = min(last.wrote_position, offset - last.file_from_offset)

    def adopt(self, start: int, end: int) -> None:
        """Take in what a job put behind the written bytes, [start, end), durably.

        Files that begin there are new, also in the place of an empty file; the file before them was
        continued.
        """
        with self._files_lock:
            files = self._files.copy()
            for directory in self.directories:
                for begin, path, _ in self._rows_of(directory):
                    if begin >= start:
                        opened = self._vfs.open(path)
                        files[begin] = self.loaded_file(opened, begin, self.file_size, 0)
            for begin, file in files.items():
                if begin > start - self.file_size:
                    file.wrote_position = file.flushed_position = min(end - begin, self.file_size)
            self._files = dict(sorted(files.items()))

    def create(self, start: int) -> MappedFile:
        """Create the file that starts at `start`, full-size and empty; OSError without room."""
        if self._files.get(start) is not None:
            raise ValueError(f"{self.directory}: there is a file at {start}")
        path = self.path_of(start)
        directory = os.path.dirname(path)
        for parent in make_directory(self._vfs, directory):
            self._note_directory(parent)
        file = self.new_file(self._vfs, path, start, self.file_size)
        self._note_directory(directory)
        with self._files_lock:
            is_last = not self._files or start > next(reversed(self._files))
            files = {**self._files, start: file}
            self._files = files if is_last else dict(sorted(files.items()))
        return file

    def last_or_create(self, offset: int = 0) -> MappedFile:
        """Return the last file if it has room, else a new one behind it.

        The first file of an empty queue is the one that holds `offset`.
        """
        last = self.last
        if last is None:
            return self.create(offset - offset % self.file_size)
        if last.is_full:
            return self.create(last.file_from_offset + self.file_size)
        return last

    def write_at(self, offset: int, data: Buffer) -> None:
        """Write bytes at `offset`, over file borders; missing files are created.

        What is between the old end and `offset` stays a hole of zeros.
        """
        view = memoryview(data)
        while len(view):
            position = offset % self.file_size
            start = offset - position
            file = self._files.get(start) or self.create(start)
            count = min(len(view), self.file_size - position)
            file.write_at(position, view[:count])
            offset += count
            view = view[count:]

    def flush(self) -> bool:
        """Sync every file that has unsynced bytes, and directories in which files appeared.

        False if there was nothing to do. On OSError the owner must trust nothing that was
        written since the last good flush.
        """
        with self._flush_lock:
            moved = False
            for file in self._files.values():
                moved = file.sync() or moved
            directories, self._unsynced_directories = self._unsynced_directories, []
            for directory in directories:
                self._vfs.sync_directory(directory)
            return moved or bool(directories)

    def set_end(self, offset: int) -> None:
        """Set the end of the written bytes, and touch none; after a clean close, or to read."""
        for start, file in self._files.items():
            file.wrote_position = max(0, min(offset - start, self.file_size))
            file.flushed_position = min(file.flushed_position, file.wrote_position)

    def set_flushed(self, offset: int) -> None:
        """Mark everything below `offset` as on stable storage."""
        for start, file in self._files.items():
            file.flushed_position = max(0, min(offset - start, file.wrote_position))

    def truncate_dirty_files(
        self, offset: int, *, leave_empty: bool = True, keeper: Quarantine | None = None
    ) -> int:
        """Drop everything from `offset` on: later files go (the last first), the rest is zeroed.

        With a `keeper` whole files that hold data are moved to it instead.

        Without `leave_empty` a file that begins at `offset` goes too: of an empty last file of a
        queue a broker makes a unit (R2). Returns the bytes of data that were dropped or zeroed.
        Durable on return.

        Safe against a crash at any write: done again it has the same result.

        The process before may have been killed before it synced the directories that it made,
        so the next flush syncs them, three levels up.
        """
        lost = 0
        for directory in self.directories:
            for _ in range(_LEVELS):
                self._note_directory(directory or ".")
                directory = os.path.dirname(directory)
        doomed = [
            file
            for start, file in self._files.items()
            if start > offset or (start == offset and not leave_empty)
        ]
        for file in reversed(doomed):
            lost += self._drop(file, keeper)
        for directory in {os.path.dirname(file.path) for file in doomed}:
            self._vfs.sync_directory(directory)
        kept = self.last
        if kept is not None:
            position = min(offset - kept.file_from_offset, self.file_size)
            zeroed = kept.cut(position)
            if zeroed:
                kept.sync_always()
            lost += zeroed
        return lost

    def holds_several(self) -> bool:
        """True if the directory has more than one file; opens none."""
        return sum(len(self._vfs.entries(directory)) for directory in self.directories) > 1

    def delete_oldest(self) -> MappedFile:
        """Unlink the first file, durably; never the last. Views and reads under way stay valid.

        One at a time: a power cut must not bring back an older file than one that is gone.
        """
        if len(self._files) < 2:
            raise ValueError(f"{self.directory}: the last file is never deleted")
        file = next(iter(self._files.values()))
        self._drop(file)
        self._vfs.sync_directory(os.path.dirname(file.path))
        return file

    def close(self) -> None:
        """Give all descriptors back."""
        for file in self._files.values():
            file.close()

    def _drop(self, file: MappedFile, keeper: Quarantine | None = None) -> int:
        """Unlink a file, or move it to a keeper; returns how many bytes may have held data."""
        first_data = file.next_data(0)
        with self._files_lock:
            files = self._files.copy()
            del files[file.file_from_offset]
            self._files = files
        file.close()
        if keeper is not None and first_data is not None:
            keeper.move(file.path)
        else:
            self._vfs.remove(file.path)
        return 0 if first_data is None else file.wrote_position

    def _note_directory(self, directory: str) -> None:
        with self._flush_lock:
            if directory not in self._unsynced_directories:
                self._unsynced_directories.append(directory)
