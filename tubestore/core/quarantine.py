"""What a repair does, one action; and where what is cut or replaced is kept, in both formats.

`<root>/.tubestore/quarantine/<n>/` has a new number for each run, and the paths that the files had
below the root. The copy of a tail has the tail's place in its name and a hole before it.

Always true: what is kept is on stable storage before the original is touched.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from tubestore.core.paths import OWN_DIRECTORY, QUARANTINE_DIRECTORY, join
from tubestore.core.trees import copy_file, make_directory, move_file
from tubestore.core.vfs import Vfs


@dataclass(frozen=True, slots=True)
class Action:
    """Something that is to be done, or was done; `bytes` are those that go or are written."""

    path: str
    action: str
    position: int
    bytes: int
    message: str

    def as_row(self) -> dict[str, str | int]:
        """Return the row that the command line prints."""
        return {name: getattr(self, name) for name in self.__slots__}


class Quarantine:
    """One run's directory; made when the first file comes. Not thread-safe."""

    def __init__(self, vfs: Vfs, root: str, directory: str | None = None) -> None:
        self._vfs, self._root = vfs, root
        self._given = directory
        self._path: str | None = None

    @property
    def path(self) -> str | None:
        """Where the files are; None while there are none."""
        return self._path

    def keep(self, path: str) -> str:
        """Keep the bytes of a file that is about to be replaced under its name; returns where.

        They get a second name, which costs no copy: no file that this is called for is changed.
        """
        place = self._place_for(path)
        try:
            self._vfs.link(path, place)
        except OSError:  # another file system, or one without links
            return self._copy(path, place, 0)
        self._vfs.sync_directory(os.path.dirname(place))
        return place

    def move(self, path: str) -> str:
        """Move a file or a directory here; returns where.

        A file of another file system is copied, durably, and then removed.
        """
        place = self._place_for(path)
        move_file(self._vfs, path, place)
        for directory in dict.fromkeys((os.path.dirname(place), os.path.dirname(path))):
            self._vfs.sync_directory(directory)
        return place

    def copy(self, path: str, position: int = 0) -> str:
        """Copy the bytes of a file from a position on, and leave the file; returns where.

        OSError leaves no part of a copy: the next attempt needs the room.
        """
        mark = f"@{position}" if position else ""
        return self._copy(path, self._place_for(path + mark), position)

    def _copy(self, path: str, place: str, position: int) -> str:
        try:
            copy = copy_file(self._vfs, path, place, start=position)
            try:
                copy.sync()
            finally:
                copy.close()
            self._vfs.sync_directory(os.path.dirname(place))
        except OSError:
            with suppress(OSError):
                self._vfs.remove(place)
            raise
        return place

    def _place_for(self, path: str) -> str:
        if self._path is None:
            self._path = self._given or self._made()
        inside = os.path.relpath(path, self._root)
        if inside.startswith(os.pardir):
            inside = path.lstrip(os.sep)
        place = free = os.path.join(self._path, inside)
        for directory in make_directory(self._vfs, os.path.dirname(place)):
            self._vfs.sync_directory(directory)
        number = 0
        while self._vfs.exists(free):
            number += 1
            free = f"{place}~{number}"
        return free

    def _made(self) -> str:
        """Make the run's directory; returns it. The directories above may be new and unsynced."""
        own = join(self._root, OWN_DIRECTORY)
        base = join(own, QUARANTINE_DIRECTORY)
        taken = [int(n) for n, d, _ in self._vfs.entries(base) if d and n.isdecimal()]
        made = join(base, str(max(taken, default=0) + 1))
        self._vfs.make_directories(made)
        for directory in (base, own, self._root):
            self._vfs.sync_directory(directory)
        return made
