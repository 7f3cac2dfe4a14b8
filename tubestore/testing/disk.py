"""A simulated disk: its synced state, and the changes since.

`Disk` is driven by the calls of a journal. Of every file and every directory it has
the state as of the last sync and each change after it; `power_cut.py` chooses which of
those changes survive, and lists what is assumed. Contents are immutable, so a fork is a
copy of a few dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from posixpath import dirname
from typing import NamedTuple

import xxhash

from tubestore.testing.calls import Call

SECTOR = 512
DIRECTORY = 0  #: in `names`, where a file has its number


class Content:
    """The bytes of a file at one moment; `data` may be shorter than `size`: the rest is zeros."""

    __slots__ = ("_digest", "data", "size")

    def __init__(self, data: bytes, size: int) -> None:
        self.data, self.size = data, size
        self._digest = b""

    @property
    def digest(self) -> bytes:
        """A digest of what a reader sees."""
        if not self._digest:
            state = xxhash.xxh3_128(self.data.rstrip(b"\0"))
            state.update(self.size.to_bytes(8, "big"))
            self._digest = state.digest()
        return self._digest

    def written(self, data: bytes, position: int) -> Content:
        """Return the content after a write."""
        before = self.data[:position]
        gap = bytes(position - len(before))
        end = position + len(data)
        return Content(b"".join((before, gap, data, self.data[end:])), max(self.size, end))

    def resized(self, size: int) -> Content:
        """Return the content cut or grown to `size`."""
        return Content(self.data[:size] if len(self.data) > size else self.data, size)

    def sector(self, number: int) -> bytes:
        """Return one sector, with zeros behind the end."""
        return self.data[number * SECTOR : (number + 1) * SECTOR].ljust(SECTOR, b"\0")


EMPTY = Content(b"", 0)


class Change(NamedTuple):
    """An unsynced write or truncate, and the file as every reader saw it afterwards."""

    call: Call
    after: Content

    def apply(self, content: Content) -> Content:
        """Return what the change makes of another content."""
        if self.call.kind == "truncate":
            return content.resized(self.call.position)
        return content.written(self.call.data, self.call.position)


class DiskFile(NamedTuple):
    """A file: what is durable, and the changes since."""

    durable: Content
    changes: tuple[Change, ...] = ()
    durable_ms: int = 0  #: modified at the last sync

    @property
    def cached(self) -> Content:
        """The file as readers see it while the machine runs."""
        return self.changes[-1].after if self.changes else self.durable

    @property
    def modified_ms(self) -> int:
        """When it was modified, as a running machine sees it."""
        return self.changes[-1].call.ms if self.changes else self.durable_ms


class NameChange(NamedTuple):
    """An unsynced creation, renaming or removal, and the directories that it changes."""

    call: Call
    directories: tuple[str, ...]


class Disk:
    """Files by number, names by path; `names` is what a running machine sees."""

    def __init__(self, boot_id: str = "boot-0") -> None:
        self.boot_id = boot_id
        self.files: dict[int, DiskFile] = {}
        self.names: dict[str, int] = {}
        self.durable_names: dict[str, int] = {}
        self.name_changes: tuple[NameChange, ...] = ()
        self.last_number = 0

    @classmethod
    def durable(
        cls,
        files: Mapping[str, tuple[int, bytes, int]],
        directories: Iterable[str],
        boot_id: str,
        last_number: int,
    ) -> Disk:
        """Make a disk on which everything is durable; files as (number, bytes, modified ms)."""
        disk = cls(boot_id)
        disk.names = {d: DIRECTORY for d in directories if d != "/"}
        for path, (number, data, modified_ms) in files.items():
            disk.names[path] = number
            disk.files[number] = DiskFile(Content(data, len(data)), (), modified_ms)
        disk.durable_names = dict(disk.names)
        disk.last_number = last_number
        return disk

    @classmethod
    def of_names(cls, names: dict[str, int], files: dict[int, DiskFile], boot_id: str) -> Disk:
        """Make a disk on which these names, and their files as given, are durable."""
        disk = cls(boot_id)
        disk.names, disk.durable_names = names, dict(names)
        disk.files = files
        return disk

    def fork(self) -> Disk:
        """Return a copy that goes its own way."""
        disk = Disk(self.boot_id)
        disk.files = dict(self.files)
        disk.names = dict(self.names)
        disk.durable_names = dict(self.durable_names)
        disk.name_changes = self.name_changes
        disk.last_number = self.last_number
        return disk

    def digest(self) -> bytes:
        """A digest of the tree that a running machine sees: names and bytes, no times."""
        state = xxhash.xxh3_128()
        for path, number in sorted(self.names.items()):
            state.update(path.encode())
            state.update(self.files[number].cached.digest if number else b"/")
        return state.digest()

    def tree(self) -> dict[str, bytes]:
        """Return every file with its bytes, by path."""
        found = {p: self.files[n].cached for p, n in sorted(self.names.items()) if n}
        return {path: content.data.ljust(content.size, b"\0") for path, content in found.items()}

    # -- calls --------------------------------------------------------------------------------

    def apply(self, call: Call) -> None:
        """Do what the call did."""
        if call.kind in ("pwrite", "truncate"):
            self._change(call)
        elif call.kind == "sync":
            file = self.files[call.file]
            self.files[call.file] = DiskFile(file.cached, (), file.modified_ms)
        elif call.kind == "sync_directory":
            self._sync_directory(call.path)
        elif call.kind == "sync_file_system":
            self._sync_all()
        else:
            self._rename(call)

    def _change(self, call: Call) -> None:
        file = self.files[call.file]
        cached = file.cached
        if call.kind == "truncate":
            after = cached.resized(call.position)
        else:
            after = cached.written(call.data, call.position)
        changes = (*file.changes, Change(call, after))
        self.files[call.file] = DiskFile(file.durable, changes, file.durable_ms)

    def _rename(self, call: Call) -> None:
        directories: tuple[str, ...] = (dirname(call.path),)
        if call.kind == "link":  # the other name stays as it is
            directories = (dirname(call.target),)
        elif call.kind == "rename" and dirname(call.target) != directories[0]:
            directories = (directories[0], dirname(call.target))
        if call.kind == "create":
            self.files[call.file] = DiskFile(EMPTY, (), call.ms)
            self.last_number = max(self.last_number, call.file)
        apply_name(self.names, call)
        self.name_changes = (*self.name_changes, NameChange(call, directories))

    def _sync_all(self) -> None:
        """Make every file and every name durable."""
        for number, file in self.files.items():
            if file.changes:
                self.files[number] = DiskFile(file.cached, (), file.modified_ms)
        self.durable_names, self.name_changes = dict(self.names), ()

    def _sync_directory(self, path: str) -> None:
        """Make the changes to a directory durable, and those that must come before them (4)."""
        wanted = {path}
        kept: list[NameChange] = []
        due: list[Call] = []
        for change in reversed(self.name_changes):  # a rename between two pulls in the other's past
            if wanted.isdisjoint(change.directories):
                kept.append(change)
            else:
                wanted.update(change.directories)
                due.append(change.call)
        for call in reversed(due):
            apply_name(self.durable_names, call)
        self.name_changes = tuple(reversed(kept))


def apply_name(names: dict[str, int], call: Call) -> None:
    """Apply a call to a name table; a call that needs a lost change does nothing."""
    if call.kind == "create":
        names[call.path] = call.file
    elif call.kind == "make":
        names[call.path] = DIRECTORY
    elif call.kind == "remove":
        names.pop(call.path, None)
    elif call.kind == "link":  # of the file, whatever becomes of its other name
        names[call.target] = call.file
    elif call.path in names:
        number = names.pop(call.path)
        names[call.target] = number
        if number == DIRECTORY:
            for path in [p for p in names if p.startswith(call.path + "/")]:
                names[call.target + path[len(call.path) :]] = names.pop(path)


def reachable(names: dict[str, int]) -> dict[str, int]:
    """Return the names that lie in surviving directories (7)."""
    found: dict[str, int] = {}
    for path, number in sorted(names.items()):
        parent = dirname(path)
        if parent == "/" or found.get(parent) == DIRECTORY:
            found[path] = number
    return found
