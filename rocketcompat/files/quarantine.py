"""Where what is replaced or removed is kept, so that a repair can be undone by hand.

`<root>/.tubestore/quarantine/<n>/`, a new number each time, with the paths that the files had
below the root. A file that is about to be replaced by another under its name keeps its bytes
under a second name here: that costs no copy, since nothing is ever changed in place.
"""

from __future__ import annotations

import os
from typing import Final, Protocol

from rocketcompat.formats import OWN_DIRECTORY
from tubestore.core.trees import copy_file, make_directory, move_file
from tubestore.core.vfs import Vfs

QUARANTINE_DIRECTORY: Final = "quarantine"


class Keeper(Protocol):
    """Where a recovery puts what it drops without a proof that it is torn; a `Quarantine`."""

    def move(self, path: str) -> str:
        """Move a file or a directory away."""

    def keep_tail(self, path: str, position: int) -> str:
        """Copy the bytes of a file from a position on."""

    def sync(self) -> None:
        """Make durable what was moved and copied."""


class Quarantine:
    """One run's place; made when the first file comes. Not thread-safe."""

    def __init__(self, vfs: Vfs, root: str, directory: str | None = None) -> None:
        self._vfs, self._root = vfs, root
        self._given = directory
        self._path: str | None = None
        self._unsynced: list[str] = []

    @property
    def path(self) -> str | None:
        """Where the files are; None while there are none."""
        return self._path

    def keep(self, path: str) -> str:
        """Keep the bytes that a file has now, and leave it where it is; returns where."""
        place = self._place_for(path)
        try:
            self._vfs.link(path, place)
        except OSError:  # another file system, or one without links
            copy_file(self._vfs, path, place)
        return place

    def move(self, path: str) -> str:
        """Move a file or a directory here; returns where.

        A file of another file system is copied, durably, and then removed.
        """
        place = self._place_for(path)
        self.sync()  # on another file system the original goes when the copy is there
        move_file(self._vfs, path, place)
        self._unsynced.append(os.path.dirname(path))
        return place

    def keep_tail(self, path: str, position: int) -> str:
        """Copy the bytes of a file from a position on, durably; returns where.

        The copy has the same length, with a hole before the position, and that in its name.
        """
        place = self._place_for(f"{path}@{position}")
        copy = copy_file(self._vfs, path, place, start=position)
        copy.sync()
        copy.close()
        return place

    def sync(self) -> None:
        """Make durable what came and went."""
        for directory in dict.fromkeys(self._unsynced):
            self._vfs.sync_directory(directory)
        self._unsynced.clear()

    def _place_for(self, path: str) -> str:
        if self._path is None:
            self._path = self._given or self._numbered()
        inside = os.path.relpath(path, self._root)
        if inside.startswith(os.pardir):
            inside = path.lstrip(os.sep)
        place = os.path.join(self._path, inside)
        parent = os.path.dirname(place)
        self._unsynced += [parent, *make_directory(self._vfs, parent)]
        return place

    def _numbered(self) -> str:
        base = os.path.join(self._root, OWN_DIRECTORY, QUARANTINE_DIRECTORY)
        taken = [int(n) for n, d, _ in self._vfs.entries(base) if d and n.isdecimal()]
        return os.path.join(base, str(max(taken, default=0) + 1))
