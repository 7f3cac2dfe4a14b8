"""Where removed files wait until they are no longer read.

    <shard>/.tubestore/trash/<segment>.<ms>           what retention removed or compaction merged
    <shard>/.tubestore/trash/<segment>.merging.<ms>   what compaction is writing
    <root>/.tubestore/trash/<topic>-<store id>.<ms>/  the shards of a deleted topic

`ms` is the time of the removal. A reader that began before, in this process or in another one,
goes on with the file that it has open or mapped, and finds it here if it has to open it again.
"""

from __future__ import annotations

from collections.abc import Callable
from os.path import basename
from typing import NamedTuple

from tubestore.core.paths import OWN_DIRECTORY, TRASH_DIRECTORY, join
from tubestore.core.trees import remove_tree
from tubestore.core.vfs import Vfs
from tubestore.errors import is_disk_full


class Waiting(NamedTuple):
    """Something in a trash: the name that it had, and when it was removed."""

    path: str
    name: str
    removed_ms: int
    size: int
    is_directory: bool


def trash_of(directory: str) -> str:
    """Return the trash of a shard's directory or of a root."""
    return join(directory, OWN_DIRECTORY, TRASH_DIRECTORY)


def move(vfs: Vfs, path: str, trash: str, now_ms: int) -> str | None:
    """Move a file or directory to a trash; returns where it is now. Durable with its directory.

    A disk that is full may have no room for another name: then a file is removed at once, and
    None is returned.
    """
    target = join(trash, f"{basename(path)}.{now_ms}")
    if vfs.exists(target):  # a name that comes again within a millisecond
        return move(vfs, path, trash, now_ms + 1)
    try:
        if not vfs.exists(trash):
            vfs.make_directories(trash)
        vfs.rename(path, target)
    except OSError as error:
        if not is_disk_full(error):
            raise
        remove_tree(vfs, path)
        return None
    return target


def keep(vfs: Vfs, path: str, trash: str, now_ms: int) -> str:
    """Give a file a second name in a trash, and return it: its own is about to be another file's.

    The trash is there.
    """
    target = join(trash, f"{basename(path)}.{now_ms}")
    try:
        vfs.link(path, target)
    except FileExistsError:
        return keep(vfs, path, trash, now_ms + 1)
    return target


def waiting(vfs: Vfs, trash: str) -> list[Waiting]:
    """Return the entries of a trash by name; files with other names are left out."""
    found = []
    for entry, is_directory, size in vfs.entries(trash):
        name, _, digits = entry.rpartition(".")
        if name and digits.isascii() and digits.isdecimal():
            found.append(Waiting(join(trash, entry), name, int(digits), size, is_directory))
    return found


def latest(vfs: Vfs, trash: str, name: str) -> str | None:
    """Return where the last file or directory removed under a name is; None if none is there."""
    found = [w for w in waiting(vfs, trash) if w.name == name]
    return max(found, key=lambda w: w.removed_ms).path if found else None


def purge(vfs: Vfs, trash: str, until_ms: int, keep: Callable[[Waiting], bool]) -> int:
    """Delete what was removed at `until_ms` or before and is not kept; returns the bytes.

    Nothing here is needed after a crash, so nothing is synced; what is left is deleted later.
    """
    freed = 0
    for thing in waiting(vfs, trash):
        if thing.removed_ms <= until_ms and not keep(thing):
            freed += remove_tree(vfs, thing.path)
    return freed
