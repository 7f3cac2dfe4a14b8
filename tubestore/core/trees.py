"""Files and directories as a whole: made, listed, copied, moved, removed.

Always true: a file that is moved is whole under its old name or its new one, also where that is on
another file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from os.path import dirname
from typing import NamedTuple

from tubestore.core.paths import join
from tubestore.core.vfs import Vfs, VfsFile

_COPY_BYTES = 8 << 20


def make_directory(vfs: Vfs, directory: str) -> list[str]:
    """Create a directory and its parents; returns those that must be synced to keep it."""
    parents = []
    path = directory
    while path and not vfs.exists(path):
        path = os.path.dirname(path)
        parents.append(path or ".")
    if parents:
        vfs.make_directories(directory)
    return parents


def sync_names(vfs: Vfs, directory: str, root: str) -> None:
    """Make the names in a directory durable, and its own name and those above it, up to `root`.

    A process may have been killed before it synced what it had made.
    """
    while len(directory) > len(root):
        vfs.sync_directory(directory)
        directory = dirname(directory)
    vfs.sync_directory(root)


class Listing(NamedTuple):
    """What is in a directory of files that are named by where they start."""

    #: (start, path, bytes), ascending.
    files: list[tuple[int, str, int]]
    #: (path, whether it is a directory, bytes) of the rest.
    others: list[tuple[str, bool, int]]


def list_by_start(vfs: Vfs, directory: str, parse: Callable[[str], int | None]) -> Listing:
    """List a directory; `parse` returns where the file of a name starts, None for other names."""
    found = Listing([], [])
    for name, is_directory, size in vfs.entries(directory):
        start = None if is_directory else parse(name)
        if start is None:
            found.others.append((join(directory, name), is_directory, size))
        else:
            found.files.append((start, join(directory, name), size))
    found.files.sort()
    return found


def files_by_start(
    vfs: Vfs, directory: str, parse: Callable[[str], int | None]
) -> list[tuple[int, str, int]]:
    """Return (start, path, bytes) of the files with names that `parse` takes, ascending."""
    return list_by_start(vfs, directory, parse).files


def copy_file(
    vfs: Vfs, source: str, target: str, size: int | None = None, start: int = 0
) -> VfsFile:
    """Copy a file from `start` on to a new name, holes as holes, cut or grown to `size`.

    Returns the copy, not synced; what is before `start` is a hole in it.
    """
    with contextlib.closing(vfs.open(source, writable=False)) as file:
        copy = vfs.open(target, create=True)
        try:
            length = file.size()
            copy.truncate(length if size is None else size)
            limit = min(length, length if size is None else size)
            position = file.next_data(start)
            while position is not None and position < limit:
                data = file.pread(min(_COPY_BYTES, limit - position), position)
                copy.pwrite(data, position)
                position = file.next_data(position + len(data))
        except BaseException:
            copy.close()
            raise
    return copy


def move_file(vfs: Vfs, source: str, target: str) -> None:
    """Move a file, over another one of the target's name, on any file system."""
    try:
        vfs.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        temporary = f"{target}.tmp"
        with contextlib.suppress(FileNotFoundError):
            vfs.remove(temporary)
        copy = copy_file(vfs, source, temporary)
        copy.sync()
        copy.close()
        vfs.rename(temporary, target)
        vfs.sync_directory(dirname(target))
        vfs.remove(source)


def remove_tree(vfs: Vfs, path: str) -> int:
    """Remove a file, or a directory with all that is in it; returns the bytes of the files."""
    try:
        entries = vfs.entries(path)
    except NotADirectoryError:
        size = vfs.open(path, writable=False).size()
        vfs.remove(path)
        return size
    removed = 0
    with contextlib.suppress(FileNotFoundError):
        for name, is_directory, size in entries:
            inside = join(path, name)
            if is_directory:
                removed += remove_tree(vfs, inside)
            else:
                vfs.remove(inside)
                removed += size
        vfs.remove_directory(path)
    return removed


def sync_tree(vfs: Vfs, path: str) -> None:
    """Make the names below a directory durable."""
    for name, is_directory, _ in vfs.entries(path):
        if is_directory:
            sync_tree(vfs, join(path, name))
    vfs.sync_directory(path)


def tree_size(vfs: Vfs, path: str) -> tuple[int, int]:
    """Return how many files there are below a directory, and their bytes."""
    files = size = 0
    for name, is_directory, length in vfs.entries(path):
        more = tree_size(vfs, join(path, name)) if is_directory else (1, length)
        files, size = files + more[0], size + more[1]
    return files, size
