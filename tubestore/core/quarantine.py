"""What `repair` does, one action; and where it puts what it takes out: nothing is lost.

    <root>/.tubestore/quarantine/<UTC time>/<path with + for />[@<position>]

Always true: a copy is on stable storage before the original is touched.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from os.path import dirname

from tubestore.core.paths import OWN_DIRECTORY, QUARANTINE_DIRECTORY, join
from tubestore.core.vfs import Vfs

_COPY_BYTES = 8 << 20


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
    """One run's folder; made with the first thing that is put into it."""

    def __init__(self, vfs: Vfs, root: str, now_ms: int) -> None:
        self._vfs, self._root = vfs, root
        moment = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self.directory = join(root, OWN_DIRECTORY, QUARANTINE_DIRECTORY, moment)

    def _place(self, path: str, mark: str = "") -> str:
        if not self._vfs.exists(self.directory):
            self._vfs.make_directories(self.directory)
            above = self.directory
            while above != self._root:
                above = dirname(above)
                self._vfs.sync_directory(above)
        name = path.removeprefix(self._root).strip("/").replace("/", "+") + mark
        taken = {entry for entry, _, _ in self._vfs.entries(self.directory)}
        number, free = 0, name
        while free in taken:
            number += 1
            free = f"{name}~{number}"
        return join(self.directory, free)

    def move(self, path: str) -> None:
        """Take a file or directory out of the store."""
        self._vfs.rename(path, self._place(path))
        self._vfs.sync_directory(self.directory)
        self._vfs.sync_directory(dirname(path))

    def copy(self, path: str, position: int = 0) -> None:
        """Keep a copy of a file from a position on; the file stays.

        OSError leaves no part of a copy: the next attempt needs the room.
        """
        place = self._place(path, f"@{position}" if position else "")
        with closing(self._vfs.open(path, writable=False)) as source:
            try:
                with closing(self._vfs.open(place, create=True)) as target:
                    copied = 0
                    while data := source.pread(_COPY_BYTES, position + copied):
                        target.pwrite(data, copied)
                        copied += len(data)
                    target.sync()
                self._vfs.sync_directory(self.directory)
            except OSError:
                with suppress(OSError):
                    self._vfs.remove(place)
                raise
