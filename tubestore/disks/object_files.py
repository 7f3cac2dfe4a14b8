"""A store that was copied to an object storage, read through `pyarrow.fs`; nothing is written.

Paths are the root's URI with names behind it. The options in its query (`region=…`,
`endpoint_override=…`) stay in the root, so a path is all that a process needs to find the store.

A read is one request for a range of bytes. Nothing is mapped or kept: `view` fetches what it
returns. Nothing is read ahead: readers ask for windows of a MiB or so, and hardly ever for bytes
behind the last ones (one of 211 reads of an audit of 51 shards). A directory is what the names of
objects have in common; an empty one does not exist.
"""

from __future__ import annotations

import contextlib
import errno
import re
import threading
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlsplit

from tubestore.core.layout import Buffer
from tubestore.errors import NotAStore

READ_ONLY = "a store in an object storage is only read; to write, copy it to a local disk"


class ObjectFile:
    """An object, read at positions; made by `ObjectVfs.open`."""

    def __init__(self, vfs: ObjectVfs, path: str) -> None:
        self._vfs, self.path = vfs, path
        self._source: Any = vfs.source(path)
        self._size: int = self._source.size()

    def _reopened(self) -> Any:
        if self._source is None:
            self._source = self._vfs.source(self.path)
        return self._source

    def size(self) -> int:
        """Bytes in the object when it was opened; an object does not grow."""
        return self._size

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes at `position` with one request."""
        size = min(size, self._size - position)
        if size <= 0:
            return b""
        source = self._reopened()
        with _plain(self.path):
            found: bytes = source.read_at(size, position)
        return found

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Read into a buffer from `position`; return how many bytes."""
        found = self.pread(len(buffer), position)
        buffer[: len(found)] = found
        return len(found)

    def view(self, size: int) -> memoryview:
        """Fetch the first `size` bytes."""
        if size > self._size:
            raise ValueError(f"a view of {size} bytes is longer than {self.path}")
        return memoryview(self.pread(size, 0))

    def next_data(self, position: int) -> int | None:
        """Return `position`: objects have no holes."""
        return position if position < self._size else None

    def let_go(self, size: int, position: int) -> None:
        """Do nothing: no memory of the system holds these bytes."""

    def close(self) -> None:
        """Give the stream back."""
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def is_current(self) -> bool:
        """True if an object of its size has its name."""
        try:
            return self._vfs.size_of(self.path) == self._size
        except OSError:
            return False

    def moved_to(self, path: str) -> None:
        """Take note of another name."""
        self.path = path

    def pwrite(self, data: Buffer, position: int) -> None:
        """Refuse."""
        _refuse(self.path)

    def truncate(self, size: int) -> None:
        """Refuse."""
        _refuse(self.path)

    def sync(self) -> None:
        """Refuse."""
        _refuse(self.path)

    def allocate(self, size: int) -> None:
        """Refuse."""
        _refuse(self.path)

    def shared_map(self, size: int, *, fill: bool = False) -> NoReturn:
        """Refuse."""
        _refuse(self.path)


class StillWatch:
    """Waits for changes in a store that has none: a copy in an object storage does not grow."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def add(self, directory: str) -> bool:
        """Accept any directory."""
        return True

    def wait(self, timeout: float) -> set[str]:
        """Wait for `interrupt`; nothing changes."""
        self._woken.wait(timeout)
        self._woken.clear()
        return set()

    def interrupt(self) -> None:
        """Let a waiting thread return."""
        self._woken.set()

    def close(self) -> None:
        """End it."""
        self._woken.set()


class ObjectVfs:
    """The files below one root in an object storage; NotAStore for a URI that cannot be used."""

    def __init__(self, root: str) -> None:
        self._root = root.removesuffix("/")
        try:
            self._files, base = _file_system(self._root)
        except (ValueError, TypeError, OSError) as error:
            shown = re.sub("//[^/@]*:[^/@]*@", "//…@", root)
            raise NotAStore(shown, _sentence(error)) from None
        self._base = base.rstrip("/")

    def _place(self, path: str) -> str:
        """Return the path of an object as `pyarrow.fs` has it."""
        below = path.removeprefix(self._root)
        if len(below) == len(path) or below[:1] not in ("", "/"):
            raise OSError(errno.EINVAL, f"not below {self._root}, where the store is", path)
        return self._base + below.rstrip("/")

    def _info(self, path: str) -> Any:
        with _plain(path):
            return self._files.get_file_info(self._place(path))

    def source(self, path: str) -> Any:
        """Open an object; what `pyarrow.fs` reads it with."""
        with _plain(path):
            return self._files.open_input_file(self._place(path))

    def size_of(self, path: str) -> int | None:
        """Return the bytes of an object; None if there is none of this name."""
        size: int | None = self._info(path).size
        return size

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> ObjectFile:
        """Open an object to read."""
        if create or writable:
            _refuse(path)
        return ObjectFile(self, path)

    def entries(self, directory: str) -> list[tuple[str, bool, int]]:
        """List (name, is a directory, size), sorted by name, with one call."""
        from pyarrow.fs import FileSelector, FileType

        with _plain(directory):
            place = FileSelector(self._place(directory), allow_not_found=True)
            infos = self._files.get_file_info(place)
        if not infos and self._info(directory).type == FileType.File:
            raise NotADirectoryError(errno.ENOTDIR, "this is an object", directory)
        return sorted(
            (info.base_name, info.type == FileType.Directory, info.size or 0) for info in infos
        )

    def settled_names(self, directory: str) -> None:
        """Return None: an object storage has no directories that could be dated."""

    def exists(self, path: str) -> bool:
        """True if an object has this name, or one below it."""
        from pyarrow.fs import FileType

        return bool(self._info(path).type != FileType.NotFound)

    def modified_ms(self, path: str) -> int:
        """Return when the object was written: not before the file that it is a copy of."""
        info = self._info(path)
        if info.mtime_ns is None:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        return int(info.mtime_ns) // 1_000_000

    def read_file(self, path: str) -> bytes:
        """Read a whole small object."""
        file = ObjectFile(self, path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def lock_holder(self, note: str) -> str:
        """Return "": no process writes here."""
        return ""

    def lock_owners(self, path: str) -> list[int]:
        """Return that no process holds a lock."""
        return []

    def watch(self) -> StillWatch:
        """Begin to wait for nothing."""
        return StillWatch()

    def can_map(self, directory: str) -> bool:
        """Return False: nothing is written here."""
        return False

    def boot_id(self) -> str:
        """Identify no boot: what a writer had in a page cache need not be in the copy."""
        return "object storage"

    def make_directories(self, path: str) -> None:
        """Refuse."""
        _refuse(path)

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        """Refuse."""
        _refuse(path)

    def rename(self, source: str, target: str) -> None:
        """Refuse."""
        _refuse(target)

    def link(self, source: str, target: str) -> None:
        """Refuse."""
        _refuse(target)

    def remove(self, path: str) -> None:
        """Refuse."""
        _refuse(path)

    def remove_directory(self, path: str) -> None:
        """Refuse."""
        _refuse(path)

    def sync_directory(self, path: str) -> None:
        """Refuse."""
        _refuse(path)

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Refuse."""
        _refuse(path)

    def lock(self, path: str, *, kind: str, note: str = "", root: str = "") -> NoReturn:
        """Refuse."""
        _refuse(path)

    def file_system(self, directory: str) -> NoReturn:
        """Refuse."""
        _refuse(directory)


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, READ_ONLY, path)


def _file_system(root: str) -> tuple[Any, str]:
    """Return what reads a root, and the root's path there; ValueError, TypeError or OSError."""
    from pyarrow.fs import FileSystem, S3FileSystem

    uri = urlsplit(root)
    if ":" in uri.netloc.rpartition("@")[0]:
        raise ValueError("a path is printed: give the credentials in the environment")
    options = dict(parse_qsl(uri.query))
    if uri.scheme == "s3" and options.pop("anonymous", "false").lower() == "true":
        return S3FileSystem(anonymous=True, **options), uri.netloc + uri.path
    found: tuple[Any, str] = FileSystem.from_uri(root)
    return found


@contextlib.contextmanager
def _plain(path: str) -> Iterator[None]:
    """Give an error of `pyarrow.fs` its path, and the number that it is without."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such object", path) from None
    except NotADirectoryError:
        raise NotADirectoryError(errno.ENOTDIR, "this is an object", path) from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise OSError(errno.EIO, _sentence(error), path) from error


def _sentence(error: Exception) -> str:
    """Return the first sentence of an error of Arrow's."""
    text = re.sub(r"^\[Errno \d+\] ", "", str(error))
    return text.partition("\n")[0].partition(" Detail:")[0]
